"""Bounds of the workers' batches: the user's, cut to what memory holds, and raised to what a model trains well with.
An active plan is repaired whose batches are beyond them, or have a wrong sum, or whose version workers would ignore.

BatchNorm's statistics are those of each worker's own samples, and too noisy if these are few. The worker knows its
model and reports the number; `trainer-image/heterotrain/state/batch_norm.py` has the measurements behind it. Training
also works with fewer, so upper bounds and the global batch take precedence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from heterotrain.contract import Plan
from heterotrain_operator.core.batching.policies import POLICIES
from heterotrain_operator.core.facts import Facts, bounds_of, group_of, listed, multiples_of
from heterotrain_operator.core.model import Event, Job, WorkerMetrics, WorkerSeen
from heterotrain_operator.core.prediction.memory_model import after_failure, batch_limit, why_no_more
from heterotrain_operator.core.remembered_worker import RememberedWorker
from heterotrain_operator.core.split.allocation import split_proportionally
from heterotrain_operator.core.split.multiples import Bounds, infeasible, last_multiple, next_multiple
from heterotrain_operator.core.split.passes import at_once, in_passes
from heterotrain_operator.core.state import Remembered


def users_bounds(job: Job) -> dict[str, Bounds]:
    """The bounds that the user gives to workers, by group."""
    return {group.name: bounds_of(job, group) for group in job.groups}


def bounds_at_once(job: Job, groups: Sequence[str], known: Sequence[RememberedWorker]) -> list[Bounds]:
    """The user's bounds of workers of these groups, cut to what memory holds, and with as many samples at least as
    their models train well with, where the global batch allows it. `known` are the same workers.
    """
    users = users_bounds(job)
    safe = []
    for name, worker in zip(groups, known, strict=True):
        pair = users[name]
        most = batch_limit(worker.memory_use)
        safe.append(pair if most is None or most >= pair[1] else (pair[0], max(pair[0], most)))
    leasts = [worker.least_batch for worker in known]
    by_name = {group.name: group.multiple_of for group in job.groups}
    if max(by_name.values()) > 1:
        multiples = [by_name[name] for name in groups]
        safe = [
            (low, max(low, last_multiple(high, multiple)))
            for (low, high), multiple in zip(safe, multiples, strict=True)
        ]
        leasts = [next_multiple(least, multiple) for least, multiple in zip(leasts, multiples, strict=True)]
    return bounded_below(job.global_batch, safe, leasts)


def bounds_in_passes(job: Job, groups: Sequence[str], known: Sequence[RememberedWorker]) -> list[Bounds]:
    """Bounds of those workers' parts of a step: what they hold at once, or in several passes if that is too little."""
    return in_passes(job.global_batch, bounds_at_once(job, groups, known))


def with_least_batch(known: RememberedWorker, metrics: WorkerMetrics | None) -> RememberedWorker:
    """Take in the fewest samples that a worker reports."""
    least = reported_least(known.least_batch, metrics)
    return known if least == known.least_batch else known._replace(least_batch=least)


def newly_bounded(
    job: Job, plan: Plan, before: Iterable[RememberedWorker], after: Iterable[RememberedWorker]
) -> list[Event]:
    """Events about workers whose memory was just found to allow less than the job does."""
    events, users = [], users_bounds(job)
    for member, old, new in zip(plan.members, before, after, strict=True):
        if new.memory_use is old.memory_use:
            continue
        most = new.memory_use.greatest_batch
        if most is not None and most < users[member.group][1] and old.memory_use.greatest_batch is None:
            events.append(Event("Normal", "MemoryBoundFound", f"{member.name}: {why_no_more(new.memory_use)}"))
    return events


def after_out_of_memory(
    job: Job, facts: Facts, memory: Remembered, unmet: Collection[str] = ()
) -> tuple[Remembered, str]:
    """Memory in which members that ran out of memory get fewer samples at once, and who does, in words. Those named in
    `unmet` have not computed the active plan's batch yet.
    """
    if facts.plan is None or memory.plan_version != facts.plan.version or len(memory.workers) != len(facts.members):
        return memory, ""
    workers, groups = list(memory.workers), {group.name: group for group in job.groups}
    smaller_parts = []
    for rank, (member, worker) in enumerate(zip(facts.plan.members, facts.members, strict=True)):
        if worker is None or not worker.out_of_memory or member.batch_size <= 0:
            continue
        if member.name in unmet or member.group not in groups:
            continue
        low, _ = bounds_of(job, groups[member.group])
        batch = at_once(member)
        smaller = after_failure(workers[rank].memory_use, batch, max(low, 1))
        workers[rank] = workers[rank]._replace(memory_use=smaller)
        most = batch_limit(smaller)
        if most is not None and most < batch:
            smaller_parts.append(f"{member.name} gets at most {most} samples instead of {batch}")
    return replace(memory, workers=tuple(workers)), listed(smaller_parts)


