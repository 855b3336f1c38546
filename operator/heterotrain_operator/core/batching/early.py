"""Decisions before an interval is over, where the evidence suffices: after two or three steps at a gross imbalance.

Every look tests what was measured so far, by the same errors as any decision. The variance of two steps is itself
uncertain, so it is shrunk to what is known of the worker, of the others, and of workers in general.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from heterotrain.contract import Plan
from heterotrain_operator.core.batching.policies import POLICIES
from heterotrain_operator.core.model import Job, WorkerMetrics
from heterotrain_operator.core.prediction.step_time import ASSUMED_VARIATION, Estimate, StepTime, steps_since
from heterotrain_operator.core.state import Memory
from heterotrain_operator.core.worker_memory import LEFT_OUT, WorkerMemory

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


def is_due(job: Job, plan: Plan, metrics: Sequence[WorkerMetrics | None], memory: Memory) -> bool:
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
    windows: Sequence[Estimate | str | None], workers: Sequence[WorkerMemory]
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
