"""A simulated cluster behind the port: its pods are values, and time passes when it is asked to wait."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from heterotrain.contract import Plan, PlanError, parse_plan
from heterotrain_operator.clusters.port import PlanConflictError
from heterotrain_operator.clusters.simulated.asynchronous import AsynchronousTraining
from heterotrain_operator.clusters.simulated.events import LossOfMetrics, Reader
from heterotrain_operator.clusters.simulated.influences import Influences, Trainee
from heterotrain_operator.clusters.simulated.noise import Draws, natures
from heterotrain_operator.clusters.simulated.pod import FIRST_WORDS, READY, SimulatedPod
from heterotrain_operator.clusters.simulated.scenario import Scenario
from heterotrain_operator.clusters.simulated.steps import mean_seconds
from heterotrain_operator.clusters.simulated.training import Training
from heterotrain_operator.core.model import Decision, Seen, WorkerKey, WorkerMetrics, WorkerSeen
from heterotrain_operator.core.state import Remembered

BEGIN = 1_700_000_000.0
"""Unix seconds at which every simulation begins."""


@dataclass(slots=True)
class StoredRecord:
    """Plan and memory as they are stored, as JSON or as the values themselves, and how often they were replaced."""

    plan: Plan | str | None = None
    memory: Remembered | str | None = None
    writes: int = 0


class SimulatedCluster:
    """One job's pods in virtual time, which `wait` and `train` let pass. All that happens is drawn from the seed.

    A `forgetful` one stores plan and memory as JSON, and reads them back whenever it is asked, as an operator does that
    dies between any two rounds. `pods` may be changed by whoever holds the simulation.
    """

    def __init__(self, scenario: Scenario, *, forgetful: bool = False) -> None:
        self.scenario, self.forgetful = scenario, forgetful
        self.now = BEGIN
        self.pods: dict[str, SimulatedPod] = {}
        self.record = StoredRecord()
        self._observed_writes = 0
        self.created = 0
        self._reported: set[str] = set()
        self._draws = Draws(scenario.seed)
        self._influences = Influences(scenario.events, scenario.seed)
        of_job = Training if scenario.job.server is None else AsynchronousTraining
        self.training: Training | AsynchronousTraining = of_job(scenario, self._draws, self._influences)
        self._columns: dict[str, int] = {}
        self._natures: list[float] = []
        self._losses = [event for event in scenario.events if isinstance(event, LossOfMetrics)]
        self._reader = Reader(np.random.default_rng([scenario.seed, 5]), self.now)
        self._limits_step = -1
        self._waiting: set[str] = set()
        self._add_columns(scenario.workers())

    # --- the port -------------------------------------------------------------------------------------------

    def observe(self, _: None = None, /) -> tuple[Seen, Remembered | None]:
        """Pods, plan and metrics as they are now, and the memory beside the plan."""
        self._observed_writes = self.record.writes
        workers, problem = self._seen()
        self._reported = {worker.uid for worker in workers if worker.exit_code is not None}
        return Seen(workers, self.plan, metrics_problem=problem), self.memory

    def act(self, decision: Decision, memory: Remembered) -> None:
        """Publish, delete, create. Raises PlanConflictError if plan or memory changed since `observe`."""
        if self.record.writes != self._observed_writes:
            raise PlanConflictError("plan or memory changed since they were observed")
        plan = decision.plan
        self.write(self.record.plan if plan is None else plan, memory)
        self._observed_writes = self.record.writes
        for name in decision.delete:
            self._delete(name)
        self._tend_pods()
        for key in decision.create:
            if key.name not in self.pods:
                self.pods[key.name] = self._new(key)
                self._waiting.add(key.name)
        if plan is not None:
            self.training.publish(plan)

    # --- beside the port ------------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan | None:
        """The stored plan; None if there is none or it is damaged."""
        plan = self.record.plan
        if not isinstance(plan, str):
            return plan
        try:
            return parse_plan(plan)
        except PlanError:
            return None

    @property
    def memory(self) -> Remembered | None:
        """The stored memory; None if there is none or it cannot be understood."""
        memory = self.record.memory
        if not isinstance(memory, str):
            return memory
        try:
            return Remembered.from_json(memory)
        except ValueError:
            return None

    def write(self, plan: Plan | str | None, memory: Remembered | str | None) -> None:
        """Replace the record, whoever does."""
        if self.forgetful:
            plan = plan.to_json() if isinstance(plan, Plan) else plan
            memory = memory.to_json() if isinstance(memory, Remembered) else memory
        self.record = StoredRecord(plan, memory, self.record.writes + 1)

    def forget(self) -> None:
        """Another operator takes over, which knows nothing but what is stored."""
        self._observed_writes = -1
        self._reported = set()
        plan, memory = self.record.plan, self.record.memory
        self.record = StoredRecord(
            plan.to_json() if isinstance(plan, Plan) else plan,
            memory.to_json() if isinstance(memory, Remembered) else memory,
            self.record.writes,
        )

    def wait(self, seconds: float) -> None:
        """Let time pass, but no longer than until a worker has ended that was not observed yet."""
        end = self.now + seconds
        while self.now < end:
            self._tend()
            until = min([end, self.training.next_moment(), *(pod.next_moment for pod in self._changing())])
            # Steps may be so short that a wait would hold any number of them.
            self.training.run(self.pods, until, max(self.scenario.steps - self.training.executed, 0))
            if self._unreported():
                self.now = max(self.now, self.training.last_step_at)
                break
            self.now = until
        self._tend()

    def train(self, steps: int) -> int:
        """Let so many steps pass in no time; how many were taken, which is fewer if a worker died."""
        self._tend()
        taken = self.training.run(self.pods, float("inf"), steps)
        self._tend()
        return taken

    # --- inside ---------------------------------------------------------------------------------------------

    def _seen(self) -> tuple[tuple[WorkerSeen, ...], str]:
        """The pods with what can be read of them, and why nobody can be read."""
        step = self.training.executed
        losses = [event for event in self._losses if event.lasts(step, step + 1)]
        problem = next((event.problem for event in losses if event.problem), "")
        if problem:
            return tuple(replace(pod.seen(), metrics=None) for pod in self.pods.values()), problem
        if not losses:
            return tuple([pod.seen() for pod in self.pods.values()]), ""
        return tuple([self._read(pod, losses) for pod in self.pods.values()]), ""

    def _read(self, pod: SimulatedPod, losses: list[LossOfMetrics]) -> WorkerSeen:
        metrics, self._reader.now = pod.metrics, self.now
        for event in losses:
            if event.concerns(pod.name, pod.group):
                read = event.read(pod.uid, metrics, self._reader)
                if read is None:
                    return replace(pod.seen(), metrics=None)
                metrics = read
        return pod.seen(metrics)

    def _tend_pods(self) -> None:
        """Do what is due to pods by now."""
        now = self.now
        for pod in self._changing():
            if pod.gone_at is not None and now >= pod.gone_at:
                del self.pods[pod.name]
                continue
            if pod.runs_at is not None and now >= pod.runs_at:
                pod.runs_at, pod.phase = None, "Running"
            if pod.ready_at is not None and now >= pod.ready_at:
                pod.ready_at, pod.metrics = None, self._ready(pod)

    def _tend(self) -> None:
        """Do all that is due by now; here alone a plan begins to be followed, since time passes."""
        self._tend_pods()
        executed = self.training.executed
        for event in self._influences.limits:
            if self._limits_step < event.at <= executed and event.known:
                for pod in self.pods.values():
                    if event.concerns(pod.name, pod.group):
                        pod.cpu_limit = event.cores
        self._limits_step = executed
        self.training.tend(self.pods, self.now)

    def _changing(self) -> list[SimulatedPod]:
        """Pods that something is due to happen to: those that start or go."""
        pods = [self.pods[name] for name in self._waiting if name in self.pods]
        changing = [pod for pod in pods if pod.next_moment < math.inf]
        self._waiting = {pod.name for pod in changing}
        return changing

    def _unreported(self) -> bool:
        ended = [pod.uid for pod in self.pods.values() if pod.exit_code is not None]
        return any(uid not in self._reported for uid in ended)

    def _delete(self, name: str) -> None:
        pod = self.pods.get(name)
        if pod is None or pod.gone_at is not None:
            return
        stop_seconds = self.scenario.timing.stop_seconds if pod.exit_code is None else 0.0
        pod.gone_at = self.now + stop_seconds
        self._waiting.add(name)

    def _new(self, key: WorkerKey) -> SimulatedPod:
        model, timing = self.scenario.model_of(key.name, key.group), self.scenario.timing
        if key.name not in self._columns:
            self._add_columns([(key.name, key.group)])
        column = self._columns[key.name]
        self.created += 1
        runs_at = self.now + timing.pod_seconds
        ready_at = runs_at + timing.prepare_seconds + model.start_seconds
        group = next((group for group in self.scenario.job.groups if group.name == key.group), None)
        limit = group.cpu_limit if model.cpu_limit is None and group is not None else model.cpu_limit
        step = self.training.executed
        pod = SimulatedPod(
            name=key.name,
            group=key.group,
            index=key.index,
            uid=f"uid-{self.created}",
            law=model.law,
            scale=model.scale * self._natures[column],
            memory=model.memory,
            cpu_limit=self._influences.limit_of(key.name, key.group, limit, step),
            phase="Running" if runs_at <= self.now else "Pending",
            node=model.node,
            least_batch=model.least_batch,
            protocol=model.protocol,
            exports_use=model.exports_use,
            column=column,
            created_at=self.now,
            started_step=step,
            begun_limit=limit,
            runs_at=None if runs_at <= self.now else runs_at,
            ready_at=None if ready_at <= self.now else ready_at,
            metrics=FIRST_WORDS,
        )
        if pod.is_ready:
            pod.metrics = self._ready(pod)
        return pod

    def _ready(self, pod: SimulatedPod) -> WorkerMetrics:
        """The metrics of a worker that is ready. Where others follow a plan, it has warmed up: it has computed steps of
        its own, beside those that train, at the mean batch of its group.
        """
        plan = self.training.followed_plan if self.scenario.timing.warms_up else None
        if plan is None:
            return READY
        alike = [member.batch_size for member in plan.members if member.group == pod.group] or plan.batch_sizes
        batch = max(round(fmean(alike)), 1)
        [own] = mean_seconds([pod], [batch])
        trainee = Trainee(pod.name, pod.group, pod.column, pod.begun_limit, pod.started_step)
        found = self._influences.of(self.training.executed, 1, (trainee,))
        own = float(own) * (1.0 if found is None else float(found.true[0, 0]))
        return replace(READY, warm_up=((batch, own),))

    def _add_columns(self, workers: list[tuple[str, str]]) -> None:
        models = [self.scenario.model_of(name, group) for name, group in workers]
        begin = len(self._columns)
        self._columns.update({name: begin + place for place, (name, _) in enumerate(workers)})
        self._draws.add([model.noise for model in models])
        self._natures += natures([self.scenario.seed, 2, begin], [model.spread for model in models]).tolist()
