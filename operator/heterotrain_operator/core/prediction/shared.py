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
from statistics import fmean, median

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

ALIKE_ERRORS = 1.5
"""Errors of windows that the changes of workers with more samples may differ by if no batch stayed. Simulated changes of
speed differed by 0 to 1.5, what padding to 16 samples adds by 1.4 to 2.8, and a memory cliff by 3 to 7."""

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


def shared_by_moved(more: Sequence[Pair], fewer: Sequence[Pair], alike: Sequence[Pair]) -> float:
    """The same in the first windows of a plan that gave some workers `more` and others `fewer` samples, and left less
    than half those that they had.

    Of the cost of a batch little may be known then. But what that is off by makes steps of the former longer than
    expected where it makes those of the latter shorter, or the other way round. Only a change of speed makes both
    longer, or both shorter. Those whose batches stayed tell it best; without them the mean of both does, for the cost
    of samples is in it with both signs. But then those with more samples must have changed alike, as speeds do: padded
    batches may make all steps longer, and a limit of memory those of larger and smaller batches for unlike reasons, but
    each worker's by another factor.
    """
    if min(len(more), len(fewer)) < LEAST_MOVED:
        return 1.0
    found = [_usual_change(pairs) for pairs in (more, fewer, alike) if pairs]
    if len(alike) >= LEAST_MOVED:
        change = found[2]
    else:
        _, spread, error = _changes(more)
        change = fmean(found[:2]) if spread <= ALIKE_ERRORS * error else 0.0
    is_shared = (max(found) < 0 or min(found) > 0) and abs(change) > math.log1p(JUMP)
    most = math.log(GREATEST_SPEED_UP)
    return math.exp(min(max(change, -most), most)) if is_shared else 1.0


def _usual_change(pairs: Sequence[Pair]) -> float:
    """The logarithm of the median change; 0 where errors explain it: those of windows, or by which workers differ."""
    change, spread, error = _changes(pairs)
    return change if abs(change) > SURE_DEVIATIONS * max(spread, error) / math.sqrt(len(pairs)) else 0.0


def _changes(pairs: Sequence[Pair]) -> tuple[float, float, float]:
    """Of the changes' logarithms the median and by how much workers differ, and the relative error of a window."""
    changes = [math.log(window.mean_seconds / before.mean_seconds) for before, window in pairs]
    change = median(changes)
    spread = DEVIATION_OF_MEDIAN * median([abs(each - change) for each in changes])
    return change, spread, median([window.relative_error for _, window in pairs])


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
