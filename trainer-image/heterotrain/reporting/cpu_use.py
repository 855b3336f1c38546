"""What this worker used of the CPU since the active plan began, and what kept it from using more.

Read when somebody asks for metrics, and once when a plan begins: a step costs nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from heterotrain.reporting import resources

LEAST_SECONDS = 0.2
"""Between two readings; whoever asks more often gets the same figures, for a reading costs about a millisecond."""


class CpuUse(NamedTuple):
    """Over `observed_seconds` of wall time. None: the kernel has no such figure.

    CPU seconds used; seconds for which the CPU limit held the worker back; seconds for which its threads could run but
    waited for a CPU that others used, summed over threads; and seconds under pressure.
    """

    observed_seconds: float = 0.0
    cpu_seconds: float = 0.0
    throttled_seconds: float | None = None
    wait_seconds: float | None = None
    pressure_seconds: float | None = None


class _Reading(NamedTuple):
    """Totals at one moment; their zeros mean nothing."""

    moment: float
    cpu_seconds: float
    throttled_seconds: float | None
    delays: Mapping[str, float] | None
    pressure_seconds: float | None


class CpuMeter:
    """Counts since it was made. The training thread makes it, threads of the metrics server read it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = first = self._reading()
        self._delayed = None if first.delays is None else 0.0
        self._use = CpuUse(
            throttled_seconds=None if first.throttled_seconds is None else 0.0,
            wait_seconds=self._delayed,
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
            resources.run_delays(),
            resources.cpu_pressure_seconds(),
        )

    def _follow(self, now: _Reading) -> None:
        """Add what has happened since the last reading."""
        last, use = self._last, self._use
        throttled = _grown(use.throttled_seconds, last.throttled_seconds, now.throttled_seconds)
        if self._delayed is not None and last.delays is not None and now.delays is not None:
            self._delayed += sum(_since(last.delays.get(thread, 0.0), each) for thread, each in now.delays.items())
        self._use = CpuUse(
            use.observed_seconds + now.moment - last.moment,
            use.cpu_seconds + max(now.cpu_seconds - last.cpu_seconds, 0.0),
            throttled,
            self._waited(throttled, use.wait_seconds or 0.0),
            _grown(use.pressure_seconds, last.pressure_seconds, now.pressure_seconds),
        )
        self._last = now

    def _waited(self, throttled: float | None, before: float) -> float | None:
        """The kernel counts a thread that the limit holds back as one that waits; both figures are of moments that
        differ a little, and a counter never falls.
        """
        return None if self._delayed is None else max(self._delayed - (throttled or 0.0), before)


def _grown(total: float | None, last: float | None, now: float | None) -> float | None:
    """A total that is not known, or that fell, adds nothing."""
    if total is None or last is None or now is None:
        return total
    return total + max(now - last, 0.0)


def _since(before: float, now: float) -> float:
    """What a thread's delay has grown by; one that fell belongs to another thread under the same number."""
    return now - before if now >= before else now
