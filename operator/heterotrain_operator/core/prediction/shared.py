"""A change of speed that workers share, told from what each one's own windows say.

Workers on one machine, or of one job, get slower and faster together: caches are cold after a change of plans, a
neighbour takes memory bandwidth, the host lowers its clock. Batches need not follow: no split makes up for it. If it
were taken for what each worker's windows vary by, no difference between workers would be known well enough to act on:
four recorded workers' windows fell by a sixth together after each change of plans, and for 60 steps none was believed
to be slow, though each window showed the same one to be so by a quarter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import starmap

from heterotrain_operator.core.prediction.jumps import (
    GREATEST_SPEED_UP,
    JUMP_DEVIATIONS,
    follow,
    side_of,
    surprise_of,
)
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


def shared_change(befores: Sequence[Estimate], windows: Sequence[Estimate]) -> float:
    """By how many times steps take longer than before, of three quarters of the workers at least; 1 where nothing shows
    it. `befores` are their estimates, or what is expected at nearly the same batches; `windows` came after them.

    Whose windows are jumps even beside that are left out, for beside them noise of the others would pass for a shared
    change. Where half jumped within their windows, these are means of two levels. They differ as little between
    workers as either level, if the change is alike in nearly all; if not, each worker's own steps tell the new one.
    """
    pairs = list(zip(befores, windows, strict=True))
    ratio = _shared(pairs)
    if ratio == 1:
        return ratio
    alone = zip(starmap(follow, pairs), windows, strict=True)
    within = [jumped and level.steps < WHOLE * window.steps for (level, jumped), window in alone]
    if 2 * sum(within) >= len(pairs):
        near = [side_of(before.scaled(ratio), window, JUMP_DEVIATIONS) == 0 for before, window in pairs]
        return ratio if sum(near) >= NEARLY_ALL * len(pairs) else 1.0
    alike = [pair for pair in pairs if share_of(*pair, ratio) != 1]
    return ratio if len(alike) == len(pairs) else _shared(alike)


def share_of(before: Estimate, window: Estimate, shared: float) -> float:
    """How much of a `shared` change a worker's estimate follows: all of it, or 1 where its window, which is a jump
    beside the shared change, shows that it has no part in it.
    """
    return 1.0 if shared == 1 or follow(before.scaled(shared), window)[1] else shared


def _shared(pairs: Sequence[tuple[Estimate, Estimate]]) -> float:
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
