"""A deterministic world of workers with affine own times and seeded noise, for decisions to be tried on.

It carries decisions out at once, as the worlds behind the cluster port do: created pods are there in the next
observation, and a published plan is followed from the next step on.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from heterotrain.contract import PHASE_TRAINING, PHASE_WAITING, Plan, parse_plan
from heterotrain_operator.core.decide import decide
from heterotrain_operator.core.model import Decision, Group, Job, Seen, WorkerMetrics, WorkerSeen
from heterotrain_operator.core.prediction.memory_model import MEBIBYTE
from heterotrain_operator.core.split.passes import at_once
from heterotrain_operator.core.state import Memory


@dataclass
class SimulatedWorker:
    """A pod whose steps take `scale * (fixed + per_sample * batch)` seconds of its own, times noise."""

    name: str
    group: str
    index: int
    uid: str
    scale: float
    cpu_limit: float | None = None
    phase: str = "Running"
    exit_code: int | None = None
    finished: bool = False
    message: str = ""
    disrupted: bool = False
    out_of_memory: bool = False
    script_error: bool = False
    fatal: bool = False
    gated: bool = False
    node: str = ""
    asked_to_stop: bool = False
    last_step: int = 0
    answers: bool = True
    least_batch: int = 1
    metrics: WorkerMetrics = field(default_factory=lambda: WorkerMetrics(plan_version=0, phase=PHASE_WAITING))

    def seen(self) -> WorkerSeen:
        return WorkerSeen(
            name=self.name,
            uid=self.uid,
            group=self.group,
            index=self.index,
            phase=self.phase,  # type: ignore[arg-type]  # tests set any of the literal's values
            address=f"10.0.0.{self.index}:29500",
            cpu_limit=self.cpu_limit,
            exit_code=self.exit_code,
            finished=self.finished,
            step=self.last_step,
            message=self.message,
            disrupted=self.disrupted,
            out_of_memory=self.out_of_memory,
            script_error=self.script_error,
            fatal=self.fatal,
            gated=self.gated,
            node=self.node,
            asked_to_stop=self.asked_to_stop,
            metrics=(
                replace(self.metrics, least_batch_size=self.least_batch)
                if self.answers and self.exit_code is None
                else None
            ),
        )

    def end(self, exit_code: int, *, finished: bool = False, message: str = "", disrupted: bool = False) -> None:
        self.phase = "Succeeded" if exit_code == 0 else "Failed"
        self.exit_code, self.finished, self.message, self.disrupted = exit_code, finished, message, disrupted

    def end_by_script(self, step: int, message: str = "ValueError: label 17") -> None:
        """The script raised, after so many committed steps."""
        self.end(1, message=message)
        self.script_error, self.last_step = True, step

    def end_asked(self) -> None:
        """As it says, because somebody asked it to stop."""
        self.end(143, message="was asked to stop")
        self.asked_to_stop = True

    def end_for_good(self, message: str) -> None:
        """With an error after which no other try may be made."""
        self.end(1, message=message)
        self.fatal = True


class World:
    """A job's pods and plan; `tick` observes, decides and acts once, `train` lets steps pass.

    `scales` are the seconds factors by worker name; those of others are 1. With `forgetful` the memory is written to
    JSON and read back between every two decisions.
    """

    def __init__(
        self,
        job: Job,
        scales: dict[str, float] | None = None,
        *,
        fixed: float = 0.002,
        per_sample: float = 0.001,
        noise: float = 0.0,
        seed: int = 0,
        forgetful: bool = False,
    ) -> None:
        self.job = job
        self.scales = dict(scales or {})
        self.limits: dict[str, float] = {}
        self.leasts: dict[str, int] = {}
        self.nodes: dict[str, str] = {}
        self.fixed, self.per_sample, self.noise = fixed, per_sample, noise
        self.random = random.Random(seed)
        self.forgetful = forgetful
        self.workers: dict[str, SimulatedWorker] = {}
        self.plan: Plan | None = None
        self.memory = Memory.initial()
        self.now = 1_700_000_000.0
        self.created = 0
        self.decisions: list[Decision] = []

    def seen(self) -> Seen:
        return Seen(tuple(worker.seen() for worker in self.workers.values()), self.plan)

    def tick(self, seconds: float = 1.0) -> Decision:
        self.now += seconds
        if self.forgetful:
            self.memory = Memory.from_json(self.memory.to_json())
        decision, self.memory = decide(self.job, self.seen(), self.memory, self.now)
        self.act(decision)
        self.decisions.append(decision)
        return decision

    def act(self, decision: Decision) -> None:
        for name in decision.delete:
            self.workers.pop(name, None)
        for key in decision.create:
            assert key.name not in self.workers
            self.created += 1
            self.workers[key.name] = SimulatedWorker(
                name=key.name,
                group=key.group,
                index=key.index,
                uid=f"uid-{self.created}",
                scale=self.scales.get(key.name, 1.0),
                cpu_limit=self.limits.get(key.name),
                least_batch=self.leasts.get(key.name, 1),
                node=self.nodes.get(key.name, ""),
            )
        if decision.plan is not None:
            assert parse_plan(decision.plan.to_json()) == decision.plan
            assert self.plan is None or decision.plan.version > self.plan.version
            self.plan = decision.plan

    def train(self, steps: int) -> None:
        """All members take so many measured steps under the active plan."""
        assert self.plan is not None
        for member in self.plan.members:
            worker = self.workers[member.name]
            metrics = worker.metrics
            if metrics.plan_version != self.plan.version:
                metrics = WorkerMetrics(
                    plan_version=self.plan.version,
                    generation=self.plan.generation,
                    batch_size=member.batch_size,
                    step=metrics.step,
                    phase=PHASE_TRAINING,
                )
            times = [self._own_seconds(worker, member.batch_size) for _ in range(steps)]
            worker.metrics = replace(
                metrics,
                step=metrics.step + steps,
                steps=metrics.steps + steps,
                samples=metrics.samples + steps * member.batch_size,
                own_seconds=metrics.own_seconds + sum(times),
                own_seconds_squared=metrics.own_seconds_squared + sum(time * time for time in times),
            )

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
        assert self.plan is not None
        return self

    def true_seconds(self) -> list[float]:
        """Own seconds per step of the members under the active plan, without noise."""
        assert self.plan is not None
        return [self.mean_seconds(self.workers[m.name], m.batch_size) for m in self.plan.members]

    def mean_seconds(self, worker: SimulatedWorker, batch: int) -> float:
        return worker.scale * (self.fixed + self.per_sample * batch)

    def _own_seconds(self, worker: SimulatedWorker, batch: int) -> float:
        # Gamma noise: positive and skewed to the right, as times of steps are.
        factor = 1.0
        if self.noise:
            shape = 1 / self.noise**2
            factor = self.random.gammavariate(shape, 1 / shape)
        return self.mean_seconds(worker, batch) * factor


class ThrottledWorld(World):
    """Whoever keeps the others waiting takes `penalty` times as long as when it waits for them.

    So it is with short steps under a CPU quota: waiting saves up quota for the next step. Seen on two containers of
    600 and 300 millicores: the small one took 28 ms for 55 samples while it waited, and 50 ms for 66 while the other
    waited for it.
    """

    penalty = 1.5

    def mean_seconds(self, worker: SimulatedWorker, batch: int) -> float:
        assert self.plan is not None
        waiting = super().mean_seconds
        others = [waiting(self.workers[m.name], m.batch_size) for m in self.plan.members if m.name != worker.name]
        alone = waiting(worker, batch)
        return alone if alone < max(others) else self.penalty * alone


class MemoryWorld(World):
    """Peaks are affine in the batch, with noise of a hundredth; who exceeds its limit is killed, and nobody trains."""

    fixed_mib = 300.0
    mib_per_sample = 4.0
    limit_mib = 1024.0

    def peak_mib(self, batch: int) -> float:
        return self.fixed_mib + self.mib_per_sample * batch

    def train(self, steps: int) -> None:
        assert self.plan is not None
        killed = [m.name for m in self.plan.members if self.peak_mib(at_once(m)) > self.limit_mib]
        for name in killed:
            self.workers[name].end(137, message="out of memory (limit 1Gi)")
            self.workers[name].out_of_memory = True
        if killed:
            return
        super().train(steps)
        for member in self.plan.members:
            worker = self.workers[member.name]
            peak = self.peak_mib(at_once(member)) * self.random.uniform(0.99, 1.01)
            worker.metrics = replace(
                worker.metrics,
                memory_peak_bytes=peak * MEBIBYTE if member.batch_size else None,
                memory_batch_size=at_once(member),
                memory_limit_bytes=self.limit_mib * MEBIBYTE,
            )


def hetero_job(policy: str = "Optimal", scales: Sequence[float] = (1, 2, 4), **changes: object) -> Job:
    """A job of one group per speed, so that each worker has its own name and bounds."""
    groups = tuple(Group(name=f"g{rank}", replicas=1) for rank, _ in enumerate(scales))
    job = Job(name="job", groups=groups, global_batch=192, policy=policy)
    return replace(job, **changes)  # type: ignore[arg-type]  # names and types are the tests' care


def hetero_world(
    policy: str = "Optimal",
    scales: Sequence[float] = (1, 2, 4),
    *,
    noise: float = 0.0,
    seed: int = 0,
    fixed: float = 0.002,
    **changes: object,
) -> World:
    """That job's world, trained up to its first plan."""
    job = hetero_job(policy, scales, **changes)
    by_name = {f"job-g{rank}-0": float(scale) for rank, scale in enumerate(scales)}
    return World(job, by_name, noise=noise, seed=seed, fixed=fixed).start()
