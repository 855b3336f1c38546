"""Resource limits by cgroup version 2: a folder per worker in our own cgroup, or in the nearest that allows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from heterotrain_operator.clusters.local.limits import cgroup
from heterotrain_operator.clusters.local.limits.mechanism import quota_and_period, unique_name

NAME = "cgroup-v2"


class LimitsV2(cgroup.CgroupLimits):
    """The limits of one worker: one folder."""

    def _write_cores(self, cores: float | None) -> None:
        text = "max" if cores is None else "{} {}".format(*quota_and_period(cores))
        (self.folders[0] / "cpu.max").write_text(text)

    def _write_memory(self, memory_bytes: int) -> None:
        (self.folders[0] / "memory.max").write_text(str(memory_bytes))
        # All of a worker is killed, not one process that the others wait for; and it must not swap instead of failing.
        # Old kernels lack the first file, kernels without swap the second.
        for file, text in (("memory.oom.group", "1"), ("memory.swap.max", "0")):
            if (self.folders[0] / file).exists():
                (self.folders[0] / file).write_text(text)

    def cores(self) -> float | None:
        """As `Limits.cores`."""
        quota, _, period = (cgroup.read(self.folders[0], "cpu.max") or "max").partition(" ")
        return None if quota == "max" else int(quota) / int(period)

    def cpu_seconds(self) -> float:
        """As `Limits.cpu_seconds`."""
        return cgroup.read_keyed(self.folders[0], "cpu.stat", "usage_usec") / 1e6

    def out_of_memory(self) -> bool:
        """As `Limits.out_of_memory`."""
        return cgroup.read_keyed(self.folders[0], "memory.events", "oom_kill") > 0


@dataclass(frozen=True, slots=True)
class CgroupV2:
    """The mechanism: the folder below which workers' folders are made."""

    parent: Path
    memory: bool
    name: str = NAME

    @property
    def parents(self) -> tuple[Path, ...]:
        """The single folder."""
        return (self.parent,)

    def describe(self) -> str:
        """As `Mechanism.describe`."""
        return cgroup.described(self)

    def create(self, worker: str, cores: float | None, memory_bytes: int | None, owner: str) -> LimitsV2:
        """As `Mechanism.create`."""
        limits = LimitsV2(worker, self.parent / unique_name(owner, worker), owner=owner)
        return limits.made(cores, memory_bytes if self.memory else None)


def _enable(folder: Path, controller: str) -> bool:
    """Let the folders inside have a controller. Returns whether they have it."""
    if controller in (cgroup.read(folder, "cgroup.subtree_control") or "").split():
        return True
    if controller not in (cgroup.read(folder, "cgroup.controllers") or "").split():
        return False
    try:
        (folder / "cgroup.subtree_control").write_text(f"+{controller}")
    except OSError:  # not ours to change, or it holds processes itself, which only the root may
        return False
    return True


def _places() -> Iterator[CgroupV2]:
    """Where limits may be possible, the nearest first, with and without limits of memory."""
    mounts, ours = cgroup.surroundings()
    for mount in mounts:
        if mount.kind == "cgroup2":
            for folder in cgroup.upwards(cgroup.own_folder(mount, ours.get("", "/")), mount.point):
                if _enable(folder, "cpu"):
                    for memory in dict.fromkeys((_enable(folder, "memory"), False)):
                        yield CgroupV2(folder, memory)


def find() -> CgroupV2:
    """Find the nearest place where limits can be made. Raises LimitError if there is none; memory is optional."""
    return cgroup.first_that_works(_places(), "no cgroup v2 hierarchy whose cpu controller may be used")
