"""What this worker used of the CPU since the active plan's first measured step, and what kept it from using more.

Read when somebody asks for metrics, when a plan begins, and after each step before the first measured one: others cost
nothing.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from heterotrain.reporting import resources
from heterotrain.reporting.resources import ThreadTime

LEAST_SECONDS = 0.2
"""Between two readings; whoever asks more often gets the same figures, for a reading costs about a millisecond."""

LONGEST_LAG_SECONDS = 0.2
"""By which throttling and waiting, which the kernel counts at different moments, may differ."""


class CpuUse(NamedTuple):
    """Over `observed_seconds` of wall time. None: the kernel has no such figure, or has not had it all the time.

    CPU seconds used; seconds for which the CPU limit held the worker back, summed over CPUs; seconds for which those
    who compute could run but waited for a CPU that others used; and seconds under pressure.

    Of several threads the wait is a mean, weighted by the CPU time that each used: threads that seldom wake for a
    moment wait as long for each CPU, but nobody waits for them, and all that compute side by side wait as one. As many
    `threads` would have computed that if each had computed as much as any other; processes that load data count.
    """

    observed_seconds: float = 0.0
    cpu_seconds: float = 0.0
    throttled_seconds: float | None = None
    wait_seconds: float | None = None
    pressure_seconds: float | None = None
    threads: float | None = None


class _Reading(NamedTuple):
    """Totals at one moment; their zeros mean nothing."""

    moment: float
    cpu_seconds: float
    throttled_seconds: float | None
    threads: Mapping[str, ThreadTime] | None
    pressure_seconds: float | None


class CpuMeter:
    """Counts since it was made. The training thread makes it, threads of the metrics server read it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._first = self._last = first = self._reading()
        self._unheld = 0.0  # seconds held back that no wait was taken from yet
        self._use = CpuUse(
            throttled_seconds=None if first.throttled_seconds is None else 0.0,
            wait_seconds=None if first.threads is None else 0.0,
            pressure_seconds=None if first.pressure_seconds is None else 0.0,
        )

    def read(self) -> CpuUse:
        """The use since the meter was made, at most `LEAST_SECONDS` old."""
        with self._lock:
            if self._clock() - self._last.moment >= LEAST_SECONDS:
                self._follow(self._reading())
            return self._use

    def _reading(self) -> _Reading:
        return _Reading(
            self._clock(),
            resources.cpu_seconds(),
            resources.cpu_throttled_seconds(),
            resources.thread_times(),
            resources.cpu_pressure_seconds(),
        )

    def _follow(self, now: _Reading) -> None:
        """Add what has happened since the last reading."""
        last, use = self._last, self._use
        throttled = _grown(use.throttled_seconds, last.throttled_seconds, now.throttled_seconds)
        waited = use.wait_seconds
        if now.threads is None or (throttled is None and use.throttled_seconds is not None):
            waited = None  # or what the limit held back would count as waiting
        elif waited is not None and last.threads is not None:
            delayed, side_by_side = _delayed(last.threads, now.threads)
            # The kernel counts a thread that the limit holds back as one that waits.
            held = self._unheld + ((throttled or 0.0) - (use.throttled_seconds or 0.0)) / side_by_side
            waited += max(delayed - held, 0.0)
            self._unheld = min(max(held - delayed, 0.0), LONGEST_LAG_SECONDS)
        self._use = CpuUse(
            use.observed_seconds + now.moment - last.moment,
            use.cpu_seconds + max(now.cpu_seconds - last.cpu_seconds, 0.0),
            throttled,
            waited,
            _grown(use.pressure_seconds, last.pressure_seconds, now.pressure_seconds),
            _threads(self._first, now),
        )
        self._last = now


def _grown(total: float | None, last: float | None, now: float | None) -> float | None:
    """A total that fell adds nothing. One that was not known at some moment is not known any more: a total that lacks
    what happened then would say that nothing did.
    """
    if total is None or last is None or now is None:
        return None
    return total + max(now - last, 0.0)


def _delayed(before: Mapping[str, ThreadTime], now: Mapping[str, ThreadTime]) -> tuple[float, float]:
    """By how much those who computed were delayed, and how many threads that were, as if all had computed alike."""
    since = [_since(before.get(thread, _NEW), each) for thread, each in now.items()]
    ran = sum(each.ran for each in since)
    if ran <= 0:
        return 0.0, 1.0
    return sum(each.ran * each.delayed for each in since) / ran, ran**2 / sum(each.ran**2 for each in since)


def _threads(first: _Reading, now: _Reading) -> float | None:
    """How many threads, if all had computed alike, and as many in other processes as these took CPU time."""
    if first.threads is None or now.threads is None:
        return None
    ran = [_since(first.threads.get(thread, _NEW), each).ran for thread, each in now.threads.items()]
    squares = math.fsum(each**2 for each in ran)
    if squares <= 0:
        return None
    mine = math.fsum(ran)
    return mine**2 / squares * max((now.cpu_seconds - first.cpu_seconds) / mine, 1.0)


_NEW = ThreadTime(0.0, 0.0)


def _since(before: ThreadTime, now: ThreadTime) -> ThreadTime:
    """What a thread's times have grown by; those that fell belong to another thread under the same number."""
    if now.ran < before.ran or now.delayed < before.delayed:
        return now
    return ThreadTime(now.ran - before.ran, now.delayed - before.delayed)
