"""What steps spent on computing, held back by the CPU limit, and waiting for a CPU that others used: from a worker's
counters now, and as they were when the last window ended.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, NamedTuple

from heterotrain.foreign import MAX_WHOLE
from heterotrain_operator.core.columns import Column
from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.core.prediction.step_time import LEAST_SECONDS, Estimate

UNITS = 100.0
"""Of a baseline, per second."""

WRAP = 99_999
"""Baselines are remainders of this, and one more, so that five digits hold them at full resolution however long the
plan is."""

AT_0 = 1
"""The baseline of a counter that was 0."""

LONGEST_WINDOW_SECONDS = 0.5 * WRAP / UNITS
"""Of own time, times the threads that compute: a longer window's counters may have passed their baselines again."""

LEAST_RUNNING = 0.05
"""Of own time, in which a worker does not wait for a CPU, whatever its counters say."""


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

    `held` says by how much it is held back, in hundredths, as `held_back` of `causes.py` has it.
    """

    cpu: Annotated[int, Column(34)] = 0
    throttled: Annotated[int, Column(35)] = 0
    waited: Annotated[int, Column(36)] = 0
    cause: Annotated[int, Column(37)] = 0
    held: Annotated[int, Column(56)] = 0

    def unmeasured(self) -> ResourceUse:
        """At the start of another plan, whose counters begin at 0."""
        return ResourceUse(cause=self.cause, held=self.held)

    def at_new_limit(self, metrics: WorkerMetrics) -> ResourceUse:
        """With a window that begins here, in which another limit changes the speed."""
        return baseline(metrics, Cause.LIMIT_CHANGED)


class Spent(NamedTuple):
    """Seconds per step: CPU time and throttling summed over threads and CPUs, waiting as a mean; None: not known."""

    cpu: float | None
    throttled: float | None
    waited: float | None


def uncounted(known: ResourceUse, metrics: WorkerMetrics) -> ResourceUse:
    """The memory where the next window begins here, and nothing is known of the last one."""
    return baseline(metrics, known.cause)._replace(held=known.held)


def _totals(metrics: WorkerMetrics) -> tuple[float | None, float | None, float | None]:
    return metrics.cpu_seconds, metrics.cpu_throttled_seconds, metrics.cpu_wait_seconds


def baseline(metrics: WorkerMetrics, cause: int = Cause.NONE) -> ResourceUse:
    """The counters as the next window finds them, and what slows the worker."""
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


UNTOLD = -1.0
"""Seconds that cannot be told, of a counter that there is."""


def _since(total: float | None, baseline: int) -> float | None:
    """Seconds since a baseline; None if there is no such counter, and `UNTOLD` if it is known at one end only, or has
    counted less.
    """
    if total is None:
        return UNTOLD if baseline else None
    if baseline < AT_0 or not 0 <= total <= MAX_WHOLE:
        return UNTOLD
    since = (int(total * UNITS) - (baseline - AT_0)) % WRAP / UNITS
    return since if since <= total else UNTOLD


def spent_in(known: ResourceUse, metrics: WorkerMetrics, window: Estimate) -> Spent | None:
    """Per step of the window; None if it is too long for its baselines, or if a counter is known at one end only: what
    that counted is missing in the others' sum, or held to be waiting.
    """
    steps = window.steps
    cpu, throttled, waited = metrics.cpu_seconds, metrics.cpu_throttled_seconds, metrics.cpu_wait_seconds
    # The first window of a plan, or after counters that began again, holds all that was counted.
    if metrics.steps > steps:
        if steps * window.mean_seconds * max(metrics.computing_threads or 1.0, 1.0) > LONGEST_WINDOW_SECONDS:
            return None
        cpu, throttled, waited = (
            _since(cpu, known.cpu),
            _since(throttled, known.throttled),
            _since(waited, known.waited),
        )
        if UNTOLD in (cpu, throttled, waited):
            return None
    elif any(total is not None and not 0 <= total <= MAX_WHOLE for total in (cpu, throttled, waited)):
        return None
    return Spent(
        None if cpu is None else cpu / steps,
        None if throttled is None else throttled / steps,
        None if waited is None else waited / steps,
    )


def threads_of(spent: Spent, seconds: float) -> float:
    """How many threads computed, or were held back by the limit, side by side in the mean over a step's own seconds,
    without those for which they waited for a CPU.
    """
    running = max(seconds - (spent.waited or 0.0), LEAST_RUNNING * seconds)
    return ((spent.cpu or 0.0) + (spent.throttled or 0.0)) / running


def of_steps_before(spent: Spent, metrics: WorkerMetrics, window: Estimate, before: Estimate) -> tuple[Spent, float]:
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
