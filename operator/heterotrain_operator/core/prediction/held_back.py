"""Whether a worker's speed changed, by how much it is held back: what its steps compute has nothing to do with that.

CPU seconds per step are the cost of a batch. By how much longer a step takes, since the CPU limit holds the worker back
or others have the CPU, is its speed. So where both changed in one window, as they do when a neighbour comes or goes
while batches are moved, the counters tell one from the other, and by fewer steps than times alone.
"""

from __future__ import annotations

import math

from heterotrain_operator.core.prediction.noise import LARGE
from heterotrain_operator.core.prediction.resource_use import Cause, ResourceUse, Spent, threads_of
from heterotrain_operator.core.prediction.step_time import Estimate

OTHERWISE = 1.5
"""By what factor a worker must be held back more, or less, than before to show another speed. In recorded runs under a
limit that binds, windows differed by 1.1 from their mean, and by 1.35 beside a neighbour under the same limit, which
made two to three times of it. Own times vary by a third then, so that twice the time may be within the noise.
"""

BEYOND_LIMIT = 1.2
"""By what factor a worker must be held back more than its CPU limit alone can do to show that others are there."""

GREATEST = 1000.0
"""Factor that is remembered at most."""

UNITS = 100
"""Of a remembered factor."""


def held_back(spent: Spent | None, window: Estimate, cpu_limit: float) -> float:
    """By what factor a worker under this CPU limit (cores; 0: none that is known) was held back in a window of steps,
    of which each spent that: the seconds for which it computed, was held back by its limit or waited for a CPU, over
    those for which it computed. 0: not known, since not everything is counted that can hold it back.
    """
    if spent is None or not spent.cpu or spent.waited is None:
        return 0.0
    throttled = spent.throttled
    if (throttled is None) if cpu_limit > 0 else throttled:
        return 0.0
    held = throttled or 0.0
    if spent.waited > 0:
        held += max(threads_of(spent, window.mean_seconds), 1.0) * spent.waited
    return min(1 + held / spent.cpu, GREATEST)


def shows_another_speed(
    known: ResourceUse,
    now: float,
    *,
    ratio: float,
    cpu_limit: float,
    threads: float | None,
    at_new_batch: bool,
) -> bool:
    """Whether a window shows another speed, by what holds the worker back, however own times vary.

    The own time is `ratio` times what it was, or was expected to be at a new batch, under the same CPU limit (cores; 0:
    none that is known). A limit may hold a worker back more for a greater batch, since waiting saves up quota, and
    reading does. But it lets `threads` that compute side by side (None: not known) have what it allows, so who is, or
    was, held back for longer than that shares it with others.
    """
    before = known.held / UNITS
    if before <= 0 or now <= 0 or known.cause == Cause.LIMIT_CHANGED:
        return False
    change = now / before if now > before else before / now
    if change < OTHERWISE or not (ratio > 1 + LARGE if now > before else ratio < 1 / (1 + LARGE)):
        return False
    if not at_new_batch or cpu_limit <= 0:
        return True
    by_limit = max((threads or math.inf) / cpu_limit, 1.0)
    return max(before, now) > BEYOND_LIMIT * by_limit


def remembered(known: ResourceUse, after: ResourceUse, now: float, *, jumped: bool) -> ResourceUse:
    """The memory `after` a window in which a worker was held back by so much, and what was `known` before it: the
    logarithms' mean of both, or the window alone where the speed jumped, as of the own time.
    """
    held = known.held
    if now > 0:
        held = round(UNITS * now if jumped or held <= 0 else math.sqrt(held * UNITS * now))
    return ResourceUse(after.cpu, after.throttled, after.waited, after.cause, held)
