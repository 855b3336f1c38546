"""Windows of a worker's steps become one estimate of its own time: steady under noise, quick after a real change.

Plain exponential smoothing at the papers' weight forgets all but about nine steps, and at a noise of 12 % per
step it would move batches for ever. So the windows since the plan began are averaged; a window that differs
by more than noise can explain, a jump, starts the average again. One of which that is not sure is set aside until the
next one: averaged, it would make noise of the jump, and hide it.

A change of speed that workers share is told from what each one's own windows say. Workers on one machine, or of one
job, get slower and faster together: caches are cold after a change of plans, a script warms up, a neighbour takes
memory bandwidth, the host lowers its clock. Batches need not follow: no split makes up for it. If it were taken for
what each worker's windows vary by, no difference between workers would be known well enough to act on: four recorded
workers' windows fell by a sixth together after each change of plans, and for 60 steps none was believed to be slow,
though each window showed the same one to be so by a quarter. And if it were taken for the cost of the batches that a
plan moves meanwhile, more samples would seem to cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import starmap
from statistics import NormalDist, median
from typing import NamedTuple

from heterotrain_operator.core.prediction.batch_cost import LEAST_SPAN
from heterotrain_operator.core.prediction.noise import DEVIATION_OF_MEDIAN, LARGE
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


SHARE = 0.75
"""Of the workers that must have changed at least so far, in one direction."""

SURE_DEVIATIONS = 2.0
"""Standard errors of their sum by which windows must differ to show a shared change. A change that is taken for one by
chance does little: what differs between workers stays as it is."""

MOST_DEVIATIONS = 2.0
"""Standard errors that one worker's window counts as at most, so that one whose speed jumped does not decide alone."""

EACH_DEVIATIONS = 1.0
"""Standard errors that it must be for three quarters of them at least: beside workers that jumped less is noise."""

WHOLE = 0.8
"""Part of a window's steps that must be at the new level for its mean to be that level."""

NEARLY_ALL = 0.9
"""Of the workers in which a change within the windows must be alike."""

LEAST_MOVED = 2
"""Workers with more samples than before, and as many with fewer, that can show a shared change."""

LEAST_POWER, MOST_POWER = -1.0, 0.5
"""By what power of the batch times may differ from what is expected: from steps that no sample makes longer, where all
samples were taken to cost alike, to those that grow as b^1.5. Beyond that, workers' speeds have changed in unlike ways.
Tried: -0.9, which does as well, and no bounds; then three of five workers, that alone became three times slower as a
plan came, kept a split that was 10 to 19 % off for five intervals, instead of one."""

ALIKE_ERRORS, ALIKE_PART = 1.5, 0.25
"""Errors of windows, or the part of a shared change, by which times of moved workers may differ beside what samples
cost. Simulated speeds that changed together differed by 0 to 1.3 errors, memory cliffs mostly by 3 to 7."""

Pair = tuple[Estimate, Estimate]
"""What is known, or expected, of a worker, and its window after that."""


def shared_change(pairs: Sequence[Pair]) -> float:
    """By how many times steps take longer than before, of three quarters of the workers at least; 1 where nothing shows
    it. Each pair is a worker's estimate, or what is expected at nearly the same batch, and the window after that.

    Whose windows are jumps even beside that are left out, for beside them noise of the others would pass for a shared
    change. Where half jumped within their windows, these are means of two levels. They differ as little between
    workers as either level, if the change is alike in nearly all; if not, each worker's own steps tell the new one.
    """
    ratio = _shared(pairs)
    if ratio == 1:
        return ratio
    alone = zip(starmap(follow, pairs), pairs, strict=True)
    within = [jumped and level.steps < WHOLE * window.steps for (level, jumped), (_, window) in alone]
    if 2 * sum(within) >= len(pairs):
        near = [side_of(before.scaled(ratio), window, JUMP_DEVIATIONS) == 0 for before, window in pairs]
        return ratio if sum(near) >= NEARLY_ALL * len(pairs) else 1.0
    alike = [pair for pair in pairs if share_of(*pair, ratio) != 1]
    return ratio if len(alike) == len(pairs) else _shared(alike)


class Moved(NamedTuple):
    """A worker's window at another batch than before, as logarithms: `by` of this batch over that one, `change` of its
    seconds over those that were expected. `error` is a standard error of `change`.
    """

    by: float
    change: float
    error: float


