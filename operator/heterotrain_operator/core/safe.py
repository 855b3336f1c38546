"""Batches that memory allows: with what a worker ran out of memory, it is not started again.

Half of a batch that did not fit is a guess, but one that makes progress; a fitted model of memory can replace it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heterotrain_operator.core.facts import Facts, bounds_of, group_of, listed
from heterotrain_operator.core.levels import Bounds, feasibility
from heterotrain_operator.core.model import Job
from heterotrain_operator.core.state import Memory, WorkerMemory


def safe_bounds(job: Job, groups: Sequence[str], known: Sequence[WorkerMemory]) -> list[Bounds]:
    """The user's bounds of workers of these groups, cut to what is safe, unless the global batch exceeds that.

    `known` are the same workers.
    """
    users = [bounds_of(job, group_of(job, name)) for name in groups]
    safe = [
        (low, max(low, min(high, worker.safe_max))) if worker.safe_max > 0 else (low, high)
        for (low, high), worker in zip(users, known, strict=True)
    ]
    return users if feasibility(job.global_batch, safe) is not None else safe


def after_out_of_memory(job: Job, facts: Facts, memory: Memory) -> tuple[Memory, str]:
    """Memory in which members that ran out of memory have a lower safe batch, and whose it is, in words."""
    if facts.plan is None or memory.plan_version != facts.plan.version or len(memory.workers) != len(facts.members):
        return memory, ""
    workers = list(memory.workers)
    told = []
    for rank, (member, worker) in enumerate(zip(facts.plan.members, facts.members, strict=True)):
        if worker is None or not worker.out_of_memory or member.batch_size <= 0:
            continue
        low, _ = bounds_of(job, group_of(job, member.group))
        safe = max(member.batch_size // 2, low, 1)
        if safe < member.batch_size:
            workers[rank] = replace(workers[rank], safe_max=safe)
            told.append(f"{member.name} gets at most {safe} samples instead of {member.batch_size}")
    return replace(memory, workers=tuple(workers)), listed(told)
