"""Who takes part in a decision about batches, and when it is due: a quorum of the workers that are read steers.

Of a thousand workers some scrape is always lost, and one worker whose counters are of no use for ever must not hold up
all others. A lost scrape costs nothing where the worker was measured under the active plan already: its estimate
stands. Where it was not, the windows of those that are read are closed, and the decision waits for the rest of them,
for as long as a silent worker is waited for in any case. Whoever is silent for longer, or has no usable counters, is
left out: it keeps its batch, what remains of the global batch is split among the others, and the job is degraded.

Where the evidence suffices, a decision comes before its interval is over: after two or three steps at a gross
imbalance. Every look tests what was measured so far, by the same errors as any decision. The variance of two steps is
itself uncertain, so it is shrunk to what is known of the worker, of the others, and of workers in general.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from heterotrain.contract import Plan
from heterotrain_operator.core.batching.policies import POLICIES
from heterotrain_operator.core.facts import listed
from heterotrain_operator.core.model import Event, Job, WorkerMetrics, WorkerSeen
from heterotrain_operator.core.prediction.step_time import ASSUMED_VARIATION, Estimate, StepTime, steps_since, window_of
from heterotrain_operator.core.remembered.batching import Promises
from heterotrain_operator.core.remembered_worker import LEFT_OUT, UNREADABLE, UNUSABLE, RememberedWorker
from heterotrain_operator.core.state import Remembered

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
    job: Job, plan: Plan, members: Sequence[WorkerSeen], memory: Remembered, now: float
) -> tuple[Remembered, tuple[Event, ...]]:
    """Leave those out that have been silent for the heartbeat's timeout, with an event about each, once."""
    latest = now - job.heartbeat_timeout_seconds
    found = [
        rank
        for rank, (worker, known) in enumerate(zip(members, memory.workers, strict=True))
        if worker.metrics is None and worker.exit_code is None  # one that has ended has nothing to say any more
        if 0 < known.silent_since <= latest and known.left_out < LEFT_OUT
    ]
    return _left_out(plan, memory, found, lambda _: "its metrics cannot be read", reason=UNREADABLE)


def steps_by_rank(plan: Plan, metrics: Sequence[WorkerMetrics | None], memory: Remembered) -> dict[int, float]:
    """Measured steps since the last window ended, of those that a decision waits for: workers without samples need
    none, and who is not read or left out is not waited for.
    """
    return {
        rank: steps_since(known.step_time, counters)
        for rank, (member, counters, known) in enumerate(zip(plan.members, metrics, memory.workers, strict=True))
        if member.batch_size > 0 and counters is not None and known.left_out < LEFT_OUT
    }


def with_late(
    job: Job, plan: Plan, counts: Mapping[int, float], memory: Remembered
) -> tuple[Remembered, tuple[Event, ...]]:
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
    before: Sequence[RememberedWorker],
    memory: Remembered,
    *,
    windows: Sequence[Estimate | None],
) -> tuple[Remembered, tuple[Event, ...]]:
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


def why_left_out(known: RememberedWorker, batch: int) -> str:
    """Why decisions leave a worker with that batch out, in words; empty if it takes part."""
    if known.left_out < LEFT_OUT:
        return ""
    cause = "metrics cannot be read" if known.left_out >= UNREADABLE else "counters cannot be used"
    return f"keeps its {batch} samples, since its {cause}; the others are balanced without it"


def unusable(plan: Plan, memory: Remembered) -> str:
    """Whose counters cannot be used, in words; empty if nobody's."""
    names = [m.name for m, known in zip(plan.members, memory.workers, strict=True) if known.left_out == UNUSABLE]
    return f"the counters of {listed(names)} cannot be used, so the batches stay there" if names else ""


