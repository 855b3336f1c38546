"""Who takes part in a decision about batches: a quorum of the workers that are read steers, the others keep theirs.

Of a thousand workers some scrape is always lost, and one worker whose counters are of no use for ever must not hold up
all others. A lost scrape costs nothing where the worker was measured under the active plan already: its estimate
stands. Where it was not, the windows of those that are read are closed, and the decision waits for the rest of them,
for as long as a silent worker is waited for in any case. Whoever is silent for longer, or has no usable counters, is
left out: it keeps its batch, what remains of the global batch is split among the others, and the job is degraded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from heterotrain.contract import Plan
from heterotrain_operator.core.facts import listed
from heterotrain_operator.core.memory.batching import Promises
from heterotrain_operator.core.model import Event, Job, WorkerMetrics, WorkerSeen
from heterotrain_operator.core.prediction.step_time import Estimate, steps_since, window_of
from heterotrain_operator.core.state import Memory
from heterotrain_operator.core.worker_memory import LEFT_OUT, UNREADABLE, UNUSABLE, WorkerMemory

SHARE = 0.5
"""Of the workers that have samples, and of their samples: so many must be read. With fewer the batches that stay decide
about the step, and what was lost is rather the way to the workers than a worker. A majority would let no job of two
workers, or of two equal groups, find out anything about the half that is read."""

LATE_INTERVALS = 5
"""Control intervals that half of the workers count while one counts less than one: all commit the same steps, so that
one's counters do not count. A source that reads workers at different times is at most a few intervals apart."""


def no_quorum(plan: Plan, taking_part: Collection[int]) -> str:
    """Why these ranks are too few to steer, in words; empty if they are enough."""
    working = [member.batch_size for member in plan.members if member.batch_size > 0]
    mine = [plan.members[rank].batch_size for rank in taking_part if plan.members[rank].batch_size > 0]
    if len(mine) >= SHARE * len(working) and sum(mine) >= SHARE * sum(working):
        return ""
    return f"{len(mine)} of {len(working)} workers with {sum(mine)} of {sum(working)} samples are no quorum"


def with_silent(
    job: Job, plan: Plan, members: Sequence[WorkerSeen], memory: Memory, now: float
) -> tuple[Memory, tuple[Event, ...]]:
    """Leave those out that have been silent for the heartbeat's timeout, with an event about each, once."""
    latest = now - job.heartbeat_timeout_seconds
    found = [
        rank
        for rank, (worker, known) in enumerate(zip(members, memory.workers, strict=True))
        if worker.metrics is None and 0 < known.silent_since <= latest and known.left_out < LEFT_OUT
    ]
    return _left_out(plan, memory, found, lambda _: "its metrics cannot be read", reason=UNREADABLE)


def steps_by_rank(plan: Plan, metrics: Sequence[WorkerMetrics | None], memory: Memory) -> dict[int, float]:
    """Measured steps since the last window ended, of those that a decision waits for: workers without samples need
    none, and who is not read or left out is not waited for.
    """
    return {
        rank: steps_since(known.step_time, counters)
        for rank, (member, counters, known) in enumerate(zip(plan.members, metrics, memory.workers, strict=True))
        if member.batch_size > 0 and counters is not None and known.left_out < LEFT_OUT
    }


def with_late(job: Job, plan: Plan, counts: Mapping[int, float], memory: Memory) -> tuple[Memory, tuple[Event, ...]]:
    """Leave those out whose counters stand still while those of the others go on, with an event about each, once.
    `counts` are `steps_by_rank`.
    """
    interval = max(job.interval, 1)
    middle = sorted(counts.values())[len(counts) // 2] if counts else 0.0
    if middle < LATE_INTERVALS * interval:
        return memory, ()
    found = [rank for rank, steps in counts.items() if steps < interval]

    def why(rank: int) -> str:
        return f"it counted {counts[rank]:.0f} steps while others counted {middle:.0f}"

    return _left_out(plan, memory, found, why)


def judged(
    plan: Plan,
    metrics: Sequence[WorkerMetrics | None],
    before: Sequence[WorkerMemory],
    memory: Memory,
    *,
    windows: Sequence[Estimate | None],
) -> tuple[Memory, tuple[Event, ...]]:
    """After the windows of those that have `metrics` were closed: who had no usable one too often in a row is left out,
    and who had one, or needs none, takes part again. `before` is what was remembered of the workers then.
    """
    workers, found, returned = list(memory.workers), [], False
    for rank, known in enumerate(memory.workers):
        if metrics[rank] is None:
            continue
        if windows[rank] is not None or plan.members[rank].batch_size == 0:
            returned = returned or known.left_out >= LEFT_OUT
            workers[rank] = known._replace(left_out=0) if known.left_out else known
        elif known.left_out != UNUSABLE:
            workers[rank] = known._replace(left_out=known.left_out % LEFT_OUT + 1)
            found += [rank] if workers[rank].left_out == UNUSABLE else []
    memory = replace(memory, workers=tuple(workers))

    def why(rank: int) -> str:
        counters = metrics[rank]
        return str(window_of(before[rank].step_time, counters)) if counters is not None else ""

    # What was promised without the ones that are back says nothing about the step that they are part of.
    return _left_out(plan, replace(memory, promises=Promises()) if returned else memory, found, why)


def why_left_out(known: WorkerMemory, batch: int) -> str:
    """Why decisions leave a worker with that batch out, in words; empty if it takes part."""
    if known.left_out < LEFT_OUT:
        return ""
    cause = "metrics cannot be read" if known.left_out >= UNREADABLE else "counters cannot be used"
    return f"keeps its {batch} samples, since its {cause}; the others are balanced without it"


def unusable(plan: Plan, memory: Memory) -> str:
    """Whose counters cannot be used, in words; empty if nobody's."""
    names = [m.name for m, known in zip(plan.members, memory.workers, strict=True) if known.left_out == UNUSABLE]
    return f"the counters of {listed(names)} cannot be used, so the batches stay there" if names else ""


def awaited(plan: Plan, metrics: Sequence[WorkerMetrics | None], memory: Memory) -> list[str]:
    """Who was not read, has no estimate under the active plan, and may yet be read in time."""
    return [
        member.name
        for member, counters, known in zip(plan.members, metrics, memory.workers, strict=True)
        if counters is None and member.batch_size > 0 and not known.step_time.is_measured and known.left_out < LEFT_OUT
    ]


def _left_out(
    plan: Plan, memory: Memory, found: Sequence[int], why: Callable[[int], str], *, reason: int = UNUSABLE
) -> tuple[Memory, tuple[Event, ...]]:
    if not found:
        return memory, ()
    workers = list(memory.workers)
    for rank in found:
        workers[rank] = workers[rank]._replace(left_out=reason)
    events = [
        Event(
            "Warning",
            "WorkerUnreadable" if reason == UNREADABLE else "CountersUnusable",
            f"{plan.members[rank].name} keeps its {plan.members[rank].batch_size} samples, and the others are balanced "
            f"without it, since {why(rank)}",
        )
        for rank in found
    ]
    return replace(memory, workers=tuple(workers)), tuple(events)
