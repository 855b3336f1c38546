"""A scenario: the job, its workers, what happens to them, and the seed. Pure values; the same one runs the same way."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from heterotrain_operator.clusters.simulated.communication import Communication, NoCommunication
from heterotrain_operator.clusters.simulated.described import (
    Count,
    Described,
    Duration,
    Mebibytes,
    PositiveMebibytes,
    bounded,
    said,
)
from heterotrain_operator.clusters.simulated.events import ClusterEvent
from heterotrain_operator.clusters.simulated.laws import Affine, TimeLaw
from heterotrain_operator.clusters.simulated.noise import Noise, NoNoise
from heterotrain_operator.core.facts import worker_name
from heterotrain_operator.core.model import Job

PLAIN = Affine(0.002, 0.001)
"""The law of workers of which nothing is said."""


@dataclass(frozen=True, slots=True)
class MemoryUse(Described):
    """Peak memory by the batch that is computed at once; a worker whose peak exceeds its limit is killed.

    `fixed_bytes + per_sample_bytes * b` at a batch of b samples. Without a limit it never is, and exports none.
    """

    fixed_bytes: Annotated[
        Mebibytes, said("What a step takes whatever its batch.", default=0.0, alias="fixedMebibytes")
    ]
    per_sample_bytes: Annotated[Mebibytes, said("What each sample takes.", alias="mebibytesPerSample")]
    limit_bytes: Annotated[
        PositiveMebibytes | None, said("The limit of the worker's container. Absent: none.", alias="limitMebibytes")
    ] = None
    variation: Annotated[float, said("By which part of them peaks vary at most, up and down.", ge=0, le=0.5)] = 0.01

    def peak_bytes(self, batch: float) -> float:
        """Most memory in a step of so many samples at once, without noise."""
        return self.fixed_bytes + self.per_sample_bytes * batch


LEAST = 1e-9
WORKER_BOUNDS = {
    "scale": (LEAST, math.inf),
    "spread": (0, 2),
    "cpu_limit": (LEAST, math.inf),
    "start_seconds": (0, math.inf),
    "least_batch": (1, math.inf),
    "protocol": (1, math.inf),
}
SCENARIO_BOUNDS = {
    "seed": (0, math.inf),
    "intervals": (1, math.inf),
    "total_steps": (1, math.inf),
    "checkpoint_steps": (0, math.inf),
    "epoch_steps": (1, math.inf),
}


@dataclass(frozen=True, slots=True)
class WorkerModel:
    """What a worker is: own seconds are `scale * law.seconds(batch)` times its noise.

    With a `spread` the workers of a group differ by nature: each one's scale is multiplied by a fixed, seeded factor of
    mean 1 and that coefficient of variation. `cpu_limit` is the limit in cores that the operator sees (None: that of
    the group, if it has one). Without a `memory` it exports no figures of memory. `start_seconds` come on top of those
    in which pods start. `least_batch`: with fewer samples its model trains badly. With `protocol` 3 members
    can change while others train, also because one has ended.
    `exports_use`: what it used of the CPU, and what kept it from more, is among its metrics.
    """

    law: TimeLaw = PLAIN
    scale: float = 1.0
    noise: Noise = field(default_factory=NoNoise)
    spread: float = 0.0
    memory: MemoryUse | None = None
    cpu_limit: float | None = None
    start_seconds: float = 0.0
    least_batch: int = 1
    protocol: int = 1
    node: str = ""
    exports_use: bool = True

    def __post_init__(self) -> None:
        """Raises ValueError, with its name, if a number makes no sense."""
        bounded(self, WORKER_BOUNDS)


@dataclass(frozen=True, slots=True)
class Timing(Described):
    """How long things take beside steps."""

    pod_seconds: Annotated[Duration, said("From the creation of a pod until it runs.")] = 1.0
    prepare_seconds: Annotated[Duration, said("From then until its script is ready to train.")] = 2.0
    rendezvous_seconds: Annotated[Duration, said("Until the members of a new generation have met.")] = 1.0
    switch_steps: Annotated[
        Count, said("Steps from the publication of a plan until it is followed, as loaders prefetch.")
    ] = 2
    unmeasured_steps: Annotated[Count, said("First steps under a new plan, which are not measured.")] = 1
    stop_seconds: Annotated[Duration, said("Until a deleted pod is gone.")] = 1.0
    reform_seconds: Annotated[
        Duration, said("Until workers of protocol 3 go on without one of them that has ended.")
    ] = 1.0
    transition_seconds: Annotated[Duration, said("For so long they stand still when others join or leave them.")] = 0.5
    link_seconds: Annotated[
        Duration,
        said("Of an asynchronous job: for so long parameters, or gradients, take the one link between all of them."),
    ] = 0.0
    update_seconds: Annotated[
        Duration, said("Of an asynchronous job: for so long its server applies an update, one after another.")
    ] = 0.0
    warms_up: Annotated[
        bool, said("A worker computes some steps by itself before it joins others, and shows what they took.")
    ] = True


AT_ONCE = Timing(0.0, 0.0, 0.0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, warms_up=False)
"""Everything that takes time beside steps takes none, and every step is measured."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A simulation from begin to end.

    `models` are by the name of a worker or of a group; a worker's own comes first, and without either it is
    `other_workers`. It lasts `intervals` control intervals of `job.interval` executed steps each. The job itself has
    `total_steps` (None: more than are run); workers that fail go on from the last checkpoint, one of which is written
    every `checkpoint_steps` (0: never). An epoch has `epoch_steps`. All workers' own seconds are multiplied by the
    `shared_noise` of a step, too. Steps of an asynchronous job are updates; `max_staleness` and `late` are its
    `training.asynchronous`.
    """

    job: Job
    models: Mapping[str, WorkerModel] = field(default_factory=dict)
    events: tuple[ClusterEvent, ...] = ()
    other_workers: WorkerModel = WorkerModel()
    communication: Communication = field(default_factory=NoCommunication)
    timing: Timing = field(default_factory=Timing)
    seed: int = 0
    intervals: int = 100
    total_steps: int | None = None
    checkpoint_steps: int = 0
    epoch_steps: int = 100
    title: str = ""
    shared_noise: Noise = field(default_factory=NoNoise)
    max_staleness: int | None = None
    late: str = "Apply"

    def __post_init__(self) -> None:
        """Raises ValueError if a number makes no sense, or a model or an event is of nobody that the job has."""
        bounded(self, SCENARIO_BOUNDS)
        groups = sorted(group.name for group in self.job.groups)
        known = {*groups, *(name for name, _ in self.workers())}
        uses = [("models", self.models), *((f"{number}", event.workers) for number, event in enumerate(self.events))]
        for place, names in uses:
            for name in names:
                if name not in known:
                    where = place if place == "models" else f"events[{place}].workers"
                    raise ValueError(f"{where}: {name!r} is no group and no worker of the job; groups are {groups}")

    def workers(self) -> list[tuple[str, str]]:
        """Names of the workers that the job begins with, each with its group's, in plan order."""
        name = self.job.name
        return [(worker_name(name, each.name, i), each.name) for each in self.job.groups for i in range(each.replicas)]

    @property
    def steps(self) -> int:
        """Executed steps after which it is over."""
        return self.intervals * self.job.interval

    def model_of(self, worker: str, group: str) -> WorkerModel:
        """What that worker is."""
        return self.models.get(worker) or self.models.get(group) or self.other_workers
