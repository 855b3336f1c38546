"""What a mechanism of resource limits offers, and what all mechanisms share.

A container's limits are a cgroup. Where none may be made, a duty cycle is an approximation that needs no rights.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from heterotrain_operator.clusters.local import leftovers
from heterotrain_operator.clusters.local.limits import launch

PERIOD_MICROSECONDS = 10_000
"""Short, so that a worker's step time is smooth: a worker of 0.25 cores pauses for 7.5 ms, not 75."""
MIN_QUOTA_MICROSECONDS = 1_000  # the kernel's least, cgroup v1 and v2
MAX_PERIOD_MICROSECONDS = 1_000_000  # the kernel's most

NEIGHBOUR = "number = 1\nwhile True: number = number * 48_271 % 2_147_483_647"
"""What a busy process beside a worker does: it computes without an end."""


class LimitError(Exception):
    """A limit could not be set; the text names the worker and the reason."""


class Limits(Protocol):
    """The resource limits of one worker and of all processes that descend from it."""

    @property
    def joins(self) -> tuple[Path, ...]:
        """Files into which the worker writes its id before it becomes the user's command."""

    @property
    def environment(self) -> Mapping[str, str]:
        """What the worker's environment must hold in addition."""

    def started(self, pid: int) -> None:
        """Take note of the worker's first process."""

    def set_cores(self, cores: float | None) -> None:
        """Change the CPU limit (None: no limit). Raises LimitError if the kernel refuses it."""

    def set_neighbours(self, count: int, cpu: int | None) -> None:
        """Let so many busy processes share the limits with the worker, on that CPU alone if one is given. Raises
        LimitError if they cannot, OSError if no process can be had.
        """

    def set_stopped(self, stopped: bool) -> None:
        """Stop all processes inside the limits, or let them go on."""

    def cores(self) -> float | None:
        """The present CPU limit; None if there is none."""

    def cpu_seconds(self) -> float:
        """CPU time used so far by the worker and its descendants."""

    def out_of_memory(self) -> bool:
        """Whether a process was killed because of the memory limit."""

    def pids(self) -> set[int]:
        """The live processes inside the limits."""

    def remove(self) -> bool:
        """Try once, without waiting, to kill all processes and to remove the limits. Returns whether they are gone."""


class Mechanism(Protocol):
    """A way of limiting processes."""

    @property
    def name(self) -> str:
        """A short word for tables and options."""

    @property
    def parents(self) -> tuple[Path, ...]:
        """Folders in which each worker's limits have a folder."""

    def describe(self) -> str:
        """Which mechanism this is and what it cannot do, in words."""

    def create(self, worker: str, cores: float | None, memory_bytes: int | None, owner: str) -> Limits:
        """Limits for one worker; `owner` is the token by which leftovers are found. Raises LimitError, after which
        nothing is left behind.
        """


def machine_cores() -> int:
    """CPUs that this process may run on."""
    return len(os.sched_getaffinity(0))


def quota_and_period(cores: float) -> tuple[int, int]:
    """Microseconds of CPU time per period of so many microseconds, within what the kernel accepts.

    >>> quota_and_period(0.25), quota_and_period(0.05)
    ((2500, 10000), (1000, 20000))
    """
    period = max(PERIOD_MICROSECONDS, min(round(MIN_QUOTA_MICROSECONDS / cores), MAX_PERIOD_MICROSECONDS))
    return max(MIN_QUOTA_MICROSECONDS, round(cores * period)), period


def effective_cores(cores: float | None) -> float | None:
    """The limit to set for the requested one: none where the machine has no more cores than that."""
    return None if cores is None or cores >= machine_cores() else cores


def unique_name(owner: str, worker: str) -> str:
    """A name for a worker's limits, in which their owner can be read.

    It is unique because a worker's successor may start while the worker's folder is still being removed.
    """
    return f"{leftovers.FOLDER_PREFIX}{owner}-{worker}-{secrets.token_hex(4)}"


def launcher(joins: Iterable[Path]) -> list[str]:
    """The words that start a command inside its limits; the command's own words follow."""
    return [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), *map(str, joins), "--"]


def set_stopped(pids: Callable[[], set[int]], *, stopped: bool) -> None:
    """Send SIGSTOP, or SIGCONT, to all processes, those included that they start meanwhile."""
    number = signal.SIGSTOP if stopped else signal.SIGCONT
    reached: set[int] = set()
    while left := pids() - reached:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        reached |= left


class Neighbours:
    """Busy processes beside a worker, inside its limits: what a co-tenant takes from it while they stay the same.

    They end with the worker's limits, with the thread that started them, and, by the runner's token in their
    environment, with what the guardian removes: however the runner ends.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)  # nothing of the user's is needed
        self._processes: list[subprocess.Popen[bytes]] = []

    def set_count(self, count: int, cpu: int | None = None, joins: Iterable[Path] = ()) -> None:
        """Let there be so many, which enter the limits by `joins`. Raises OSError if no process can be had."""
        for process in self._processes[count:]:
            process.kill()
            process.wait()
        del self._processes[count:]
        while len(self._processes) < count:
            self._processes.append(
                subprocess.Popen(
                    [*launcher(joins), sys.executable, "-I", "-S", "-c", NEIGHBOUR],
                    env=self._environment,
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )
        if cpu is not None:
            for process in self._processes:
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(process.pid, {cpu})