def repaired(job: Job, plan: Plan, known: Sequence[RememberedWorker]) -> tuple[tuple[int, ...] | None, str] | None:
    """Batches that repair what the plan violates since the job was edited, and why; no batches if none are
    feasible. None if it violates nothing."""
    groups = [member.group for member in plan.members]
    together = bounds_at_once(job, groups, known)
    bounds = in_passes(job.global_batch, together)
    policy = POLICIES.get(job.policy)
    total = plan.global_batch_size
    if job.fixed_global_batch and (policy is None or policy.keeps_sum(job)):
        total = job.global_batch
    broken = []
    for member, (low, high), worker in zip(plan.members, bounds, known, strict=True):
        if not low <= member.batch_size <= high:
            users_low, users_high = bounds_of(job, group_of(job, member.group))
            why = why_no_fewer(worker.least_batch, users_low, low) if member.batch_size < low else ""
            why = why_no_more(worker.memory_use) if member.batch_size > high < users_high else why
            why = f" ({why})" if why else ""
            broken.append(f"{member.name} has {member.batch_size} samples, bounds are [{low}, {high}]{why}")
    for member, (_, most) in zip(plan.members, together, strict=True):
        if at_once(member) > max(most, 1):
            broken.append(f"{member.name} computes {at_once(member)} samples at once, of which {most} fit")
    multiples = multiples_of([group_of(job, name) for name in groups]) if _takes_multiples(job) else ()
    for member, multiple in zip(plan.members, multiples, strict=False):
        if member.batch_size % multiple:
            broken.append(f"{member.name} has {member.batch_size} samples, which is no multiple of {multiple}")
    if total != plan.global_batch_size:
        broken.append(f"the batches add up to {plan.global_batch_size}, not to {total}")
    if not broken:
        return None
    if total != job.global_batch:
        total = min(max(total, sum(low for low, _ in bounds)), max(sum(high for _, high in bounds), 1))
        if multiples:
            total = max(last_multiple(total, min(multiples)), min(multiples))
    why_not = infeasible(total, bounds, multiples, [member.name for member in plan.members])
    if why_not is not None:
        return None, f"plan {plan.version} stays active, although {listed(broken)}: {why_not}"
    return split_proportionally(plan.batch_sizes, total, bounds, multiples), listed(broken)


def _takes_multiples(job: Job) -> bool:
    return any(group.multiple_of > 1 for group in job.groups)


def beyond_followed(plan: Plan, members: Sequence[WorkerSeen]) -> tuple[tuple[int, ...], str] | None:
    """The plan's own batches, and why, where a member follows a newer version than the plan has; None otherwise.

    Workers ignore older plans, so a plan that was lost and written again must be numbered beyond what they follow.
    """
    followed = [(w.metrics.plan_version, w.name) for w in members if w.metrics is not None]
    newest, name = max(followed, default=(0, ""))
    if newest <= plan.version:
        return None
    return plan.batch_sizes, f"{name} follows plan {newest}, newer than the active plan {plan.version}"


def reported_least(known: int, metrics: WorkerMetrics | None) -> int:
    """The fewest samples that a worker reports, or else what is `known`; one sample is no bound, and kept as 0."""
    if metrics is None:
        return known
    return metrics.least_batch_size if metrics.least_batch_size > 1 else 0


def bounded_below(total: int, bounds: Sequence[Bounds], leasts: Sequence[int]) -> list[Bounds]:
    """Bounds in samples whose lower ends are raised to `leasts`, but not beyond the upper ends.

    If the raised ends add up to more than `total` samples, the bounds stay as they are.
    """
    if not any(leasts):
        return list(bounds)
    raised = [(max(low, min(least, high)), high) for (low, high), least in zip(bounds, leasts, strict=True)]
    return raised if sum(low for low, _ in raised) <= total else list(bounds)


def why_no_fewer(least: int, users_low: int, low: int) -> str:
    """What a worker's lower bound `low` rests on, in words; empty if it is the user's, or lower. It reports `least`."""
    if low <= users_low or least <= users_low:
        return ""
    return f"at least {low} samples, since it reports that its model trains badly with fewer than {least}"
