"""Windows of a worker's steps become one estimate of its own time: steady under noise, quick after a real change.

Plain exponential smoothing at the papers' weight forgets all but about nine steps, and at a noise of 12 % per
step it would move batches for ever. So the windows since the plan began are averaged; a window that differs
by more than noise can explain, a jump, starts the average again. One of which that is not sure is set aside until the
next one: averaged, it would make noise of the jump, and hide it.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from heterotrain_operator.core.prediction.batch_cost import LEAST_SPAN
from heterotrain_operator.core.prediction.noise import LARGE
from heterotrain_operator.core.prediction.roughness import LONGEST_HISTORY, ROUGHEST
from heterotrain_operator.core.prediction.step_time import (
    ABSURD_SECONDS,
    BATCH_BEFORE,
    EXPECTED,
    FASTER,
    LEAST_VARIATION,
    NO_LESS,
    NO_MORE,
    SLOWER,
    Estimate,
)

JUMP = 0.08
"""Relative difference of a window below which it is never taken for a change of speed."""

JUMP_DEVIATIONS = 5.0
"""Standard errors by which a window must differ to be taken for a change of speed; the error of ten steps is itself
uncertain, so that four would give a false alarm in 500 windows."""

ASIDE_DEVIATIONS = 3.0
"""Standard errors by which a window must differ to be set aside till the next one says what it was. Tried: 2.5 to 3.5;
with less, noise moved more batches, and with more, jumps that noise hides were followed later."""

MANY_WORKERS = 32
"""Workers up to which these figures hold: of more, some worker's window differs so far by chance in each interval. At
512, under autoregressive noise of 0.9, they made 11 plans in 100 intervals, and make 2 with more caution."""

IN_DOUBT = 2.0
"""Standard errors by which a window of a worker in doubt differs, as these are under noise that lasts."""

GREATEST_SPEED_UP = 16.0
"""Times that a worker may be faster after a jump, whatever a window's variance says."""

MOST_VARIABLE = 4.0
"""Times the others' variance that a window's counts as at most in the variance of a step: a jump within a window would
else pass for noise, and hide in it from the next window, too. Tried: without a limit."""

LEAST_JUMP_STEPS = 2.0
"""Steps of a window at the new level that make a jump of it: a single one may be a stall. Tried: 2 to 4; with more,
speeds that change often are found an interval later."""

OUTLIER_RATIO = 20.0
"""A window this many times as variable as the others counts by as much less: it holds a stall or a change. Tried: 9 to
100, and no limit; with less, the mean of steps that sometimes take several times as long came out too short, and with
more, slow first steps were remembered for long."""


def follow(
    before: Estimate | None,
    window: Estimate,
    history: float = LONGEST_HISTORY,
    deviations: float = JUMP_DEVIATIONS,
) -> tuple[Estimate, bool]:
    """Take a window into the estimate; the second value says whether the speed jumped.

    It did if the window differs by more than so many standard `deviations`. If not, the window joins the average over
    the last windows, as many as `history`, weighted by steps; one that is far more variable than the rest (or the rest
    than it) counts less. After a jump the past says nothing: the estimate is the new level. Of a window that began
    before the jump, steps of both levels are in it, and how they vary tells how many: a part p of them, at a level that
    is D further, moves the mean by `p D` and adds `p (1 - p) D^2` to the variance.
    """
    if before is None:
        return window, False
    newer, older = _noisy(window), _noisy(before)
    seconds, mean = window.mean_seconds, before.mean_seconds
    difference = seconds - mean
    if abs(difference) > JUMP * mean:
        steps, inflation = window.steps, window.inflation
        part = difference**2 / (difference**2 + max(newer - older, 0.0))
        if abs(deviation_of(before, window)) > deviations and part * steps >= min(LEAST_JUMP_STEPS, steps):
            level = min(max(mean + difference / part, mean / GREATEST_SPEED_UP), ABSURD_SECONDS)
            variance = min(older * (level / mean) ** 2, steps * level**2)
            return Estimate(level, variance, part * steps, inflation), True
    return _pooled(before, window, newer / older, history), False


