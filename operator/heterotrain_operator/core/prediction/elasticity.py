"""By how much a worker's own time follows its CPU limit: not every limit binds.

At first it is taken to follow in full. The first window after a change shows how far it did, as sure as the window and
what was expected of it are; a worker whose limit does nothing is not moved by the next change of it.
"""

from __future__ import annotations

import math

from heterotrain_operator.core.prediction.step_time import Estimate, StepTime

LEAST_CHANGE = 0.1
"""Logarithm of the limits' ratio below which nothing is learned: noise would say more than the change."""

PRIOR_DEVIATION = 0.5
"""Standard deviation of the elasticity before a change was seen; it is between 0 and 1."""

GREATEST_GAIN = 0.8
"""Weight of the newest change at most, so that one window held up by something else does not decide alone."""


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
