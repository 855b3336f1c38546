"""Resource limits by cgroup version 1, where cpu, cpuacct and memory may be separate hierarchies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from heterotrain_operator.clusters.local import leftovers
from heterotrain_operator.clusters.local.limits import cgroup, stopping
from heterotrain_operator.clusters.local.limits.mechanism import LimitError, effective_cores, quota_and_period
from heterotrain_operator.clusters.local.limits.neighbours import Neighbours

NAME = "cgroup-v1"
TRIAL_MEMORY_BYTES = 256 * 1024**2
UNLIMITED = "-1"


def _cores(folder: Path) -> float | None:
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
        return _cores(self.cpu)

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


@dataclass(frozen=True, slots=True)
class CgroupV1:
    """The mechanism: the folders below which workers' folders are made."""

    cpu: Path
    cpuacct: Path | None
    memory: Path | None
    ceiling_cores: float = math.inf
    name: str = NAME

    @property
    def parents(self) -> tuple[Path, ...]:
        """Each folder once."""
        return tuple(dict.fromkeys(f for f in (self.cpu, self.cpuacct, self.memory) if f is not None))

    def describe(self) -> str:
        """As `Mechanism.describe`."""
        memory = "CPU and memory" if self.memory else "CPU (memory cannot be limited)"
        return f"cgroup v1 limits {memory}, CPU in periods of 10 ms"

    def create(self, worker: str, cores: float | None, memory_bytes: int | None, owner: str) -> LimitsV1:
        """As `Mechanism.create`; after a LimitError nothing is left behind."""
        name = cgroup.folder_name(owner, worker)
        limits = LimitsV1(
            worker,
            self.cpu / name,
            self.cpuacct / name if self.cpuacct else None,
            self.memory / name if self.memory else None,
            self.ceiling_cores,
            neighbours=Neighbours({leftovers.ENV_RUNNER: owner}),
        )
        try:
            for folder in limits.folders:
                folder.mkdir()
            limits.set_cores(cores)
            if memory_bytes is not None and limits.memory is not None:
                (limits.memory / "memory.limit_in_bytes").write_text(str(memory_bytes))
                if (limits.memory / "memory.memsw.limit_in_bytes").exists():  # else a worker swaps instead of failing
                    (limits.memory / "memory.memsw.limit_in_bytes").write_text(str(memory_bytes))
        except (OSError, LimitError) as error:
            limits.remove()
            raise LimitError(f"worker {worker}: no cgroup could be made: {error}") from error
        return limits


def find() -> CgroupV1:
    """Find where limits can be made. Raises LimitError if the CPU cannot be limited; limiting memory is optional."""
    ours, mounts = cgroup.memberships(), cgroup.mounts()
    places: dict[str, Path] = {}
    ceiling = math.inf
    for mount in mounts:
        for controller in ("cpu", "cpuacct", "memory"):
            if mount.kind == "cgroup" and controller in mount.options:
                places.setdefault(controller, cgroup.own_folder(mount, ours.get(controller, "/")))
        if mount.kind == "cgroup" and "cpu" in mount.options:
            around = [_cores(folder) for folder in cgroup.upwards(places["cpu"], mount.point)]
            ceiling = min([ceiling, *(cores for cores in around if cores is not None)])
    if "cpu" not in places:
        raise LimitError("no cgroup v1 hierarchy with the cpu controller")
    mechanism = CgroupV1(places["cpu"], places.get("cpuacct"), places.get("memory"), ceiling)
    if mechanism.memory is not None:
        try:
            cgroup.try_out(mechanism, TRIAL_MEMORY_BYTES)
        except LimitError:
            mechanism = CgroupV1(places["cpu"], places.get("cpuacct"), None, ceiling)
        else:
            return mechanism
    cgroup.try_out(mechanism, None)
    return mechanism