def caution_of(workers: int) -> float:
    """By how many times windows must differ more, so that no more of them are in doubt by chance than of 32 workers."""
    if workers <= MANY_WORKERS:
        return 1.0
    normal = NormalDist()
    return normal.inv_cdf(1 - normal.cdf(-IN_DOUBT) * MANY_WORKERS / workers) / IN_DOUBT


def side_of(before: Estimate, window: Estimate, deviations: float) -> int:
    """On which side of the estimate a window is that differs by more than so many standard errors, and may so show
    another speed: `SLOWER` or `FASTER`; 0 if it does not.
    """
    if abs(window.mean_seconds - before.mean_seconds) <= JUMP * before.mean_seconds:
        return 0
    deviation = deviation_of(before, window)
    if abs(deviation) <= deviations:
        return 0
    return SLOWER if deviation > 0 else FASTER


def deviation_of(before: Estimate, window: Estimate) -> float:
    """By how many standard errors a window differs from the estimate: of the logarithms of both, by the variance that
    was known before, for the window's own may be that of two levels.
    """
    variance = window.inflation * _noisy(before) * (1 / window.steps + 1 / before.steps)
    return before.mean_seconds * math.log(window.mean_seconds / before.mean_seconds) / math.sqrt(variance)


def expected_at(new_batch: int, old_batch: int) -> int:
    """What an estimate rests on at the start of a plan, by its batch and that of the plan before."""
    basis = EXPECTED + BATCH_BEFORE * old_batch
    if abs(new_batch - old_batch) >= LEAST_SPAN * old_batch:
        return basis
    return basis + (NO_MORE if new_batch <= old_batch else 0) + (NO_LESS if new_batch >= old_batch else 0)


def is_another_speed(basis: int, expected: Estimate, window: Estimate) -> bool:
    """Whether a plan's first window differs so from what was expected as no other batch explains: the step takes much
    longer with hardly fewer samples, or much less with hardly more. `basis` is what the expectation rests on.
    """
    ratio = window.mean_seconds / expected.mean_seconds
    return (ratio > 1 + LARGE and basis & NO_MORE > 0) or (ratio < 1 / (1 + LARGE) and basis & NO_LESS > 0)


def surprise_of(before: Estimate, window: Estimate) -> float:
    """By how many standard errors of independent steps a window exceeds what was measured before it."""
    variance = _noisy(before)
    error = math.sqrt(variance / window.steps + variance / before.steps)
    surprise = (window.mean_seconds - before.mean_seconds) / error
    return -ROUGHEST if surprise < -ROUGHEST else ROUGHEST if surprise > ROUGHEST else surprise


def _noisy(estimate: Estimate) -> float:
    """The variance of a step, of at least what windows are told apart by."""
    variance, least = estimate.variance, (LEAST_VARIATION * estimate.mean_seconds) ** 2
    return variance if variance > least else least


def _pooled(before: Estimate, window: Estimate, ratio: float, history: float) -> Estimate:
    """One estimate of both, where the window is `ratio` times as variable as those before it."""
    old, new, mean = before.steps, window.steps, before.mean_seconds
    old = history * new if old > history * new else old
    if ratio * OUTLIER_RATIO < 1:
        old *= OUTLIER_RATIO * ratio
    elif ratio > OUTLIER_RATIO:
        new *= OUTLIER_RATIO / ratio
    share = new / (old + new)
    difference = window.mean_seconds - mean
    most = MOST_VARIABLE * _noisy(before)
    own = window.variance if window.variance < most else most
    variance = (1 - share) * (before.variance + share * difference**2) + share * own
    return Estimate(mean + share * difference, variance, old + new, window.inflation)
