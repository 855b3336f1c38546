"""Why a worker's own time changed: by what its steps spent, before and after, on computing, held back by the CPU limit,
waiting for a CPU that others used, and none of these.

Figures are compared per step, and their difference with that of the own time: what explains most of it is named. Shares
of wall time would not do, since a worker that becomes the slowest stops waiting for the others.

CPU seconds per step are the cost of a batch. By how much longer a step takes, since the CPU limit holds the worker back
or others have the CPU, is its speed. So where both changed in one window, as they do when a neighbour comes or goes
while batches are moved, the counters tell one from the other, and by fewer steps than times alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.core.prediction.noise import LARGE
from heterotrain_operator.core.prediction.resource_use import (
    Cause,
    ResourceUse,
    Spent,
    baseline,
    of_steps_before,
    spent_in,
    threads_of,
)
from heterotrain_operator.core.prediction.step_time import Estimate

EXPLAINS = 0.5
"""Part of a change that a figure must account for to be its explanation: two cannot be more than half of it each.
Recorded runs with a neighbour on the same CPU had 0.8 to 1.1, and those of a script that sleeps 0.9 to 1.0."""

GREATEST_PART = 2.0
"""Part of a change that CPU time is believed to account for; chosen, not measured. A change that is all CPU time gives
1, and somewhat more where a limit binds."""

LEAST_SHARE = 0.1
"""Of its own time that a worker must still be held back, or wait, for this to go on slowing it."""


class Explanation(NamedTuple):
    """What most of a change of own time comes from, and that in words."""

    cause: Cause
    words: str


def window_closed(
    known: ResourceUse,
    metrics: WorkerMetrics,
    window: Estimate,
    *,
    before: Estimate | None,
    jumped: bool,
    at_new_batch: bool,
    on_cpu: bool,
    held_otherwise: bool = False,
    cpu_limit: float = 0.0,
) -> tuple[ResourceUse, str]:
    """The memory after a window of steps, and why the own time jumped, if it did, in words; empty if nobody can say.

    `before` is the estimate of the steps before the window. `at_new_batch`: these were of the plan before, at another
    batch, which only waiting for a CPU has nothing to do with: that it begins or ends is all that can be said, unless
    the worker is `held_otherwise`, for what holds it back under its `cpu_limit` (cores; 0: none that is known) shows
    another speed. `on_cpu`: the own time is that of the host's CPU, and not of a GPU, for which it may well wait.
    """
    if known.cause == Cause.LIMIT_CHANGED:
        return baseline(metrics), "its CPU limit changed" if jumped else ""
    if metrics.observed_seconds is None:
        return baseline(metrics, known.cause), ""
    if not known.cause and not jumped:
        return baseline(metrics), ""
    spent = spent_in(known, metrics, window)
    if not jumped:
        return baseline(metrics, known.cause if _goes_on(known.cause, spent, window) else Cause.NONE), ""
    if spent is None or before is None:
        return baseline(metrics), ""
    slower = window.mean_seconds > before.mean_seconds
    if at_new_batch:
        if held_otherwise:
            return _held_at_new_batch(known, metrics, spent, window, before, cpu_limit=cpu_limit)
        return _at_new_batch(known, metrics, spent, window, before)
    if not slower and known.cause:
        return baseline(metrics), _over(known.cause, spent, window)
    earlier, earlier_seconds = of_steps_before(spent, metrics, window, before)
    if slower != (window.mean_seconds > earlier_seconds):
        return baseline(metrics), ""  # it jumped before, so what all steps before spent in the mean tells nothing
    found = explained(earlier, spent, earlier_seconds, window.mean_seconds, on_cpu=on_cpu)
    if found is None:
        return baseline(metrics), ""
    return baseline(metrics, found.cause if slower else Cause.NONE), found.words


def _at_new_batch(
    known: ResourceUse, metrics: WorkerMetrics, spent: Spent, window: Estimate, before: Estimate
) -> tuple[ResourceUse, str]:
    if spent.waited is None:
        return baseline(metrics, known.cause), ""
    waits = known.cause == Cause.NEIGHBOUR
    if window.mean_seconds > before.mean_seconds:
        if waits or spent.waited < EXPLAINS * (window.mean_seconds - before.mean_seconds):
            return baseline(metrics, known.cause), ""
        words = f"it waited for a CPU {_shares(spent.waited, None, window.mean_seconds, 1)}: a neighbour"
        return baseline(metrics, Cause.NEIGHBOUR), words
    if not waits or _goes_on(known.cause, spent, window):
        return baseline(metrics, known.cause), ""
    return baseline(metrics), _over(known.cause, spent, window)


def _held_at_new_batch(
    known: ResourceUse, metrics: WorkerMetrics, spent: Spent, window: Estimate, before: Estimate, *, cpu_limit: float
) -> tuple[ResourceUse, str]:
    """Of a worker that is held back otherwise than before. What its limit alone may do is not what slows it."""
    seconds, waited, throttled = window.mean_seconds, spent.waited or 0.0, spent.throttled or 0.0
    threads = max(threads_of(spent, seconds), 1.0)
    by_limit = (spent.cpu or 0.0) * max(threads / cpu_limit - 1, 0.0) if cpu_limit > 0 else 0.0
    cause = Cause.CPU_LIMIT if throttled - by_limit > threads * waited else Cause.NEIGHBOUR
    if seconds < before.mean_seconds:
        slowed = known.cause in (Cause.CPU_LIMIT, Cause.NEIGHBOUR)
        left = baseline(metrics, Cause.NONE if slowed else known.cause)
        return left, _over(known.cause if slowed else cause, spent, window)
    if cause == Cause.NEIGHBOUR:
        return baseline(metrics, cause), f"it waited for a CPU {_shares(waited, None, seconds, 1)}: a neighbour"
    held = _shares(throttled, None, seconds * threads, 1)
    return baseline(metrics, cause), f"its unchanged CPU limit held it back {held}: a fault, or a neighbour under it"


def explained(
    earlier: Spent, spent: Spent, earlier_seconds: float, seconds: float, *, on_cpu: bool
) -> Explanation | None:
    """What a change of own seconds per step comes from, of a worker under the same limit and the same batch; None where
    the figures do not tell.

    More CPU time per step counts first: where a limit binds, it alone makes the limit hold the worker back for longer.
    Counters go on between measured steps, too: CPU time that the change of own time contradicts was used by something
    else, such as an evaluation, and then no figure tells of the steps alone. It counts nothing of a worker on a GPU,
    for which the host may wait in a loop. For what several threads are held back is taken as if all that compute were
    so at once. A limit that binds holds a healthy worker back, too, so it is not blamed where nothing is known of
    before; of waiting for a CPU a healthy worker has little.
    """
    change = seconds - earlier_seconds
    if change == 0:
        return None
    slower = change > 0
    if on_cpu and spent.cpu is not None and earlier.cpu:
        more = spent.cpu / earlier.cpu - 1
        part = more * earlier_seconds / change
        if not -EXPLAINS < part < GREATEST_PART:
            return None
        if part >= EXPLAINS:
            words = f"it used {abs(100 * more):.0f} % {'more' if slower else 'less'} CPU time per step"
            cause = ": the script does more, or its CPU is slower" if slower else ""
            return Explanation(Cause.COMPUTATION, words + cause)
    threads = max((earlier.cpu or 0.0) / earlier_seconds, 1.0)
    computed, throttled, waited = (
        (now - (was or 0.0)) / count / change if now is not None else 0.0
        for now, was, count in zip(spent, earlier, (threads, threads, 1.0), strict=True)
    )
    if earlier.throttled is not None and throttled >= max(EXPLAINS, waited):
        shares = _shares(spent.throttled, earlier.throttled, seconds * threads, earlier_seconds * threads)
        end = ": a fault, or a neighbour under the same limit" if slower else ""
        return Explanation(Cause.CPU_LIMIT, f"its unchanged CPU limit held it back {shares}{end}")
    if waited >= EXPLAINS:
        shares = _shares(spent.waited, earlier.waited, seconds, earlier_seconds)
        return Explanation(Cause.NEIGHBOUR, f"it waited for a CPU {shares}{': a neighbour' if slower else ''}")
    if not on_cpu or spent.waited is None or spent.cpu is None or earlier.cpu is None:
        return None
    if 1 - sum(max(part, 0.0) for part in (computed, throttled, waited)) < EXPLAINS:
        return None
    words = "it used no more CPU time and waited for no CPU" if slower else "it waits less, and not for a CPU"
    return Explanation(Cause.SCRIPT, f"{words}: the script itself (input, output, a lock)")


def _shares(now: float | None, was: float | None, seconds: float, earlier_seconds: float) -> str:
    """Of own time: "55 % of the time, 3 % before"; where the shares are nearly the same, per step."""
    spent = now or 0.0
    share = min(spent / seconds, 1.0)
    text = f"{100 * share:.0f} % of the time"
    if was is None:
        return text
    before = min(was / earlier_seconds, 1.0)
    if abs(share - before) < LEAST_SHARE:
        return f"{1000 * spent:.3g} ms per step, {1000 * was:.3g} ms before"
    return f"{text}, {100 * before:.0f} % before"


def _over(cause: int, spent: Spent, window: Estimate) -> str:
    """How a worker got faster that something had slowed, in words."""
    if cause == Cause.CPU_LIMIT and spent is not None and spent.throttled is not None:
        return f"its CPU limit holds it back {_shares(spent.throttled, None, window.mean_seconds, 1)} now"
    if cause == Cause.NEIGHBOUR and spent is not None and spent.waited is not None:
        return f"it waits for a CPU {_shares(spent.waited, None, window.mean_seconds, 1)} now"
    return "what slowed it is over"


def _goes_on(cause: int, spent: Spent | None, window: Estimate) -> bool:
    """Whether what slowed the worker still does, as far as the last window shows."""
    if spent is None or cause not in (Cause.CPU_LIMIT, Cause.NEIGHBOUR):
        return True
    seconds = spent.throttled if cause == Cause.CPU_LIMIT else spent.waited
    return seconds is None or seconds >= LEAST_SHARE * window.mean_seconds


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
