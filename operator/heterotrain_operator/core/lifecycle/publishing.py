"""The next plan's number, and what is remembered when a plan takes another's place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heterotrain.contract import MEMBERS_MAY_END, Plan
from heterotrain.foreign import MAX_WHOLE
from heterotrain_operator.core.batching.policies import POLICIES
from heterotrain_operator.core.batching.policy import Promise
from heterotrain_operator.core.batching.retries import after_plan
from heterotrain_operator.core.batching.rollback import promised
from heterotrain_operator.core.facts import Facts
from heterotrain_operator.core.model import Job
from heterotrain_operator.core.prediction import predictor_of
from heterotrain_operator.core.prediction.jumps import expected_at
from heterotrain_operator.core.prediction.step_time import JUMPED
from heterotrain_operator.core.prediction.throughput_cap import raised
from heterotrain_operator.core.remembered.batching import Promises
from heterotrain_operator.core.remembered.job import Finish, Outcome, Placing, Progress
from heterotrain_operator.core.remembered.members import Following
from heterotrain_operator.core.remembered_worker import RememberedWorker
from heterotrain_operator.core.state import Remembered, members_memory

MOST_COUNTED = MAX_WHOLE // 2
"""No job's plans or generations count so far; who writes such a number must leave room for the next ones."""


def next_version(facts: Facts, memory: Remembered) -> int:
    """Greater than any plan seen: the active one, the one remembered, and every one that a worker follows.

    So a deleted plan never strands workers, which ignore older ones. Numbers that no plan can have are nobody's.
    """
    versions = [memory.plan_version, *(w.metrics.plan_version for w in facts.everybody if w.metrics is not None)]
    if facts.plan is not None:
        versions.append(facts.plan.version)
    return max(version for version in (0, *versions) if version < MOST_COUNTED) + 1


def rebalanced_plan(memory: Remembered, before: Plan, version: int, apply_at: str, batches: Sequence[int]) -> Plan:
    """The same members under a new version with other batches; the generation stays."""
    return replace(
        before,
        version=version,
        generation=max(before.generation, memory.generation),
        apply_at=apply_at,
        members=tuple(replace(member, batch_size=batch) for member, batch in zip(before.members, batches, strict=True)),
    )


def adjusted(
    job: Job,
    memory: Remembered,
    before: Plan,
    after: Plan,
    now: float,
    *,
    stage: int | None,
    promise: Promise | None = None,
    predicted: Sequence[bool] = (),
) -> Remembered:
    """Memory once `after` replaces `before` with the same members: what was measured becomes a point of the
    fits, and what `after` promises, and on whose `predicted` speed it rests (by rank), is remembered.
    """
    memory = promised(memory, promise, before.batch_sizes)
    predicted = predicted or (False,) * len(after.members)
    memory = replace(memory, workers=members_memory(memory, before))
    workers = tuple(
        # What took more passes than the next plan takes is no measure of the cost of its batch.
        _ended_plan(
            job,
            known,
            0 if old.micro_batch_size and not new.micro_batch_size else old.batch_size,
            new.batch_size,
            predicted=expected,
        )
        for known, old, new, expected in zip(memory.workers, before.members, after.members, predicted, strict=True)
    )
    return replace(
        memory,
        plan_version=after.version,
        generation=after.generation,
        published_at=now,
        workers=workers,
        batching=replace(
            memory.batching,
            adjustments=memory.batching.adjustments + (before.batch_sizes != after.batch_sizes),
            stage=memory.batching.stage if stage is None else stage,
        ),
    )


def recovered_plan(memory: Remembered, after: Plan, now: float) -> Remembered:
    """Memory once a lost plan is published again: of the same workers the knowledge stays."""
    return replace(
        memory,
        plan_version=after.version,
        generation=after.generation,
        start=replace(memory.start, started_at=now if memory.start.started_at is None else memory.start.started_at),
        published_at=now,
        workers=tuple(worker.unmeasured() for worker in members_memory(memory, after)),
    )


def known_workers(job: Job, memory: Remembered, plan: Plan | None) -> dict[str, RememberedWorker]:
    """What is remembered of the members of the last plan, by name, ready for a new generation."""
    if plan is None or plan.version != memory.plan_version or len(plan.members) != len(memory.workers):
        return {}
    return {
        member.name: _ended_plan(job, worker, member.batch_size, member.batch_size)
        for member, worker in zip(plan.members, members_memory(memory, plan), strict=True)
    }


def is_predicted(known: RememberedWorker) -> bool:
    """Whether a worker's speed is an expectation that no window of the active plan has replaced."""
    return bool(known.batch_cost.predicted and not known.step_time.is_measured)


