"""By how much a worker's own time follows its CPU limit: not every limit binds.

At first it is taken to follow in full, and is expected to as soon as the limit has changed. The first window after a
change shows how far it did, as sure as the window and what was expected of it are; a worker whose limit does nothing is
not moved by the next change of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.core.prediction.step_time import ABSURD_SECONDS, LEAST_SECONDS, Estimate, StepTime, counted

GREATEST_FEED_FORWARD = 16.0
"""Factor of a CPU limit's change that is believed at most before it is measured."""

LEAST_EFFECT = 0.08
"""Relative change of own time that a new limit must let expect to be acted on before it is measured."""

SAME_LIMIT = 1e-5
"""Relative difference below which two CPU limits are the same: more than the digits that are remembered leave out."""

LEAST_CHANGE = 0.1
"""Logarithm of the limits' ratio below which nothing is learned: noise would say more than the change."""

PRIOR_DEVIATION = 0.5
"""Standard deviation of the elasticity before a change was seen; it is between 0 and 1."""

GREATEST_GAIN = 0.8
"""Weight of the newest change at most, so that one window held up by something else does not decide alone."""


def feed_forward(
    known: StepTime,
    cpu_limit: float | None,
    metrics: WorkerMetrics,
    interval: int,
    factor_of: Callable[[float, float], float],
) -> tuple[StepTime, float]:
    """Expect own time to change with the CPU limit by a factor of the old and the new one, before it is measured; a new
    window begins.

    The second value is the factor by which a step is expected to take longer; 1 where the limit is the known one. The
    expectation weighs no more than one window: where the limit does not bind, the next one shows it as a
    jump. A step that no window may show is not expected either. See docs/design.md, "A changed CPU limit is followed
    before it is measured".
    """
    if cpu_limit is None or not 0 < cpu_limit < math.inf:
        return known, 1.0
    if known.cpu_limit <= 0:
        return known._replace(cpu_limit=cpu_limit), 1.0
    if cpu_limit == known.cpu_limit or same_limit(cpu_limit, known.cpu_limit):
        return known, 1.0
    in_full = factor_of(known.cpu_limit, cpu_limit)
    known = known._replace(cpu_limit=cpu_limit, limit_change=known.limit_change + 100 * math.log(in_full))
    ratio = in_full**known.elasticity
    expected = known.mean_seconds * ratio
    if abs(ratio - 1) < LEAST_EFFECT or (expected and not LEAST_SECONDS <= expected <= ABSURD_SECONDS):
        return known, 1.0
    scaled = known._replace(
        mean_seconds=expected,
        variance=known.variance * ratio**2,
        steps=min(known.steps, float(interval)),
    )
    return counted(scaled, metrics), ratio


def same_limit(one: float, other: float) -> bool:
    """Whether two CPU limits are one, of which either may have been cut to the digits that are remembered."""
    return math.isclose(one, other, rel_tol=SAME_LIMIT)


def factor_of_limits(old: float, new: float) -> float:
    """By how much longer a step is expected to take under the new CPU limit: the ratio of the limits, within bounds."""
    return min(max(old / new, 1 / GREATEST_FEED_FORWARD), GREATEST_FEED_FORWARD)


def after_window(known: StepTime, expected: Estimate | None, window: Estimate) -> StepTime:
    """Take in the first window after the limit has changed; `expected` is own time as it was expected of that."""
    if not known.limit_change:
        return known
    change = known.limit_change / 100
    known = known._replace(limit_change=0.0)
    if expected is None or abs(change) < LEAST_CHANGE:
        return known
    felt = known.elasticity + math.log(window.mean_seconds / expected.mean_seconds) / change
    noise = (window.relative_error**2 + expected.relative_error**2) / change**2
    gain = min(PRIOR_DEVIATION**2 / (PRIOR_DEVIATION**2 + noise), GREATEST_GAIN)
    unfelt = known.unfelt + gain * (100 * (1 - min(max(felt, 0.0), 1.0)) - known.unfelt)
    return known._replace(unfelt=round(unfelt))
