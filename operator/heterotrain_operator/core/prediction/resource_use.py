"""Why a worker's own time changed: by what its steps spent, before and after, on computing, held back by the CPU limit,
waiting for a CPU that others used, and none of these.

Figures are compared per step, and their difference with that of the own time: what explains most of it is named. Shares
of wall time would not do, since a worker that becomes the slowest stops waiting for the others.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, NamedTuple

from heterotrain.foreign import MAX_WHOLE
from heterotrain_operator.core.columns import Column
from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.core.prediction.step_time import LEAST_SECONDS, Estimate

EXPLAINS = 0.5
"""Part of a change that a figure must account for to be its explanation: two cannot be more than half of it each.
Recorded runs with a neighbour on the same CPU had 0.8 to 1.1, and those of a script that sleeps 0.9 to 1.0."""

GREATEST_PART = 2.0
"""Part of a change that CPU time is believed to account for; chosen, not measured. A change that is all CPU time gives
1, and somewhat more where a limit binds."""

LEAST_SHARE = 0.1
"""Of its own time that a worker must still be held back, or wait, for this to go on slowing it."""

UNITS = 100.0
"""Of a baseline, per second."""

WRAP = 99_999
"""Baselines are remainders of this, and one more, so that five digits hold them at full resolution however long the
plan is."""

AT_0 = 1
"""The baseline of a counter that was 0."""

LONGEST_WINDOW_SECONDS = 0.5 * WRAP / UNITS
"""Of own time: a longer window's counters may have passed their baselines again."""


class Cause(IntEnum):
    """What slowed a worker; the numbers are stored."""

    NONE = 0
    LIMIT_CHANGED = 1  # no window has ended since: its speed is to change
    CPU_LIMIT = 2  # the limit, which is the same, holds it back for longer
    NEIGHBOUR = 3  # it waits for a CPU that others use
    COMPUTATION = 4  # its steps take more CPU time
    SCRIPT = 5  # neither: it waits for something of its own


NAMES = {
    Cause.CPU_LIMIT: "CPULimit",
    Cause.NEIGHBOUR: "Neighbour",
    Cause.COMPUTATION: "Computation",
    Cause.SCRIPT: "Script",
}
"""As a job's status has them; the others slow nobody."""


def name_of(cause: int) -> str:
    """What slows a worker, as a job's status has it; empty if nothing is known to, or a newer version stored it."""
    return NAMES[Cause(cause)] if cause in NAMES else ""


class ResourceUse(NamedTuple):
    """What is remembered of a worker's use of the CPU: its counters as they were when the last window ended, in
    hundredths of a second modulo `WRAP`, and one more (0: not known), and what slowed it last.
    """

    cpu: Annotated[int, Column(34)] = 0
    throttled: Annotated[int, Column(35)] = 0
    waited: Annotated[int, Column(36)] = 0
    cause: Annotated[int, Column(37)] = 0

    def unmeasured(self) -> ResourceUse:
        """At the start of another plan, whose counters begin at 0."""
        return ResourceUse(cause=self.cause)

    def at_new_limit(self, metrics: WorkerMetrics) -> ResourceUse:
        """With a window that begins here, in which another limit changes the speed."""
        return _baseline(metrics, Cause.LIMIT_CHANGED)


class Spent(NamedTuple):
    """Seconds per step: CPU time and throttling summed over threads and CPUs, waiting as a mean; None: not known."""

    cpu: float | None
    throttled: float | None
    waited: float | None


class Explanation(NamedTuple):
    """What most of a change of own time comes from, and that in words."""

    cause: Cause
    words: str


def uncounted(known: ResourceUse, metrics: WorkerMetrics) -> ResourceUse:
    """The memory where the next window begins here, and nothing is known of the last one."""
    return _baseline(metrics, known.cause)


