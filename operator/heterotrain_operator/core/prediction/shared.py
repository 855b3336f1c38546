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

from heterotrain_operator.core.prediction.jumps import GREATEST_SPEED_UP, surprise_of
from heterotrain_operator.core.prediction.step_time import Estimate

SHARE = 0.75
"""Of the workers that must have changed at least so far, in one direction."""

SURE_DEVIATIONS = 2.0
"""Standard errors of their sum by which windows must differ to show a shared change. A change that is taken for one by
chance does little: what differs between workers stays as it is."""

MOST_DEVIATIONS = 2.0
"""Standard errors that one worker's window counts as at most, so that one whose speed jumped does not decide alone."""


def shared_change(befores: Sequence[Estimate], windows: Sequence[Estimate]) -> float:
    """By how many times steps take longer than before, of three quarters of the workers at least; 1 where nothing shows
    it. `befores` are their estimates, or what is expected at nearly the same batches; `windows` came after them.
    """
    if len(befores) < 2:
        return 1.0
    deviations = [
        surprise_of(before, window) / math.sqrt(before.inflation)
        for before, window in zip(befores, windows, strict=True)
    ]
    total = math.fsum([min(max(each, -MOST_DEVIATIONS), MOST_DEVIATIONS) for each in deviations])
    if abs(total) < SURE_DEVIATIONS * math.sqrt(len(deviations)):
        return 1.0
    ratios = [window.mean_seconds / before.mean_seconds for before, window in zip(befores, windows, strict=True)]
    ratios.sort(reverse=total > 0)  # the farthest first
    ratio = ratios[math.ceil(SHARE * len(ratios)) - 1]
    return min(max(ratio, 1.0), GREATEST_SPEED_UP) if total > 0 else max(min(ratio, 1.0), 1 / GREATEST_SPEED_UP)
