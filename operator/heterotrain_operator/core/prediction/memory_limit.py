"""Batches that memory allows: by the fitted model of a worker's memory, and below what it ran out of memory with.

Where nothing else is known, half of a batch that did not fit is a guess, but one that makes progress.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from heterotrain.contract import Plan
from heterotrain_operator.core.facts import Facts, bounds_of, group_of, listed
from heterotrain_operator.core.model import Event, Job, WorkerMetrics
from heterotrain_operator.core.prediction.least_batch import bounded_below
from heterotrain_operator.core.prediction.memory_model import (
    failed,
    fitting_batch,
    greatest_batch,
    greatest_growth,
    line_of,
    measured,
)
from heterotrain_operator.core.split.levels import Bounds
from heterotrain_operator.core.split.passes import at_once, in_passes
from heterotrain_operator.core.state import Memory, WorkerMemory


def safe_batch(known: WorkerMemory) -> int | None:
    """The greatest batch that a worker's memory is thought to hold; None if nothing is known."""
    limits = [_guessed(known)] if known.safe_max > 0 else []
    limits += [max(known.failed_batch - 1, 1)] if known.failed_batch > 0 else []
    modelled = greatest_batch(known)
    return min([*limits, modelled] if modelled is not None else limits, default=None)


def _guessed(known: WorkerMemory) -> int:
    """What was guessed after a failure, or the more that the one batch seen since says is sure to fit."""
    tried = greatest_growth(known)
    return max(known.safe_max, tried) if tried is not None and tried < known.failed_batch else known.safe_max


def bounds_at_once(job: Job, groups: Sequence[str], known: Sequence[WorkerMemory]) -> list[Bounds]:
    """The user's bounds of workers of these groups, cut to what is safe, and with as many samples at least as their
    models train well with, where the global batch allows it. `known` are the same workers.
    """
    users = [bounds_of(job, group_of(job, name)) for name in groups]
    safe = []
    for (low, high), worker in zip(users, known, strict=True):
        most = safe_batch(worker)
        safe.append((low, high if most is None else max(low, min(high, most))))
    return bounded_below(job.global_batch, safe, [worker.least_batch for worker in known])


def safe_bounds(job: Job, groups: Sequence[str], known: Sequence[WorkerMemory]) -> list[Bounds]:
    """Bounds of those workers' parts of a step: what is safe at once, or in several passes if that is too little."""
    return in_passes(job.global_batch, bounds_at_once(job, groups, known))


def with_peak(known: WorkerMemory, metrics: WorkerMetrics) -> WorkerMemory:
    """Take in what a worker reports of its peak memory since the plan in force began.

    Once two batches have been measured, their line takes the place of a guess, unless it belies the failure.
    """
    after = measured(known, metrics.memory_batch_size, metrics.memory_peak_bytes, metrics.memory_limit_bytes)
    modelled = greatest_batch(after)
    if line_of(known) is None and modelled is not None and modelled < after.failed_batch:
        return replace(after, safe_max=0)
    return after


def why_no_more(known: WorkerMemory) -> str:
    """What a worker's greatest safe batch rests on, in words; empty if none is known."""
    most = safe_batch(known)
    if most is None:
        return ""
    line = line_of(known)
    if line is None or greatest_batch(known) != most:
        return f"at most {most} samples, since it ran out of memory with more"
    if most == line.low_batch:
        return f"at most {most} samples, the fewest seen, with which it took {line.low_mib} of {line.limit_mib} MiB"
    return (
        f"at most {most} samples, which are sure to fit into its {line.limit_mib} MiB by peaks of {line.low_mib} MiB "
        f"at {line.low_batch} and {line.high_mib} MiB at {line.high_batch} samples"
    )


def bounded_anew(job: Job, plan: Plan, before: Iterable[WorkerMemory], after: Iterable[WorkerMemory]) -> list[Event]:
    """Tells of workers whose memory was just found to allow less than the job does."""
    told = []
    for member, old, new in zip(plan.members, before, after, strict=True):
        _, high = bounds_of(job, group_of(job, member.group))
        most = greatest_batch(new)
        if most is not None and most < high and greatest_batch(old) is None:
            told.append(Event("Normal", "MemoryBoundFound", f"{member.name}: {why_no_more(new)}"))
    return told


def after_out_of_memory(job: Job, facts: Facts, memory: Memory) -> tuple[Memory, str]:
    """Memory in which members that ran out of memory have a lower safe batch, and whose it is, in words.

    A model that knew the batch to be too large is believed. One that did not is corrected, and the next batch is one
    that is known to fit, or half of the failed one.
    """
    if facts.plan is None or memory.plan_version != facts.plan.version or len(memory.workers) != len(facts.members):
        return memory, ""
    workers = list(memory.workers)
    told = []
    for rank, (member, worker) in enumerate(zip(facts.plan.members, facts.members, strict=True)):
        if worker is None or not worker.out_of_memory or member.batch_size <= 0:
            continue
        low, _ = bounds_of(job, group_of(job, member.group))
        batch = at_once(member)
        workers[rank] = _smaller(workers[rank], batch, max(low, 1))
        most = safe_batch(workers[rank])
        if most is not None and most < batch:
            told.append(f"{member.name} gets at most {most} samples instead of {batch}")
    return replace(memory, workers=tuple(workers)), listed(told)


def _smaller(known: WorkerMemory, batch: int, low: int) -> WorkerMemory:
    modelled = greatest_batch(known)
    if modelled is not None and modelled < batch:
        safe = modelled
    else:
        tried = greatest_growth(known) or 0
        safe = max(batch // 2, fitting_batch(known, batch), tried if tried < batch else 0)
    safe = max(safe, low)
    if safe >= batch:
        return known
    return replace(failed(known, batch), safe_max=safe, failed_batch=min(batch, known.failed_batch or batch))
