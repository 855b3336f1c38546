"""A change of speed that workers share, told from what each one's own windows say.

Workers on one machine, or of one job, get slower and faster together: caches are cold after a change of plans, a script
warms up, a neighbour takes memory bandwidth, the host lowers its clock. Batches need not follow: no split makes up for
it. If it were taken for what each worker's windows vary by, no difference between workers would be known well enough to
act on: four recorded workers' windows fell by a sixth together after each change of plans, and for 60 steps none was
believed to be slow, though each window showed the same one to be so by a quarter. And if it were taken for the cost of
the batches that a plan moves meanwhile, more samples would seem to cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import starmap
from statistics import median
from typing import NamedTuple

from heterotrain_operator.core.prediction.jumps import (
    GREATEST_SPEED_UP,
    JUMP,
    JUMP_DEVIATIONS,
    follow,
    side_of,
    surprise_of,
)
from heterotrain_operator.core.prediction.noise import DEVIATION_OF_MEDIAN
from heterotrain_operator.core.prediction.step_time import Estimate

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
