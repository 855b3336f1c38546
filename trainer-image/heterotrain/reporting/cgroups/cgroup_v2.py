"""Figures of a cgroup of version 2."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from heterotrain.reporting.cgroups.figures import keyed, limit_bytes, pressure_seconds, ratio, read_figures, scaled


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
