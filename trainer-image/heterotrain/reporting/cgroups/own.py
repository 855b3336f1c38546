"""Which cgroup this process is in.

Either version is one reader of its own files. Which one is right is found once, for a process's cgroup stays; what the
files hold is read each time, so that it follows an in-place resize. Whatever the kernel does not say is None.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

from heterotrain.reporting.cgroups.cgroup_v1 import reader as cgroup_v1
from heterotrain.reporting.cgroups.cgroup_v2 import Version2
from heterotrain.reporting.cgroups.figures import read_figures
from heterotrain.reporting.cgroups.mounts import folder_of

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
    found = cgroup_v1.find(memberships, mounts)
    if found is not None:
        return found
    unified = folder_of("", memberships, mounts)
    return NoCgroup() if unified is None else Version2(unified)
