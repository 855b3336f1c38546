"""Resource limits by cgroup version 1, where cpu, cpuacct and memory may be separate hierarchies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from heterotrain_operator.clusters.local.limits import cgroup
from heterotrain_operator.clusters.local.limits.mechanism import quota_and_period, unique_name

NAME = "cgroup-v1"
UNLIMITED = "-1"


def _cores_of(folder: Path) -> float | None:
    """The CPU limit of a cgroup; None if there is none."""
    quota, period = cgroup.read(folder, "cpu.cfs_quota_us"), cgroup.read(folder, "cpu.cfs_period_us")
    if quota is None or period is None or quota == UNLIMITED:
        return None
    return int(quota) / int(period)


class LimitsV1(cgroup.CgroupLimits):
    """The limits of one worker: one folder per hierarchy, the same where hierarchies are mounted together."""

    def __init__(
        self,
        worker: str,
        cpu: Path,
        cpuacct: Path | None,
        memory: Path | None,
        *,
        ceiling_cores: float,
        owner: str = "",
    ) -> None:
        super().__init__(worker, cpu, cpuacct, memory, owner=owner)
        self._cpu, self._cpuacct, self._memory = cpu, cpuacct, memory
        self._ceiling_cores = ceiling_cores

    def _write_cores(self, cores: float | None) -> None:
        if cores is not None and cores >= self._ceiling_cores:
            cores = None  # the cgroup around it limits it anyway, and version 1 refuses more inside than outside
        quota, period = (UNLIMITED, None) if cores is None else map(str, quota_and_period(cores))
        if period is not None and period != cgroup.read(self._cpu, "cpu.cfs_period_us"):
            # Quota and period change one after the other; in between, their ratio must not be refused.
            (self._cpu / "cpu.cfs_quota_us").write_text(UNLIMITED)
            (self._cpu / "cpu.cfs_period_us").write_text(period)
        (self._cpu / "cpu.cfs_quota_us").write_text(quota)

    def _write_memory(self, memory_bytes: int) -> None:
        if self._memory is not None:
            (self._memory / "memory.limit_in_bytes").write_text(str(memory_bytes))
            if (self._memory / "memory.memsw.limit_in_bytes").exists():  # else a worker swaps instead of failing
                (self._memory / "memory.memsw.limit_in_bytes").write_text(str(memory_bytes))

    def cores(self) -> float | None:
        """As `Limits.cores`."""
        return _cores_of(self._cpu)

    def cpu_seconds(self) -> float:
        """As accounted by cpuacct; 0 where that is not mounted."""
        usage = cgroup.read(self._cpuacct, "cpuacct.usage") if self._cpuacct else None
        return int(usage or 0) / 1e9

    def out_of_memory(self) -> bool:
        """Whether the kernel counted a kill; always false with kernels before 4.13, which do not count them."""
        return self._memory is not None and cgroup.read_keyed(self._memory, "memory.oom_control", "oom_kill") > 0


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
        return cgroup.described(self)

    def create(self, worker: str, cores: float | None, memory_bytes: int | None, owner: str) -> LimitsV1:
        """As `Mechanism.create`."""
        name = unique_name(owner, worker)
        cpuacct, memory = (parent / name if parent else None for parent in (self.cpuacct, self.memory))
        limits = LimitsV1(worker, self.cpu / name, cpuacct, memory, ceiling_cores=self.ceiling_cores, owner=owner)
        return limits.made(cores, memory_bytes)


def _places() -> Iterator[CgroupV1]:
    """Where limits may be possible: our own cgroups, with and without limits of memory."""
    mounts, ours = cgroup.surroundings()
    places: dict[str, Path] = {}
    ceiling = math.inf
    for mount in mounts:
        for controller in ("cpu", "cpuacct", "memory"):
            if mount.kind == "cgroup" and controller in mount.options:
                places.setdefault(controller, cgroup.own_folder(mount, ours.get(controller, "/")))
        if mount.kind == "cgroup" and "cpu" in mount.options:
            around = [_cores_of(folder) for folder in cgroup.upwards(places["cpu"], mount.point)]
            ceiling = min([ceiling, *(cores for cores in around if cores is not None)])
    if "cpu" in places:
        for memory in dict.fromkeys((places.get("memory"), None)):
            yield CgroupV1(places["cpu"], places.get("cpuacct"), memory, ceiling)


def find() -> CgroupV1:
    """Find where limits can be made. Raises LimitError if the CPU cannot be limited; limiting memory is optional."""
    return cgroup.first_that_works(_places(), "no cgroup v1 hierarchy with the cpu controller")
