"""One look at a training job whose plan is active: repair it, feed changed CPU limits forward, or rebalance.

A plan is not superseded before its members follow it: two switches under way at once would leave nobody
knowing what was measured under which. At a changed CPU limit the new speed is predicted from the old one, and the
batches follow at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heterotrain.contract import MEMBERS_MAY_END, Plan
from heterotrain_operator.core.batching.asking import ask_policy, seats_of
from heterotrain_operator.core.batching.bounds import beyond_followed, newly_bounded, repaired, with_least_batch
from heterotrain_operator.core.batching.likeness import with_relapse_caution
from heterotrain_operator.core.batching.policies import POLICIES, Seat
from heterotrain_operator.core.batching.quorum import no_quorum, with_silent
from heterotrain_operator.core.batching.rebalance import Adjustment, rebalanced
from heterotrain_operator.core.batching.retries import due_at_once
from heterotrain_operator.core.facts import SETTLE_SECONDS, groups_on_cpu, listed
from heterotrain_operator.core.model import Job, WorkerMetrics, WorkerSeen
from heterotrain_operator.core.prediction import predictor_of
from heterotrain_operator.core.prediction.memory_model import with_peak
from heterotrain_operator.core.prediction.step_time import feed_forward
from heterotrain_operator.core.remembered.batching import Promises
from heterotrain_operator.core.remembered_worker import LEFT_OUT, RememberedWorker
from heterotrain_operator.core.state import Remembered, is_of, members_memory


def adjust(job: Job, plan: Plan, members: Sequence[WorkerSeen], memory: Remembered, now: float) -> Adjustment:
    """Look once. `members` and `memory.workers` are those of `plan`, by rank."""
    memory = _with_least_batches(memory, members)
    memory, news = with_silent(job, plan, members, memory, now)
    adjustment = _adjusted(job, plan, members, memory, now)
    return replace(adjustment, events=(*news, *adjustment.events)) if news else adjustment


def _adjusted(job: Job, plan: Plan, members: Sequence[WorkerSeen], memory: Remembered, now: float) -> Adjustment:
    unfollowed = _unfollowed(plan, members)
    repair: tuple[tuple[int, ...] | None, str] | None = beyond_followed(plan, members)
    if repair is None and (not unfollowed or _settled(memory, now)):
        repair = repaired(job, plan, memory.workers)
    if repair is not None:
        batches, why = repair
        return Adjustment(batches, why, memory, degraded="" if batches else why)
    if unfollowed:
        return Adjustment(None, unfollowed, memory)
    metrics = [worker.metrics for worker in members]
    memory, adjustment = at_new_limits(job, plan, members, metrics, memory)
    return adjustment or rebalanced(job, plan, metrics, memory)


def aligned(memory: Remembered, plan: Plan, now: float) -> Remembered:
    """The memory of exactly the active plan's members: under another version the measurements do not hold, and of
    another worker nothing does.
    """
    if is_of(memory, plan):
        return memory
    workers = tuple(worker.unmeasured() for worker in members_memory(memory, plan))
    return replace(memory, plan_version=plan.version, generation=plan.generation, published_at=now, workers=workers)


def _with_least_batches(memory: Remembered, members: Sequence[WorkerSeen]) -> Remembered:
    """Before anything is decided: bounds rest on them, also while a plan is not followed yet."""
    workers = [with_least_batch(known, seen.metrics) for known, seen in zip(memory.workers, members, strict=True)]
    return replace(memory, workers=tuple(workers))


def _unfollowed(plan: Plan, members: Sequence[WorkerSeen]) -> str:
    """Who does not follow the active plan, in words; empty if all do that are read.

    All ranks switch at the same step, so whoever is not read has switched with the others. Members that went on without
    one that ended share its batch under the same version: what they count is no measure of this plan, and the next one
    names them alone.
    """
    unreadable = [worker.name for worker in members if worker.metrics is None]
    too_few = unreadable and no_quorum(plan, [rank for rank, each in enumerate(members) if each.metrics is not None])
    if too_few:
        return f"plan {plan.version} is active; metrics cannot be read of {listed(unreadable)}: {too_few}"
    behind = [
        f"{worker.name} ({worker.metrics.phase or 'phase unknown'}, plan {worker.metrics.plan_version})"
        for worker in members
        if worker.metrics is not None and worker.metrics.plan_version != plan.version
    ]
    if behind:
        return f"plan {plan.version} is not followed yet by {listed(behind)}"
    shared = [
        f"{member.name} ({worker.metrics.phase or 'phase unknown'}, with {worker.metrics.batch_size} samples "
        f"instead of {member.batch_size})"
        for member, worker in zip(plan.members, members, strict=True)
        if worker.metrics is not None and _has_another_batch(worker.metrics, member.batch_size)
    ]
    return f"plan {plan.version} is followed with other batches by {listed(shared)}" if shared else ""


def _has_another_batch(metrics: WorkerMetrics, batch: int) -> bool:
    """Whether a worker whose members can change says that it trains with another batch than the plan's; 0 may be no
    figure at all.
    """
    return metrics.protocol >= MEMBERS_MAY_END and metrics.batch_size not in (0, batch)


def _settled(memory: Remembered, now: float) -> bool:
    return memory.published_at is not None and now - memory.published_at >= SETTLE_SECONDS


def at_new_limits(
    job: Job, plan: Plan, members: Sequence[WorkerSeen], metrics: Sequence[WorkerMetrics | None], memory: Remembered
) -> tuple[Remembered, Adjustment | None]:
    """The memory with speeds at the members' present CPU limits, and what is adjusted by prediction alone; None where
    no limit has changed, or nothing follows from it. All are by rank.
    """
    remembered = memory.workers
    on_cpu = groups_on_cpu(job)
    workers = tuple(
        # A GPU's time is not that of the cores beside it.
        _fed_forward(job, known, worker, counters) if worker.group in on_cpu and counters is not None else known
        for known, worker, counters in zip(remembered, members, metrics, strict=True)
    )
    resized = any(map(_is_expected, workers, remembered))
    memory = replace(memory, workers=workers)
    if not resized:
        return memory, None
    memory = replace(memory, promises=Promises())
    return memory, _by_prediction(job, plan, metrics, memory, remembered)


def _by_prediction(
    job: Job,
    plan: Plan,
    metrics: Sequence[WorkerMetrics | None],
    memory: Remembered,
    remembered: Sequence[RememberedWorker],
) -> Adjustment | None:
    """What the policy makes of the speeds that are predicted for new CPU limits; None where it keeps the batches, or
    must measure first.

    An interval of steps at limits that are known is not waited for: the windows that follow correct the prediction.
    It is as certain as what was `remembered` of the old limits, for no noise explains a changed limit. The batches
    promise nothing, since none of this was measured.
    """
    policy = POLICIES.get(job.policy)
    if policy is None or policy.whole_intervals:
        return None
    workers = [
        fed._replace(memory_use=with_peak(fed.memory_use, counters)) if counters is not None else fed
        for fed, counters in zip(memory.workers, metrics, strict=True)
    ]
    predictor = predictor_of(job)
    expected = []
    for member, fed, known in zip(plan.members, workers, remembered, strict=True):
        estimate = fed.step_time._replace(steps=known.step_time.steps).before
        if estimate is None:  # limits may change one by one, each soon after the plan that followed the one before
            estimate = predictor.expected(fed.batch_cost, member.batch_size, max(job.interval, 1))
        if estimate is None and member.batch_size > 0 and fed.left_out < LEFT_OUT:
            return None
        expected.append(fed if estimate is None else fed._replace(step_time=fed.step_time.with_estimate(estimate)))
    seats: Sequence[Seat] = seats_of(job, plan, expected, (None,) * len(plan.members))
    if policy.weighs_noise:
        seats, _ = with_relapse_caution(seats, memory.progress.progress_step, job.interval)
    proposal = ask_policy(job, seats, memory.batching)
    if proposal.batches is None or proposal.batches == plan.batch_sizes:
        return None
    found = tuple(newly_bounded(job, plan, remembered, workers))
    memory = replace(memory, workers=tuple(workers))
    return Adjustment(
        proposal.batches,
        f"by the CPU limits that changed, {proposal.reason}",
        memory,
        decided=True,
        predicted=tuple(map(_is_expected, workers, remembered)),
        events=found,
    )


def _is_expected(fed: RememberedWorker, known: RememberedWorker) -> bool:
    """Whether a new limit lets expect another speed."""
    if fed is known:
        return False
    return fed.step_time.mean_seconds != known.step_time.mean_seconds or fed.batch_cost.speed != known.batch_cost.speed


def _fed_forward(job: Job, known: RememberedWorker, worker: WorkerSeen, metrics: WorkerMetrics) -> RememberedWorker:
    limit = worker.cpu_limit if worker.cpu_limit is not None else metrics.cpu_limit
    fed, ratio = feed_forward(known.step_time, limit, metrics, job.interval, predictor_of(job).factor_of_limits)
    if fed is known.step_time:
        return known
    if ratio == 1:
        return known._replace(step_time=fed)
    # A speed that changes with the limit says nothing about the batch.
    cap = known.throughput_cap.unwatched()
    known = due_at_once(known) if ratio < 1 else known
    use = known.resource_use.at_new_limit(metrics)
    return known._replace(
        step_time=fed, batch_cost=known.batch_cost.scaled(ratio), throughput_cap=cap, resource_use=use
    )
