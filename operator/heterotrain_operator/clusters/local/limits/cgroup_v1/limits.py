"""The limits of one worker by cgroup version 1, where cpu, cpuacct and memory may be separate hierarchies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from heterotrain_operator.clusters.local import leftovers
from heterotrain_operator.clusters.local.limits import cgroup, stopping
from heterotrain_operator.clusters.local.limits.mechanism import LimitError, effective_cores, quota_and_period
from heterotrain_operator.clusters.local.limits.neighbours import Neighbours

UNLIMITED = "-1"


def cores_of(folder: Path) -> float | None:
    """The CPU limit of a cgroup; None if there is none."""
    quota, period = cgroup.read(folder, "cpu.cfs_quota_us"), cgroup.read(folder, "cpu.cfs_period_us")
    if quota is None or period is None or quota == UNLIMITED:
        return None
    return int(quota) / int(period)


@dataclass(frozen=True, slots=True)
class LimitsV1:
    """The limits of one worker: one folder per hierarchy, the same where hierarchies are mounted together."""

    worker: str
    cpu: Path
    cpuacct: Path | None
    memory: Path | None
    ceiling_cores: float
    prefix: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    neighbours: Neighbours = field(default_factory=Neighbours)

    @property
    def folders(self) -> tuple[Path, ...]:
        """Each folder once."""
        return tuple(dict.fromkeys(f for f in (self.cpu, self.cpuacct, self.memory) if f is not None))

    @property
    def joins(self) -> tuple[Path, ...]:
        """One per hierarchy."""
        return tuple(folder / "cgroup.procs" for folder in self.folders)

    def started(self, pid: int) -> None:
        """Has no effect: the cgroup knows its processes."""

    def set_cores(self, cores: float | None) -> None:
        """Raises LimitError if the kernel refuses it."""
        requested = effective_cores(cores)
        if requested is not None and requested >= self.ceiling_cores:
            requested = None  # the cgroup around it limits it anyway, and version 1 refuses more inside than outside
        try:
            quota, period = (UNLIMITED, None) if requested is None else map(str, quota_and_period(requested))
            if period is not None and period != cgroup.read(self.cpu, "cpu.cfs_period_us"):
                # Quota and period change one after the other; in between, their ratio must not be refused.
                (self.cpu / "cpu.cfs_quota_us").write_text(UNLIMITED)
                (self.cpu / "cpu.cfs_period_us").write_text(period)
            (self.cpu / "cpu.cfs_quota_us").write_text(quota)
        except OSError as error:
            raise LimitError(f"worker {self.worker}: a limit of {cores} cores was refused: {error}") from error

    def set_neighbours(self, count: int, cpu: int | None) -> None:
        """As `Limits.set_neighbours`."""
        self.neighbours.set_count(count, cpu, cgroup.launcher(self.prefix, self.joins))

    def set_stopped(self, stopped: bool) -> None:
        """As `Limits.set_stopped`."""
        stopping.set_stopped(self.pids, stopped=stopped)

    def cores(self) -> float | None:
        """The limit that the kernel applies."""
        return cores_of(self.cpu)

    def cpu_seconds(self) -> float:
        """As accounted by cpuacct; 0 where that is not mounted."""
        usage = cgroup.read(self.cpuacct, "cpuacct.usage") if self.cpuacct else None
        return int(usage or 0) / 1e9

    def out_of_memory(self) -> bool:
        """Whether the kernel counted a kill; always false with kernels before 4.13, which do not count them."""
        return self.memory is not None and cgroup.read_keyed(self.memory, "memory.oom_control", "oom_kill") > 0

    def pids(self) -> set[int]:
        """All processes in it."""
        return leftovers.folder_pids(self.cpu)

    def remove(self) -> bool:
        """True once no folder is left."""
        self.neighbours.end()
        left = [folder for folder in self.folders if not leftovers.remove_folder(folder)]
        return not left