def window_closed(
    known: ResourceUse,
    metrics: WorkerMetrics,
    window: Estimate,
    *,
    before: Estimate | None,
    jumped: bool,
    at_new_batch: bool,
    on_cpu: bool,
) -> tuple[ResourceUse, str]:
    """The memory after a window of steps, and why the own time jumped, if it did, in words; empty if nobody can say.

    `before` is the estimate of the steps before the window. `at_new_batch`: these were of the plan before, at another
    batch, which only waiting for a CPU has nothing to do with: that it begins or ends is all that can be said.
    `on_cpu`: the own time is that of the host's CPU, and not of a GPU, for which it may well wait.
    """
    if known.cause == Cause.LIMIT_CHANGED:
        return _baseline(metrics), "its CPU limit changed" if jumped else ""
    if metrics.observed_seconds is None:
        return _baseline(metrics, known.cause), ""
    if not known.cause and not jumped:
        return _baseline(metrics), ""
    spent = _of_window(known, metrics, window)
    if not jumped:
        return _baseline(metrics, known.cause if _goes_on(known.cause, spent, window) else Cause.NONE), ""
    if spent is None or before is None:
        return _baseline(metrics), ""
    slower = window.mean_seconds > before.mean_seconds
    if at_new_batch:
        return _at_new_batch(known, metrics, spent, window, before)
    if not slower and known.cause:
        return _baseline(metrics), _over(known.cause, spent, window)
    earlier, earlier_seconds = _of_steps_before(spent, metrics, window, before)
    if slower != (window.mean_seconds > earlier_seconds):
        return _baseline(metrics), ""  # it jumped before, so what all steps before spent in the mean tells nothing
    found = explained(earlier, spent, earlier_seconds, window.mean_seconds, on_cpu=on_cpu)
    if found is None:
        return _baseline(metrics), ""
    return _baseline(metrics, found.cause if slower else Cause.NONE), found.words


def _at_new_batch(
    known: ResourceUse, metrics: WorkerMetrics, spent: Spent, window: Estimate, before: Estimate
) -> tuple[ResourceUse, str]:
    if spent.waited is None:
        return _baseline(metrics, known.cause), ""
    waits = known.cause == Cause.NEIGHBOUR
    if window.mean_seconds > before.mean_seconds:
        if waits or spent.waited < EXPLAINS * (window.mean_seconds - before.mean_seconds):
            return _baseline(metrics, known.cause), ""
        words = f"it waited for a CPU {_shares(spent.waited, None, window.mean_seconds, 1)}: a neighbour"
        return _baseline(metrics, Cause.NEIGHBOUR), words
    if not waits or _goes_on(known.cause, spent, window):
        return _baseline(metrics, known.cause), ""
    return _baseline(metrics), _over(known.cause, spent, window)


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


def _totals(metrics: WorkerMetrics) -> tuple[float | None, float | None, float | None]:
    return metrics.cpu_seconds, metrics.cpu_throttled_seconds, metrics.cpu_wait_seconds


def _baseline(metrics: WorkerMetrics, cause: int = Cause.NONE) -> ResourceUse:
    if metrics.observed_seconds is None:
        return ResourceUse(0, 0, 0, int(cause))
    return ResourceUse(
        _remainder(metrics.cpu_seconds),
        _remainder(metrics.cpu_throttled_seconds),
        _remainder(metrics.cpu_wait_seconds),
        int(cause),
    )


def _remainder(seconds: float | None) -> int:
    return int(seconds * UNITS) % WRAP + AT_0 if seconds is not None and 0 <= seconds <= MAX_WHOLE else 0


def _since(total: float | None, baseline: int) -> float | None:
    """Seconds since a baseline; None if the counter is not known, now or then, or has counted less."""
    if total is None or not 0 <= total <= MAX_WHOLE or baseline < AT_0:
        return None
    since = (int(total * UNITS) - (baseline - AT_0)) % WRAP / UNITS
    return since if since <= total else None


def _of_window(known: ResourceUse, metrics: WorkerMetrics, window: Estimate) -> Spent | None:
    """Per step of the window; None if it is too long for its baselines, or if a counter is known at one end only: what
    that counted is missing in the others' sum, or held to be waiting.
    """
    if window.steps * window.mean_seconds > LONGEST_WINDOW_SECONDS:
        return None
    # The first window of a plan, or after counters that began again, holds all that was counted.
    totals = _totals(metrics)
    begun = known[:3] if metrics.steps > window.steps else [0 if total is None else AT_0 for total in totals]
    since = [_since(total, baseline) for total, baseline in zip(totals, begun, strict=True)]
    if any(
        each is None and (total is not None or base) for each, total, base in zip(since, totals, begun, strict=True)
    ):
        return None
    return Spent(*(None if each is None else each / window.steps for each in since))


def _of_steps_before(spent: Spent, metrics: WorkerMetrics, window: Estimate, before: Estimate) -> tuple[Spent, float]:
    """Per step of those before the window what they spent and their own seconds, in the mean: what is not the window's
    of the counters. Of a plan's first window only the time is known that was expected.
    """
    steps = metrics.steps - window.steps
    own = metrics.own_seconds - window.steps * window.mean_seconds
    if steps < 1 or own < LEAST_SECONDS * steps:
        return Spent(None, None, None), before.mean_seconds
    spent_before = (
        None if total is None or each is None else max(total - each * window.steps, 0.0) / steps
        for total, each in zip(_totals(metrics), spent, strict=True)
    )
    return Spent(*spent_before), own / steps