def awaited(plan: Plan, metrics: Sequence[WorkerMetrics | None], memory: Remembered) -> list[str]:
    """Who was not read, has no estimate under the active plan, and may yet be read in time."""
    return [
        member.name
        for member, counters, known in zip(plan.members, metrics, memory.workers, strict=True)
        if counters is None and member.batch_size > 0 and not known.step_time.is_measured and known.left_out < LEFT_OUT
    ]


def _left_out(
    plan: Plan, memory: Remembered, found: Sequence[int], why: Callable[[int], str], *, reason: int = UNUSABLE
) -> tuple[Remembered, tuple[Event, ...]]:
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


LEAST_STEPS = 2
"""Fewer say nothing of how steps vary."""

PLAN_STEPS = 2.0
"""What a plan costs, in steps: so much must be lost by waiting for the rest of the interval. Tried: 1 to 4; a first
plan that rests on few steps is mostly followed by a second one."""

CHANGE = 0.2
"""Relative difference from its estimate that a worker must show where all have one."""

CHANGE_DEVIATIONS = 3.0
"""Standard errors by which it must differ, too, so that noise does not make every look as costly as a decision."""

DEGREES = 6.0
"""Steps that what is known of a variance counts as. Tried: 4 to 10."""


def is_due(job: Job, plan: Plan, metrics: Sequence[WorkerMetrics | None], memory: Remembered) -> bool:
    """Whether a decision should be tried before the interval is over: somebody's speed is new, or seems to have
    changed, and waiting would cost more than a plan does. `metrics` are by rank, None of those that were not read.
    """
    policy = POLICIES.get(job.policy)
    if policy is None or policy.whole_intervals or memory.batching.gathered:
        return False
    fewest, largest, rates = float(job.interval), 0.0, 0.0
    seen: list[tuple[StepTime, float, float]] = []
    for member, counters, worker in zip(plan.members, metrics, memory.workers, strict=True):
        if member.batch_size <= 0:
            continue
        if counters is None or worker.left_out >= LEFT_OUT:
            return False
        known = worker.step_time
        steps = steps_since(known, counters)
        if steps < LEAST_STEPS:
            return False
        seconds = counters.own_seconds - (known.counted_seconds if steps < counters.steps else 0.0)
        mean = seconds / steps
        if not 0 < mean < float("inf"):
            return False
        fewest, largest, rates = min(fewest, steps), max(largest, mean), rates + 1 / mean
        seen.append((known, mean, steps))
    if not seen or (job.interval - fewest) * (1 - len(seen) / rates / largest) <= PLAN_STEPS:
        return False
    return any(map(_is_new, seen))


def _is_new(seen: tuple[StepTime, float, float]) -> bool:
    known, mean, steps = seen
    before = known.estimate
    if before is None:
        return True
    error = CHANGE_DEVIATIONS * math.sqrt(before.inflation * before.variance / steps)
    return abs(mean - before.mean_seconds) > max(CHANGE * before.mean_seconds, error)


def with_few_steps(
    windows: Sequence[Estimate | str | None], workers: Sequence[RememberedWorker]
) -> list[Estimate | str | None]:
    """The windows with variances as certain as so few steps make them; `workers` are theirs, by rank."""
    squares, degrees = DEGREES * ASSUMED_VARIATION**2, DEGREES
    for window in windows:
        if isinstance(window, Estimate) and window.steps > 1:
            squares += (window.steps - 1) * window.variance / window.mean_seconds**2
            degrees += window.steps - 1
    usual = squares / degrees
    return [
        _shrunk(window, worker.step_time.before, usual) if isinstance(window, Estimate) else window
        for window, worker in zip(windows, workers, strict=True)
    ]


def _shrunk(window: Estimate, before: Estimate | None, usual: float) -> Estimate:
    known = usual if before is None else before.variance / before.mean_seconds**2
    degrees = max(window.steps - 1, 0.0)
    variance = (DEGREES * known * window.mean_seconds**2 + degrees * window.variance) / (DEGREES + degrees)
    return window._replace(variance=variance)
