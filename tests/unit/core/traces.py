"""A simulated job that tests hold in their hands: they let steps pass, decide, and do to its workers what they like.

It is the simulated backend (`clusters/simulated/`) in which nothing but steps takes time, and no time passes in steps:
created pods are there in the next observation, a published plan is followed from the next step on, and every step is
measured.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from heterotrain.contract import Plan, parse_plan
from heterotrain_operator.clusters.simulated.cluster import SimulatedCluster
from heterotrain_operator.clusters.simulated.laws import Affine, Throttled, TimeLaw
from heterotrain_operator.clusters.simulated.noise import Independent, Noise
from heterotrain_operator.clusters.simulated.pod import SimulatedPod
from heterotrain_operator.clusters.simulated.scenario import AT_ONCE, MemoryUse, Scenario, WorkerModel
from heterotrain_operator.clusters.simulated.steps import mean_seconds
from heterotrain_operator.core.batching.policy import Seat
from heterotrain_operator.core.decide import decide
from heterotrain_operator.core.model import Decision, Group, Job, Seen
from heterotrain_operator.core.prediction.memory_model import MEBIBYTE
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.split.multiples import Bounds
from heterotrain_operator.core.state import Remembered


class World:
    """A job's pods and plan; `tick` observes, decides and acts once, `train` lets steps pass.

    `scales` are the seconds factors by worker name; those of others are 1. `noise` is everybody's, or its coefficient
    of variation, but for those of whom `noise_of` names another one. With `forgetful` the memory is written to
    JSON and read back between every two decisions. With `protocol` 3 members can change while others train.
    """

    def __init__(
        self,
        job: Job,
        scales: dict[str, float] | None = None,
        *,
        fixed: float = 0.002,
        per_sample: float = 0.001,
        noise: float | Noise = 0.0,
        noise_of: dict[str, float] | None = None,
        seed: int = 0,
        forgetful: bool = False,
        protocol: int = 1,
    ) -> None:
        self.job = job
        self.protocol = protocol
        self.scales = dict(scales or {})
        self.limits: dict[str, float] = {}
        self.leasts: dict[str, int] = {}
        self.nodes: dict[str, str] = {}
        self.forgetful = forgetful
        self.fixed, self.per_sample = fixed, per_sample
        self.random = random.Random(seed)
        noises = {name: WorkerModel(noise=Independent(variation)) for name, variation in (noise_of or {}).items()}
        other = WorkerModel(noise=Independent(noise) if isinstance(noise, int | float) else noise)
        self.cluster = SimulatedCluster(Scenario(job, noises, other_workers=other, timing=AT_ONCE, seed=seed))
        self.memory = Remembered.initial()
        self.decisions: list[Decision] = []

    def law(self) -> TimeLaw:
        """Of the times of all workers."""
        return Affine(self.fixed, self.per_sample)

    @property
    def workers(self) -> dict[str, SimulatedPod]:
        return self.cluster.pods

    @workers.setter
    def workers(self, pods: dict[str, SimulatedPod]) -> None:
        self.cluster.pods = pods

    @property
    def plan(self) -> Plan | None:
        return self.cluster.plan

    @plan.setter
    def plan(self, plan: Plan | None) -> None:
        self.cluster.write(plan, self.memory)

    @property
    def memory(self) -> Remembered:
        return self.cluster.memory

    @memory.setter
    def memory(self, memory: Remembered) -> None:
        self.cluster.write(self.plan, memory)

    @property
    def now(self) -> float:
        return self.cluster.now

    @now.setter
    def now(self, now: float) -> None:
        self.cluster.now = now

    @property
    def created(self) -> int:
        return self.cluster.created

    def seen(self) -> Seen:
        return self.cluster.observe()[0]

    def tick(self, seconds: float = 1.0) -> Decision:
        self.now += seconds
        if self.forgetful:
            self.cluster.forget()
        decision, self.memory = decide(self.job, self.seen(), self.memory, self.now)
        self.act(decision)
        self.decisions.append(decision)
        return decision

    def act(self, decision: Decision) -> None:
        assert not {key.name for key in decision.create} & (set(self.workers) - set(decision.delete))
        if decision.plan is not None:
            assert parse_plan(decision.plan.to_json()) == decision.plan
            assert self.plan is None or decision.plan.version > self.plan.version
        self.cluster.observe()
        self.cluster.act(decision, self.memory)
        for key in decision.create:
            pod = self.workers[key.name]
            pod.law, pod.exports_use = self.law(), False
            pod.scale = self.scales.get(key.name, 1.0)
            pod.cpu_limit = self.limits.get(key.name)
            pod.least_batch = self.leasts.get(key.name, 1)
            pod.protocol = self.protocol
            pod.node = self.nodes.get(key.name, "")

    def train(self, steps: int) -> None:
        """All members take so many measured steps under the active plan."""
        self.cluster.train(steps)

    def run(self, intervals: int) -> list[Decision]:
        """So many control intervals, one decision after each."""
        decisions = []
        for _ in range(intervals):
            self.train(self.job.interval)
            decisions.append(self.tick())
        return decisions

    def start(self) -> World:
        """Up to the first plan."""
        self.tick()
        self.tick()
        return self

    def true_seconds(self) -> list[float]:
        """Own seconds per step of the members under the active plan, without noise."""
        pods = [self.workers[member.name] for member in self.plan.members]
        return [float(seconds) for seconds in mean_seconds(pods, self.plan.batch_sizes)]

    def imbalance(self) -> float:
        """The slowest member's true time over the mean of all."""
        seconds = self.true_seconds()
        return max(seconds) * len(seconds) / sum(seconds)