def carried_on(job: Job, memory: Remembered, before: Plan, after: Plan | None = None) -> dict[str, RememberedWorker]:
    """What is remembered of the members of the plan `before`, by name, ready for one in which they go on with others;
    for `after`, once that is known.
    """
    following = {member.uid: member for member in (before if after is None else after).members}
    known = {}
    for old, worker in zip(before.members, members_memory(memory, before), strict=True):
        new = following.get(old.uid, old)
        old_batch = 0 if old.micro_batch_size and not new.micro_batch_size else old.batch_size
        predicted = is_predicted(worker)
        kept = _ended_plan(job, worker, old_batch, new.batch_size, predicted=predicted, keeps_expected=True)
        known[old.name] = kept._replace(left_out=0)
    return known


def changed_plan(
    memory: Remembered,
    after: Plan,
    now: float,
    knowledge: Sequence[RememberedWorker],
    *,
    joining: int,
    entering: str,
    leaving: str,
) -> Remembered:
    """Memory once `after` goes on with other members, of whom `knowledge` is known, by rank: training has not begun
    again, but what was promised was of others. The last `joining` of them are to join by it, those with the keys
    `entering` have not said yet that they train, and workers with the keys `leaving` are to leave.
    """
    return replace(
        memory,
        promises=Promises(),
        plan_version=after.version,
        generation=after.generation,
        published_at=now,
        following=replace(
            memory.following, changing=True, joining=joining, entering=entering, leaving=leaving, changed_at=now
        ),
        batching=replace(memory.batching, gathered=False),
        workers=tuple(knowledge),
    )


def started_plan(
    memory: Remembered, after: Plan, now: float, knowledge: Sequence[RememberedWorker], *, protocol: int = 1
) -> Remembered:
    """Memory once a new generation starts, with what is known of `after`'s members, by rank, all of which speak that
    `protocol`; measurements begin again."""
    passed = memory.progress.progress_step > memory.budget.script_error_step
    started = now - memory.start.starting_at if memory.start.starting_at is not None else 0.0
    return replace(
        memory,
        promises=Promises(),
        plan_version=after.version,
        generation=after.generation,
        published_at=now,
        budget=replace(
            memory.budget,
            generation_at=now,
            unexplained_at=None,
            restart_at=None,
            script_error_step=-1 if passed else memory.budget.script_error_step,
        ),
        start=replace(memory.start, start_seconds=max(started, 0.0), starting_at=None, pods_created_at=None),
        placing=Placing(),
        progress=Progress(progress_at=now, advanced_at=now, slow_step_seconds=memory.progress.slow_step_seconds),
        finish=Finish(),
        outcome=Outcome(),
        protocol=protocol,
        following=Following(changing=True, changed_at=now if protocol >= MEMBERS_MAY_END else None),
        passages=replace(memory.passages, arrivals=()),
        pending=(),
        workers=tuple(knowledge),
    )


def _ended_plan(
    job: Job,
    known: RememberedWorker,
    old_batch: int,
    new_batch: int,
    *,
    predicted: bool | None = None,
    keeps_expected: bool = False,
) -> RememberedWorker:
    """What is known of a worker once its plan has ended: the predictor learns what was measured, and the estimate ends.

    `predicted` says whether the next plan rests on a speed that is only expected; None: as it is known already.
    `keeps_expected`: what was expected of a plan that ended before its first window is expected of the next one, so
    that a change of speed is found there.
    """
    policy = POLICIES.get(job.policy)
    estimate = known.step_time.estimate if old_batch > 0 else None
    predictor = predictor_of(job)
    # Steps of two speeds are no measure of the batch's cost; the next plan's show the speed.
    mixed = estimate is not None and known.step_time.basis & JUMPED > 0
    cost = known.batch_cost if mixed else predictor.learn(known.batch_cost, old_batch, estimate)
    expected, newest = None, estimate
    if estimate is None and keeps_expected and old_batch > 0:
        newest = known.step_time.before
    if predicted is False and newest is not None and new_batch > 0:
        expected = predictor.expect(cost, old_batch, newest, new_batch)
    # A throughput that is only expected is none that a raise could be held to.
    cap = known.throughput_cap
    watches = policy is not None and policy.watches_throughput and not predicted
    cap = raised(cap, old_batch, new_batch, estimate) if watches else cap.unwatched()
    variation = known.variation
    if policy is not None and policy.weighs_noise and estimate is not None:
        variation = variation.learned(known.step_time)
    ended = after_plan(known, old_batch, new_batch).unmeasured(expected, expected_at(new_batch, old_batch))
    return ended._replace(
        batch_cost=cost if predicted is None else cost.with_predicted(int(predicted or mixed)),
        throughput_cap=cap,
        variation=variation,
        # The plan of a new generation (`predicted` is None) is for new processes; others are still silent.
        silent_since=0.0 if predicted is None else known.silent_since,
        left_out=0 if predicted is None else known.left_out,
    )
