"""Where cgroups of version 1 can be made here, and how one is made for a worker."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from heterotrain_operator.clusters.local import leftovers
from heterotrain_operator.clusters.local.limits import cgroup
from heterotrain_operator.clusters.local.limits.cgroup_v1.limits import LimitsV1, cores_of
from heterotrain_operator.clusters.local.limits.mechanism import LimitError
from heterotrain_operator.clusters.local.limits.neighbours import Neighbours

NAME = "cgroup-v1"
TRIAL_MEMORY_BYTES = 256 * 1024**2


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
            around = [cores_of(folder) for folder in cgroup.upwards(places["cpu"], mount.point)]
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
