"""Resource limits by cgroup version 2: a folder per worker in our own cgroup, or in the nearest that allows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from heterotrain_operator.clusters.local import leftovers
from heterotrain_operator.clusters.local.limits import cgroup, stopping
from heterotrain_operator.clusters.local.limits.mechanism import LimitError, effective_cores, quota_and_period
from heterotrain_operator.clusters.local.limits.neighbours import Neighbours

NAME = "cgroup-v2"
TRIAL_MEMORY_BYTES = 256 * 1024**2


@dataclass(frozen=True, slots=True)
class LimitsV2:
    """The limits of one worker: one folder."""

    worker: str
    folder: Path
    prefix: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    neighbours: Neighbours = field(default_factory=Neighbours)

    @property
    def joins(self) -> tuple[Path, ...]:
        """The folder's list of processes."""
        return (self.folder / "cgroup.procs",)

    def started(self, pid: int) -> None:
        """Has no effect: the cgroup knows its processes."""

    def set_cores(self, cores: float | None) -> None:
        """Raises LimitError if the kernel refuses it."""
        requested = effective_cores(cores)
        try:
            text = "max" if requested is None else "{} {}".format(*quota_and_period(requested))
            (self.folder / "cpu.max").write_text(text)
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
        quota, _, period = (cgroup.read(self.folder, "cpu.max") or "max").partition(" ")
        return None if quota == "max" else int(quota) / int(period)

    def cpu_seconds(self) -> float:
        """As accounted by the kernel."""
        return cgroup.read_keyed(self.folder, "cpu.stat", "usage_usec") / 1e6

    def out_of_memory(self) -> bool:
        """As counted by the kernel."""
        return cgroup.read_keyed(self.folder, "memory.events", "oom_kill") > 0

    def pids(self) -> set[int]:
        """All processes in it."""
        return leftovers.folder_pids(self.folder)

    def remove(self) -> bool:
        """True once the folder is gone."""
        self.neighbours.end()
        return leftovers.remove_folder(self.folder)


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
        memory = "CPU and memory" if self.memory else "CPU (memory cannot be limited)"
        return f"cgroup v2 limits {memory}, CPU in periods of 10 ms"

    def create(self, worker: str, cores: float | None, memory_bytes: int | None, owner: str) -> LimitsV2:
        """As `Mechanism.create`; after a LimitError nothing is left behind."""
        neighbours = Neighbours({leftovers.ENV_RUNNER: owner})
        limits = LimitsV2(worker, self.parent / cgroup.folder_name(owner, worker), neighbours=neighbours)
        try:
            limits.folder.mkdir()
            limits.set_cores(cores)
            if memory_bytes is not None and self.memory:
                (limits.folder / "memory.max").write_text(str(memory_bytes))
                # All of a worker is killed, not one process that the others wait for; and it must not swap instead
                # of failing. Old kernels lack the first file, kernels without swap the second.
                for file, text in (("memory.oom.group", "1"), ("memory.swap.max", "0")):
                    if (limits.folder / file).exists():
                        (limits.folder / file).write_text(text)
        except (OSError, LimitError) as error:
            limits.remove()
            raise LimitError(f"worker {worker}: no cgroup could be made: {error}") from error
        return limits


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


def find() -> CgroupV2:
    """Find the nearest place where limits can be made. Raises LimitError if there is none; memory is optional."""
    membership = cgroup.memberships().get("", "/")
    problem = LimitError("no cgroup v2 hierarchy whose cpu controller may be used")
    for mount in cgroup.mounts():
        if mount.kind != "cgroup2":
            continue
        for folder in cgroup.upwards(cgroup.own_folder(mount, membership), mount.point):
            if not _enable(folder, "cpu"):
                continue
            for memory in dict.fromkeys((_enable(folder, "memory"), False)):
                mechanism = CgroupV2(folder, memory)
                try:
                    cgroup.try_out(mechanism, TRIAL_MEMORY_BYTES if memory else None)
                except LimitError as error:
                    problem = error
                else:
                    return mechanism
    raise problem
