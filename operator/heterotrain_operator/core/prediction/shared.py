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

from heterotrain_operator.core.prediction.jumps import GREATEST_SPEED_UP, follow, surprise_of
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


def shared_change(befores: Sequence[Estimate], windows: Sequence[Estimate]) -> float:
    """By how many times steps take longer than before, of three quarters of the workers at least; 1 where nothing shows
    it. `befores` are their estimates, or what is expected at nearly the same batches; `windows` came after them.

    Whose windows are jumps even beside that are left out, for beside them noise of the others would pass for a shared
    change; where they are half of all, nothing is shared. A change that began within the windows makes these means of
    two levels, which differ as little between workers as either level: what is left of it shows in the next windows.
    """
    pairs = list(zip(befores, windows, strict=True))
    ratio = _shared(pairs)
    if ratio == 1:
        return ratio
    alike = [pair for pair in pairs if share_of(*pair, ratio) != 1]
    if 2 * len(alike) <= len(pairs):
        return 1.0
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
