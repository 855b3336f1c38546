"""Bounds of the workers' batches: the user's, cut to what memory holds, and raised to what a model trains well with."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from heterotrain.contract import Plan
from heterotrain_operator.core.facts import Facts, bounds_of, listed
from heterotrain_operator.core.model import Event, Job, WorkerMetrics
from heterotrain_operator.core.prediction.least_batch import bounded_below, reported_least
from heterotrain_operator.core.prediction.memory_limit import after_failure, batch_limit, why_no_more
from heterotrain_operator.core.split.levels import Bounds
from heterotrain_operator.core.split.multiples import last_multiple, next_multiple
from heterotrain_operator.core.split.passes import at_once, in_passes
from heterotrain_operator.core.state import Memory
from heterotrain_operator.core.worker_memory import WorkerMemory


def users_bounds(job: Job) -> dict[str, Bounds]:
    """The bounds that the user gives to workers, by group."""
    return {group.name: bounds_of(job, group) for group in job.groups}


def bounds_at_once(job: Job, groups: Sequence[str], known: Sequence[WorkerMemory]) -> list[Bounds]:
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


def bounds_in_passes(job: Job, groups: Sequence[str], known: Sequence[WorkerMemory]) -> list[Bounds]:
    """Bounds of those workers' parts of a step: what they hold at once, or in several passes if that is too little."""
    return in_passes(job.global_batch, bounds_at_once(job, groups, known))


def with_least_batch(known: WorkerMemory, metrics: WorkerMetrics | None) -> WorkerMemory:
    """Take in the fewest samples that a worker reports."""
    least = reported_least(known.least_batch, metrics)
    return known if least == known.least_batch else known._replace(least_batch=least)


def newly_bounded(job: Job, plan: Plan, before: Iterable[WorkerMemory], after: Iterable[WorkerMemory]) -> list[Event]:
    """Events about workers whose memory was just found to allow less than the job does."""
    events, users = [], users_bounds(job)
    for member, old, new in zip(plan.members, before, after, strict=True):
        if new.memory_use is old.memory_use:
            continue
        most = new.memory_use.greatest_batch
        if most is not None and most < users[member.group][1] and old.memory_use.greatest_batch is None:
            events.append(Event("Normal", "MemoryBoundFound", f"{member.name}: {why_no_more(new.memory_use)}"))
    return events


def after_out_of_memory(job: Job, facts: Facts, memory: Memory, unmet: Collection[str] = ()) -> tuple[Memory, str]:
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
