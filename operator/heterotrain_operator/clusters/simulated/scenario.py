"""A scenario: the job, its workers, what happens to them, and the seed. Pure values; the same one runs the same way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from heterotrain_operator.clusters.simulated.communication import Communication, NoCommunication
from heterotrain_operator.clusters.simulated.events import ClusterEvent
from heterotrain_operator.clusters.simulated.laws import Affine, TimeLaw
from heterotrain_operator.clusters.simulated.noise import Noise, NoNoise
from heterotrain_operator.clusters.simulated.valid import above, at_least, within
from heterotrain_operator.core.facts import worker_name
from heterotrain_operator.core.model import Job


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """`fixed_bytes + per_sample_bytes * b` at a batch of b samples at once, give or take a part (`variation`).

    Beyond the limit the worker is killed; without one it never is, and exports none.
    """

    fixed_bytes: float
    per_sample_bytes: float
    limit_bytes: float | None = None
    variation: float = 0.01

    def __post_init__(self) -> None:
        at_least(0, fixed_bytes=self.fixed_bytes, per_sample_bytes=self.per_sample_bytes)
        within(0, 0.5, variation=self.variation)
        if self.limit_bytes is not None:
            above(0, limit_bytes=self.limit_bytes)

    def peak_bytes(self, batch: float) -> float:
        """Most memory in a step of so many samples at once, without noise."""
        return self.fixed_bytes + self.per_sample_bytes * batch


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

    law: TimeLaw = field(default_factory=Affine)
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
        above(0, scale=self.scale)
        within(0, 2, spread=self.spread)
        at_least(0, start_seconds=self.start_seconds)
        at_least(1, least_batch=self.least_batch, protocol=self.protocol)
        if self.cpu_limit is not None:
            above(0, cpu_limit=self.cpu_limit)


@dataclass(frozen=True, slots=True)
class Timing:
    """How long things take beside steps.

    A pod runs `pod_seconds` after it was created; `prepare_seconds` later its script is ready. Members of a new
    generation meet within `rendezvous_seconds`. A plan that was published is followed `switch_steps` steps later, as
    many as loaders prefetch, and the first `unmeasured_steps` under it are not measured. A pod that is deleted is gone
    after `stop_seconds`. Members that can change while they train stand still for `reform_seconds` when one of them has
    ended, and for `transition_seconds` when others join or leave. A worker that `warms_up` has computed some steps
    by itself before it is ready to join them, within `prepare_seconds`, and shows what they took.
    """

    pod_seconds: float = 1.0
    prepare_seconds: float = 2.0
    rendezvous_seconds: float = 1.0
    switch_steps: int = 2
    unmeasured_steps: int = 1
    stop_seconds: float = 1.0
    reform_seconds: float = 1.0
    transition_seconds: float = 0.5
    warms_up: bool = True

    def __post_init__(self) -> None:
        at_least(0, pod_seconds=self.pod_seconds, prepare_seconds=self.prepare_seconds)
        at_least(0, rendezvous_seconds=self.rendezvous_seconds, stop_seconds=self.stop_seconds)
        at_least(0, reform_seconds=self.reform_seconds, transition_seconds=self.transition_seconds)
        at_least(0, switch_steps=self.switch_steps, unmeasured_steps=self.unmeasured_steps)


AT_ONCE = Timing(0.0, 0.0, 0.0, 0, 0, 0.0, 0.0, 0.0, warms_up=False)
"""Everything that takes time beside steps takes none, and every step is measured."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A simulation from begin to end.

    `models` are by the name of a worker or of a group; a worker's own comes first, and without either it is
    `other_workers`. It lasts `intervals` control intervals of `job.interval` executed steps each. The job itself has
    `total_steps` (None: more than are run); workers that fail go on from the last checkpoint, one of which is written
    every `checkpoint_steps` (0: never). An epoch has `epoch_steps`. All workers' own seconds are multiplied by the
    `shared_noise` of a step, too.
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

    def __post_init__(self) -> None:
        """Raises ValueError if a model or an event is of nobody that the job has."""
        at_least(1, intervals=self.intervals, epoch_steps=self.epoch_steps)
        at_least(0, seed=self.seed, checkpoint_steps=self.checkpoint_steps)
        if self.total_steps is not None:
            at_least(1, total_steps=self.total_steps)
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
