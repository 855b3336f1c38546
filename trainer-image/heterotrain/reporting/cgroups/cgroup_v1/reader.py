"""Figures of a cgroup of version 1."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from heterotrain.reporting.cgroups.figures import keyed, limit_bytes, ratio, read_figures, scaled
from heterotrain.reporting.cgroups.mounts import folder_of


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


def find(memberships: list[list[str]], mounts: list[list[str]]) -> Version1 | None:
    """This process's cgroup; None where neither of its controllers is mounted."""
    cpu, memory = (folder_of(controller, memberships, mounts) for controller in ("cpu", "memory"))
    return Version1(cpu, memory) if cpu or memory else None
