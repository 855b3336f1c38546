"""Limit a worker's CPU by stopping and continuing it, on machines that allow no other mechanism.

A worker is stopped by the CPU time that it has used, not by the clock alone, so it is not stopped while it only waits
for others; a balance that is found under this mechanism is near the one under a cgroup's limits.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from heterotrain_operator.clusters.local import leftovers
from heterotrain_operator.clusters.local.limits.mechanism import (
    PERIOD_MICROSECONDS,
    Neighbours,
    effective_cores,
    set_stopped,
    unique_name,
)

NAME = "duty-cycle"
PERIOD_SECONDS = PERIOD_MICROSECONDS / 1e6
MIN_SLICE_SECONDS = 0.001
REFRESH_SECONDS = 0.5  # how often new descendants are looked for; that costs a walk through /proc
LONGEST_STOP_SECONDS = 2.0
"""What was used without our seeing it, by a child that was just found or while this process was held up, is forgiven
beyond that, as a quota of the kernel would never have let it be used: a worker that stands still for seconds would be
taken for dead by its peers."""


def process_cpu_seconds(pid: int) -> float | None:
    """CPU time of all threads of a process so far; None if it is gone.

    The clock's id is that of clock_getcpuclockid(3), which Python does not offer.
    """
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return None


def credit_seconds(credit: float, cores: float, elapsed: float, used: float) -> float:
    """CPU seconds that may be used now: of those of before, what `elapsed` seconds added and was used meanwhile; at
    most a period's, and never owing more than `LONGEST_STOP_SECONDS` brings back."""
    changed = credit + cores * elapsed - used
    return max(-cores * LONGEST_STOP_SECONDS, min(changed, cores * PERIOD_SECONDS))


class DutyCycleLimits:
    """The limits of one worker: a thread that lets it run while it has used less CPU time than the limit allows."""

    joins: tuple[Path, ...] = ()

    def __init__(self, worker: str, mark: str, cores: float | None, owner: str = "") -> None:
        self._worker = worker
        self.environment: Mapping[str, str] = {leftovers.ENV_LIMITS: mark}
        self._neighbours = Neighbours({**self.environment, leftovers.ENV_RUNNER: owner})
        self._cores = effective_cores(cores)
        self._session: int | None = None
        self._used: dict[int, float] = {}
        self._stopped = False
        self._held = False  # stopped from outside, whatever the limit says
        self._ended = threading.Event()
        self._lock = threading.Lock()  # so that nothing is stopped after it was killed or continued for good
        self._thread: threading.Thread | None = None

    def started(self, pid: int) -> None:
        """Begin to limit that process and its descendants."""
        self._session = pid
        self._thread = threading.Thread(target=self._run, name=f"duty cycle of {self._worker}", daemon=True)
        self._thread.start()

    def set_cores(self, cores: float | None) -> None:
        """Takes effect within a period."""
        self._cores = effective_cores(cores)

    def set_neighbours(self, count: int, cpu: int | None) -> None:
        """As `Limits.set_neighbours`; they are found, and stopped with the worker, by its mark."""
        self._neighbours.set_count(count, cpu)

    def set_stopped(self, stopped: bool) -> None:
        """As `Limits.set_stopped`; meanwhile the duty cycle rests."""
        with self._lock:
            self._held = stopped
            set_stopped(self.pids, stopped=stopped)
            self._stopped = stopped

    def cores(self) -> float | None:
        """As last set."""
        return self._cores

    def cpu_seconds(self) -> float:
        """CPU time of all processes known so far, including those that have ended."""
        for pid in self.pids() | set(self._used):
            self._used[pid] = process_cpu_seconds(pid) or self._used.get(pid, 0.0)
        return sum(self._used.values())

    def out_of_memory(self) -> bool:
        """Memory is not limited."""
        return False

    def pids(self) -> set[int]:
        """Those of the worker's session, or that carry its mark."""
        mark = f"{leftovers.ENV_LIMITS}={self.environment[leftovers.ENV_LIMITS]}"
        return set() if self._session is None else leftovers.session_pids(self._session, mark)

    def remove(self) -> bool:
        """True once its last process is gone."""
        self._ended.set()
        self._neighbours.set_count(0)
        pids = self.pids()
        with self._lock:
            leftovers.kill(pids)
        if not pids and self._thread is not None:
            self._thread.join()
        return not pids

    def _signal(self, pids: set[int], number: signal.Signals) -> None:
        with self._lock:
            if self._ended.is_set() or self._held:
                return
            for pid in pids:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
            self._stopped = number == signal.SIGSTOP

    def _run(self) -> None:
        pids: set[int] = set()
        before: dict[int, float] = {}
        credit = 0.0
        last = refreshed = time.monotonic()
        slice_seconds = PERIOD_SECONDS
        while not self._ended.wait(slice_seconds):
            now = time.monotonic()
            if not pids or now - refreshed > REFRESH_SECONDS:
                pids, refreshed = self.pids(), now
                if self._stopped:
                    self._signal(pids, signal.SIGSTOP)
            times = {pid: seconds for pid in pids if (seconds := process_cpu_seconds(pid)) is not None}
            used = sum(seconds - before.get(pid, 0.0) for pid, seconds in times.items())
            before, elapsed, last = times, now - last, now
            cores = self._cores
            credit = 0.0 if cores is None else credit_seconds(credit, cores, elapsed, used)
            if credit < 0 and not self._stopped:
                self._signal(pids, signal.SIGSTOP)
            elif credit >= 0 and self._stopped:
                self._signal(pids, signal.SIGCONT)
            running = cores is not None and not self._stopped
            slice_seconds = max(MIN_SLICE_SECONDS, credit) if running else PERIOD_SECONDS


@dataclass(frozen=True, slots=True)
class DutyCycle:
    """The mechanism, which works everywhere."""

    name: str = NAME
    parents: tuple[Path, ...] = ()

    def describe(self) -> str:
        """As `Mechanism.describe`."""
        return (
            "a duty cycle limits CPU by stopping and continuing workers, in periods of at least 10 ms: an "
            "approximation; memory cannot be limited"
        )

    def create(self, worker: str, cores: float | None, memory_bytes: int | None, owner: str) -> DutyCycleLimits:
        """As `Mechanism.create`; memory is not limited."""
        return DutyCycleLimits(worker, unique_name(owner, worker), cores, owner)