class ThrottledWorld(World):
    """Whoever keeps the others waiting takes half as long again as when it waits for them."""

    def law(self) -> TimeLaw:
        return Throttled(super().law(), 1.5)


class MemoryWorld(World):
    """Peaks are affine in the batch, with noise of half a hundredth; beyond its limit a worker is killed."""

    fixed_mib = 300.0
    mib_per_sample = 4.0
    limit_mib = 1024.0

    def peak_mib(self, batch: int) -> float:
        return self.fixed_mib + self.mib_per_sample * batch

    def train(self, steps: int) -> None:
        use = MemoryUse(self.fixed_mib * MEBIBYTE, self.mib_per_sample * MEBIBYTE, self.limit_mib * MEBIBYTE, 0.005)
        for pod in self.workers.values():
            pod.memory = use
        super().train(steps)


def hetero_job(policy: str = "Optimal", scales: Sequence[float] = (1, 2, 4), **changes: object) -> Job:
    """A job of one group per speed, so that each worker has its own name and bounds."""
    groups = tuple(Group(name=f"g{rank}", replicas=1) for rank, _ in enumerate(scales))
    job = Job(name="job", groups=groups, global_batch=192, policy=policy)
    return replace(job, **changes)


def hetero_world(
    policy: str = "Optimal",
    scales: Sequence[float] = (1, 2, 4),
    *,
    noise: float = 0.0,
    seed: int = 0,
    fixed: float = 0.002,
    protocol: int = 1,
    **changes: object,
) -> World:
    """That job's world, trained up to its first plan."""
    job = hetero_job(policy, scales, **changes)
    by_name = {f"job-g{rank}-0": float(scale) for rank, scale in enumerate(scales)}
    return World(job, by_name, noise=noise, seed=seed, fixed=fixed, protocol=protocol).start()


def seat(
    seconds: float | None,
    batch: int,
    bounds: Bounds = (1, 192),
    *,
    variation: float = 0,
    steps: float = 10,
    **rest: Any,
) -> Seat:
    """A worker that took so long in the mean of so many steps, which vary by so much; None: it is not measured."""
    estimate = None if seconds is None else Estimate(seconds, (variation * seconds) ** 2, steps)
    return Seat("w", Group("g", 9), batch, bounds, estimate, estimate)._replace(**rest)