def moved(times: float, expected: Estimate, window: Estimate) -> Moved:
    """The window at so many times the batch before."""
    return Moved(math.log(times), math.log(window.mean_seconds / expected.mean_seconds), window.relative_error)


def shared_by_moved(moves: Sequence[Moved], alike: Sequence[Pair]) -> float:
    """The same in the first windows of a plan that moved most batches, and left less than half what they were.

    Of the cost of a batch little may be known then. But what that is off by grows with how far the batch is moved: it
    makes steps longer than expected with more samples and shorter with fewer, or the other way round. A change of speed
    is what is left at an unmoved batch, of a line through the medians of those with more and of those with fewer. Those
    whose batches stayed tell it best. Without them the others must be near that line, as speeds that change together
    are: padded batches make the steps of all longer, too, and a limit of memory those of many, but not by one factor.
    """
    more = [each for each in moves if each.by > 0]
    fewer = [each for each in moves if each.by < 0]
    if min(len(more), len(fewer)) < LEAST_MOVED:
        return 1.0
    change, is_near = _at_unmoved(more, fewer)
    if len(alike) >= LEAST_MOVED:
        stayed = _usual_change(alike)
        change = stayed if change * stayed > 0 else 0.0
    elif not is_near:
        return 1.0
    if abs(change) <= math.log1p(JUMP):
        return 1.0
    most = math.log(GREATEST_SPEED_UP)
    return math.exp(min(max(change, -most), most))


def _at_unmoved(more: Sequence[Moved], fewer: Sequence[Moved]) -> tuple[float, bool]:
    """The change at an unmoved batch, of a line through the medians; 0 where errors explain it, or where no cost of
    samples gives such a line. And whether most workers are near the line.
    """
    more_by, more_change = median([each.by for each in more]), median([each.change for each in more])
    fewer_by, fewer_change = median([each.by for each in fewer]), median([each.change for each in fewer])
    power = (more_change - fewer_change) / (more_by - fewer_by)
    if not LEAST_POWER <= power <= MOST_POWER:
        return 0.0, False
    change = more_change - power * more_by
    every = [*more, *fewer]
    spread = DEVIATION_OF_MEDIAN * median([abs(each.change - change - power * each.by) for each in every])
    error = median([each.error for each in every])
    weight_of_fewer = more_by / (more_by - fewer_by)
    errors = math.hypot((1 - weight_of_fewer) / math.sqrt(len(more)), weight_of_fewer / math.sqrt(len(fewer)))
    is_sure = abs(change) > SURE_DEVIATIONS * errors * max(spread, error)
    return change if is_sure else 0.0, spread <= max(ALIKE_ERRORS * error, ALIKE_PART * abs(change))


def _usual_change(pairs: Sequence[Pair]) -> float:
    """The logarithm of the median change; 0 where errors explain it: those of windows, or by which workers differ."""
    changes = [math.log(window.mean_seconds / before.mean_seconds) for before, window in pairs]
    change = median(changes)
    spread = max(
        DEVIATION_OF_MEDIAN * median([abs(each - change) for each in changes]),
        median([window.relative_error for _, window in pairs]),
    )
    return change if abs(change) > SURE_DEVIATIONS * spread / math.sqrt(len(pairs)) else 0.0


def share_of(before: Estimate, window: Estimate, shared: float) -> float:
    """How much of a `shared` change a worker's estimate follows: all of it, or 1 where its window, which is a jump
    beside the shared change, shows that it has no part in it.
    """
    return 1.0 if shared == 1 or follow(before.scaled(shared), window)[1] else shared


def _shared(pairs: Sequence[Pair]) -> float:
    if len(pairs) < 2:
        return 1.0
    deviations = [surprise_of(before, window) / math.sqrt(before.inflation) for before, window in pairs]
    total = math.fsum([min(max(each, -MOST_DEVIATIONS), MOST_DEVIATIONS) for each in deviations])
    if abs(total) < SURE_DEVIATIONS * math.sqrt(len(pairs)):
        return 1.0
    least = math.ceil(SHARE * len(pairs)) - 1
    deviation = sorted(deviations, reverse=total > 0)[least]  # the farthest first
    if math.copysign(1.0, total) * deviation < EACH_DEVIATIONS:
        return 1.0
    ratios = sorted([window.mean_seconds / before.mean_seconds for before, window in pairs], reverse=total > 0)
    return min(max(ratios[least], 1 / GREATEST_SPEED_UP), GREATEST_SPEED_UP)
