"""This worker's cgroup, of version 1 or 2: limits, throttling and pressure, as the kernel's small files say.

Either version is one reader of its own files. Which one is right is found once, for a process's cgroup stays; what the
files hold is read each time, so that it follows an in-place resize. Whatever the kernel does not say is None.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

MAX_BYTES = 1 << 14
"""Of a file of figures: more than the kernel writes."""


def pressure_seconds(text: str) -> float | None:
    """For how long at least one task waited, of a file of pressure stall information; None if it does not say."""
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["some"]:
            return scaled(dict(_pairs(words[1:])).get("total"), 1e6)
    return None


def read_figures(path: Path, max_bytes: int = MAX_BYTES) -> str:
    """The text of a file of the kernel, at most so much of it; empty where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        pieces, left = [], max_bytes
        while left and (piece := os.read(descriptor, left)):
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces).decode(errors="replace").strip()
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def number(text: str | None) -> float | None:
    """The number that a text holds; None if it is none, negative or not finite."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 <= value < math.inf else None


def limit_bytes(text: str) -> float | None:
    """A memory limit; None if there is none, which version 2 writes as a word, and version 1 as a number beyond any
    machine's memory."""
    limit = number(text)
    if limit is None:
        return None
    return limit if limit < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") else None


def ratio(quota: str, period: str) -> float | None:
    """In cores; "no limit" is the word max or a negative quota, neither of which is a number here."""
    used, of = number(quota), number(period)
    return used / of if used is not None and of else None


def scaled(text: str | None, units: float) -> float | None:
    """The number that a text holds, which counts so many of these units as one."""
    value = number(text)
    return None if value is None else value / units


def keyed(text: str) -> Mapping[str, str]:
    """The lines `key value` of a file such as cpu.stat."""
    return {words[0]: words[1] for line in text.splitlines() if len(words := line.split()) == 2}


def _pairs(figures: list[str]) -> list[tuple[str, str]]:
    return [(key, value) for key, equals, value in (figure.partition("=") for figure in figures) if equals]


def folder_of(controller: str, memberships: list[list[str]], mounts: list[list[str]]) -> Path | None:
    """This process's folder of a version 1 controller; of version 2, if the controller has no name."""
    for membership in memberships:
        if len(membership) != 3 or controller not in membership[1].split(","):
            continue
        for fields in mounts:
            if "-" not in fields[6:] or not _holds(controller, fields):
                continue
            root, mount_point = fields[3], Path(fields[4])
            path = membership[2].removeprefix(root) if root != "/" else membership[2]
            # In a container the path may be that of the host, and the mount shows this cgroup alone.
            for folder in (mount_point / path.lstrip("/"), mount_point):
                if _is_cgroup(folder):
                    return folder
    return None


def _is_cgroup(folder: Path) -> bool:
    """Whether it is there, and may be looked into."""
    try:
        return (folder / "cgroup.procs").exists()
    except OSError:
        return False


def _holds(controller: str, mount: list[str]) -> bool:
    kind = mount[mount.index("-", 6) + 1 :][:1]
    return kind == ["cgroup2"] if not controller else kind == ["cgroup"] and controller in mount[-1].split(",")


class Version2(NamedTuple):
    """All controllers' files in one folder."""

    folder: Path

    def memory_limit_bytes(self) -> float | None:
        return limit_bytes(read_figures(self.folder / "memory.max"))

    def cpu_limit_cores(self) -> float | None:
        words = read_figures(self.folder / "cpu.max").split()
        return ratio(*words) if len(words) == 2 else None

    def cpu_throttled_seconds(self) -> float | None:
        return scaled(keyed(read_figures(self.folder / "cpu.stat")).get("throttled_usec"), 1e6)

    def cpu_pressure_seconds(self) -> float | None:
        return pressure_seconds(read_figures(self.folder / "cpu.pressure"))


class Version1(NamedTuple):
    """A folder for each controller; None where it is not mounted. This version has no pressure of its own."""

    cpu: Path | None
    memory: Path | None

    def memory_limit_bytes(self) -> float | None:
        return limit_bytes(read_figures(self.memory / "memory.limit_in_bytes")) if self.memory else None

    def cpu_limit_cores(self) -> float | None:
        if self.cpu is None:
            return None
        return ratio(read_figures(self.cpu / "cpu.cfs_quota_us"), read_figures(self.cpu / "cpu.cfs_period_us"))

    def cpu_throttled_seconds(self) -> float | None:
        if self.cpu is None:
            return None
        return scaled(keyed(read_figures(self.cpu / "cpu.stat")).get("throttled_time"), 1e9)

    def cpu_pressure_seconds(self) -> float | None:
        return None


def _version_1(memberships: list[list[str]], mounts: list[list[str]]) -> Version1 | None:
    """This process's cgroup; None where neither of its controllers is mounted."""
    cpu, memory = (folder_of(controller, memberships, mounts) for controller in ("cpu", "memory"))
    return Version1(cpu, memory) if cpu or memory else None


PROC = Path("/proc")

MAX_TABLE_BYTES = 1 << 20
"""Of the tables of cgroups and of mounts."""


class Cgroup(Protocol):
    """What the kernel says of this process's cgroup."""

    def memory_limit_bytes(self) -> float | None:
        """The present memory limit in bytes; None also where there is none."""

    def cpu_limit_cores(self) -> float | None:
        """The present CPU limit in cores; None also where there is none."""

    def cpu_throttled_seconds(self) -> float | None:
        """Seconds for which the CPU limit held it back since it was made, summed over CPUs."""

    def cpu_pressure_seconds(self) -> float | None:
        """Seconds for which at least one of its tasks waited for a CPU, since it was made."""


class NoCgroup(NamedTuple):
    """Where the kernel shows no cgroup of this process."""

    def memory_limit_bytes(self) -> float | None:
        return None

    def cpu_limit_cores(self) -> float | None:
        return None

    def cpu_throttled_seconds(self) -> float | None:
        return None

    def cpu_pressure_seconds(self) -> float | None:
        return None


@cache
def own_cgroup() -> Cgroup:
    """The cgroup of this process. Where both versions are mounted, controllers belong to version 1."""
    memberships = [line.split(":", 2) for line in read_figures(PROC / "self" / "cgroup", MAX_TABLE_BYTES).splitlines()]
    mounts = [line.split(" ") for line in read_figures(PROC / "self" / "mountinfo", MAX_TABLE_BYTES).splitlines()]
    found = _version_1(memberships, mounts)
    if found is not None:
        return found
    unified = folder_of("", memberships, mounts)
    return NoCgroup() if unified is None else Version2(unified)
