"""What this worker uses and may use of memory and CPU, read from the kernel; None where the kernel has no figure.

Memory is what the process itself holds. The cgroup's own peak includes the page cache, which grows to the limit with
every file that is read and shrinks when the memory is needed; and a container may not reset it.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from heterotrain.reporting.cgroups import PROC, number, own_cgroup, pressure_seconds, read_figures

MAX_CHILDREN = 64
"""Processes that this one started itself, such as those that load data, of which the CPU time is read."""

MAX_THREADS = 256
"""Threads of this process and its children whose wait is read: about 20 microseconds each."""

_CHILDREN_BYTES = 1 << 12


def memory_bytes() -> float | None:
    """Resident memory of this process in bytes."""
    return _of_status("VmRSS:")


def peak_memory_bytes() -> float | None:
    """The most resident memory of this process, in bytes, since `forget_peak`."""
    return _of_status("VmHWM:")


def forget_peak() -> bool:
    """Reset the peak to what is resident now; False where the kernel does not allow that."""
    try:
        (PROC / "self" / "clear_refs").write_text("5")  # proc(5): resets the peak resident set size
    except OSError:
        return False
    return True


def children_memory_bytes() -> float:
    """Memory of this process's children alone, in bytes, such as those that load data; what they share with this
    process counts as its own.
    """
    return sum(_private_bytes(child) for child in _children())


def available_bytes() -> float | None:
    """What the machine can hand out without swapping, in bytes."""
    return _of(PROC / "meminfo", "MemAvailable:")


def memory_limit_bytes() -> float | None:
    """The present memory limit in bytes; None if there is none. It follows an in-place resize."""
    return own_cgroup().memory_limit_bytes()


def cpu_limit_cores() -> float | None:
    """The present CPU limit in cores; None if there is none. It follows an in-place resize."""
    return own_cgroup().cpu_limit_cores()


def cpu_throttled_seconds() -> float | None:
    """Seconds for which the kernel held this worker's cgroup back since it began, summed over CPUs."""
    return own_cgroup().cpu_throttled_seconds()


def cpu_pressure_seconds() -> float | None:
    """Seconds for which at least one task waited for a CPU, of this worker's cgroup or else of the machine."""
    own = own_cgroup().cpu_pressure_seconds()
    return own if own is not None else pressure_seconds(read_figures(PROC / "pressure" / "cpu"))


def cpu_seconds() -> float:
    """CPU seconds that this process has used, and its children, those that have ended included."""
    used = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return used + sum(_ticks(child) for child in islice(_children(), MAX_CHILDREN)) / os.sysconf("SC_CLK_TCK")


class ThreadTime(NamedTuple):
    """Seconds since a thread began in which it ran, and in which it could run and did not."""

    ran: float
    delayed: float


def thread_times() -> dict[str, ThreadTime] | None:
    """The times of each thread of this process and its children, by thread.

    A process's own figure is that of its first thread alone, so each thread is asked. Time for which the CPU limit held
    a thread back counts as delay, too. None where the kernel does not say, and of more than MAX_THREADS threads. One
    that does not count says that no thread has ever run.
    """
    times: dict[str, ThreadTime] = {}
    for process in ("self", *islice(_children(), MAX_CHILDREN)):
        threads = _threads(process)
        if len(times) + len(threads) > MAX_THREADS:
            return None
        for thread in threads:
            ran, delayed = ([number(each) for each in read_figures(thread / "schedstat").split()] + [None] * 2)[:2]
            if ran is not None and delayed is not None:
                times[thread.name] = ThreadTime(ran / 1e9, delayed / 1e9)
    return times if any(each.ran for each in times.values()) else None


def _of_status(key: str) -> float | None:
    return _of(PROC / "self" / "status", key)


def _of(path: Path, key: str) -> float | None:
    """A figure in bytes of a file that holds it in kibibytes, behind a key."""
    _, found, rest = read_figures(path).partition(key)
    kibibytes = number(rest.split(None, 1)[0]) if found and rest.strip() else None
    return None if kibibytes is None else kibibytes * 1024


def _children() -> Iterator[str]:
    """Processes that this one started, of all its threads."""
    for thread in _threads("self"):
        yield from filter(str.isdecimal, read_figures(thread / "children", _CHILDREN_BYTES).split())


def _threads(process: str) -> list[Path]:
    """The folders of a process's threads; none if it has ended, or this one may open no more files."""
    try:
        return list((PROC / process / "task").iterdir())
    except OSError:
        return []


def _private_bytes(process: str) -> float:
    lines = (line.split() for line in read_figures(PROC / process / "smaps_rollup").splitlines())
    figures = [number(words[1]) for words in lines if len(words) > 1 and words[0].startswith("Private_")]
    return sum(figure * 1024 for figure in figures if figure is not None)


def _ticks(process: str) -> float:
    """Clock ticks that a process used, in user and in system mode, itself and by children it has waited for."""
    after_name = read_figures(PROC / process / "stat").rpartition(")")[2].split()
    return sum(number(each) or 0.0 for each in after_name[11:15])
