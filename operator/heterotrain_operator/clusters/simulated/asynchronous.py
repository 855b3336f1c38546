"""The updates that workers and a parameter server make in virtual time, by the server's own rules.

Each worker goes through pull, compute and push by itself. Own times follow the laws, noise and events of a scenario, as
those of steps do; parameters and gradients take the one link there is in turn, and the server applies one update after
another. A worker's counters begin with a plan's version, as trainers keep them.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from heterotrain.asynchronous.ledger import Ledger
from heterotrain.asynchronous.service import Accepted, Bound, Grant, Service, Update
from heterotrain.contract import PHASE_HOLDING, PHASE_STARTING, PHASE_TRAINING, Plan
from heterotrain.data.sampler import CARRY, Rules
from heterotrain_operator.clusters.simulated.events import EndOfWorker
from heterotrain_operator.clusters.simulated.influences import Influences, Trainee
from heterotrain_operator.clusters.simulated.noise import SHARED, Draws, Matrix
from heterotrain_operator.clusters.simulated.pod import (
    SimulatedPod,
    end_due,
    first_metrics,
    kill_beyond_limits,
    leave,
    present_of,
)
from heterotrain_operator.clusters.simulated.scenario import Scenario
from heterotrain_operator.core.model import PeerMetrics
from heterotrain_operator.core.split.passes import at_once

Pods = dict[str, SimulatedPod]

_ROWS = 16


class _Factors:
    """Factors of each worker's own batches in turn: the same whoever is how fast."""

    def __init__(self, draws: Draws, shared: Draws) -> None:
        self._draws, self._shared = draws, shared
        self._blocks: list[Matrix] = []

    @property
    def begun(self) -> int:
        """How many of a worker's batches have their factors; one that comes later begins there."""
        return len(self._blocks) * _ROWS

    def of(self, column: int, batch: int) -> float:
        """That of a worker's batch, by its number."""
        while batch >= self.begun:
            self._blocks.append(self._draws.peek(_ROWS) * self._shared.peek(_ROWS))
            self._draws.skip(_ROWS)
            self._shared.skip(_ROWS)
        return float(self._blocks[batch // _ROWS][batch % _ROWS, column])


@dataclass(slots=True)
class _Counted:
    """Of one worker since its plan's version began: updates, samples and seconds, as trainers count them."""

    updates: int = 0
    samples: int = 0
    own: float = 0.0
    squares: float = 0.0
    cycles: float = 0.0
    cpu: float = 0.0
    throttled: float = 0.0
    waiting: float = 0.0
    smoothed: float | None = None


@dataclass(slots=True)
class _Worker:
    """One that trains: its place in the plan, how many batches it has computed, and what it computes now."""

    pod: SimulatedPod
    rank: int
    batches: int
    grant: Grant | None = None
    began: float = 0.0
    own: float = 0.0
    used: tuple[float, float] = (1.0, 1.0)  # by what the CPU limit and others on the CPU make it longer
    counted: _Counted | None = None


class AsynchronousTraining:
    """Who trains, how far the server's model is, and what an update takes. The clock belongs to whoever lets time pass.

    `executed` counts the updates that were ever applied, `step` the model's; a server that is lost takes those since
    its last checkpoint with it, which will be `repeated`. `on_updates` is given the clock before, and the seconds from
    each update to the next.
    """

    def __init__(self, scenario: Scenario, draws: Draws, influences: Influences) -> None:
        self._scenario, self._influences = scenario, influences
        shared = Draws(scenario.seed, SHARED)
        shared.add([scenario.shared_noise])
        self._factors = _Factors(draws, shared)
        self.executed = self.step = self.repeated = 0
        self.on_updates: Callable[[float, list[float]], None] | None = None
        self.last_step_at = 0.0
        self.followed_plan: Plan | None = None
        self._next: Plan | None = None
        self._server: SimulatedPod | None = None
        self._service: Service | None = None
        self._workers: dict[str, _Worker] = {}
        self._done: list[tuple[float, int, str]] = []  # when a worker has computed its batch
        self._order = itertools.count()
        self._lives = itertools.count(1)
        self._link_free = self._server_free = 0.0
        length = max(scenario.epoch_steps * scenario.job.global_batch, 1)
        self._rules = Rules(length, last_step=CARRY)
        self._kept: tuple[int, dict[str, Any]] = 0, Ledger(self._rules).document()
        ends = (event for event in scenario.events if isinstance(event, EndOfWorker))
        self._ends = sorted(ends, key=lambda event: event.at)

    # --- what is to be followed -------------------------------------------------------------------------------

    def publish(self, plan: Plan) -> None:
        """A plan is there to be followed, which needs no meeting."""
        self._next = plan

    def next_moment(self) -> float:
        """When something here is due that takes time but no updates."""
        return math.inf

    def is_training(self, pods: Pods) -> bool:
        """Whether updates are applied."""
        return self._serves(pods) and self.followed_plan is not None and not self.followed_plan.holds

    def _serves(self, pods: Pods) -> bool:
        server = self._server
        return server is not None and server.is_ready and pods.get(server.name) is server

    def tend(self, pods: Pods, now: float) -> None:
        """Do what is due by the clock: follow the newest plan, miss a server or a worker, and let workers enter."""
        if self._service is not None and not self._serves(pods):
            self._lose(pods)
        if self._next is not None:
            self._follow(self._next, pods)
        plan, service = self.followed_plan, self._service
        if plan is None or service is None:
            return
        present = {pod.uid: pod for pod in present_of(plan, pods)}
        for uid in [uid for uid in self._workers if uid not in present]:
            del self._workers[uid]
            service.leave(uid)
        for rank, member in enumerate(plan.members):
            pod = present.get(member.uid)
            if pod is not None and member.uid not in self._workers:
                self._workers[member.uid] = _Worker(pod, rank, self._factors.begun)
                pod.metrics = first_metrics(plan, rank, self.step, self._epoch, self._scenario.total_steps)
                service.enter(member.uid, now)
        self._grant(max(now, self.last_step_at))

    def _follow(self, plan: Plan, pods: Pods) -> None:
        server = None if plan.server is None else pods.get(plan.server.name)
        if plan.server is None or server is None or server.uid != plan.server.uid or not server.is_ready:
            return
        self._report()
        if self._service is None or server is not self._server:
            step, ledger = self._kept
            self.repeated += self.step - step
            self.step = step
            bound = Bound(self._scenario.max_staleness, self._scenario.late)
            self._service = Service(Ledger.of(ledger, self._rules), bound, str(next(self._lives)), step)
            self._server = server
            self._forget_workers()
        before = self.followed_plan
        self.followed_plan, self._next = plan, None
        ranks = {member.uid: rank for rank, member in enumerate(plan.members)}
        leave([worker.pod for uid, worker in self._workers.items() if uid not in ranks], set(), self.step)
        self._workers = {uid: worker for uid, worker in self._workers.items() if uid in ranks}
        self._service.follow({member.uid: member.batch_size for member in plan.members})
        for uid, worker in self._workers.items():
            worker.rank, worker.counted = ranks[uid], None
            worker.pod.metrics = first_metrics(plan, worker.rank, self.step, self._epoch, self._scenario.total_steps)
        if before is None or before.version != plan.version:
            server.metrics = replace(server.metrics, plan_version=plan.version, generation=plan.generation)
        server.metrics = replace(server.metrics, phase=PHASE_HOLDING if plan.holds else PHASE_TRAINING)

    def _lose(self, pods: Pods) -> None:
        """The server is gone, and the model since its last checkpoint with it; the workers hold."""
        self._report()
        self._service = self._server = None
        for worker in self._workers.values():
            if worker.pod.exit_code is None:
                worker.pod.metrics = replace(worker.pod.metrics, phase=PHASE_STARTING)
        self._forget_workers()

    def _forget_workers(self) -> None:
        self._workers.clear()
        self._done.clear()

    @property
    def _epoch(self) -> int:
        return self.step // (self._scenario.epoch_steps * max(len(self._workers), 1))

    # --- updates -----------------------------------------------------------------------------------------------

    def run(self, pods: Pods, until: float, most: int | None = None) -> int:
        """Apply updates whose workers are ready by `until` on the clock, at most `most`; how many it were.

        It ends early when a worker dies.
        """
        taken: list[float] = []
        plan, began = self.followed_plan, self.last_step_at
        trains = plan is not None and self.is_training(pods)
        if trains and plan is not None and len(self._workers) == len(plan.members):
            trains = not kill_beyond_limits([self._workers[member.uid].pod for member in plan.members], plan)
        while trains and self._done and self._done[0][0] <= until and (most is None or len(taken) < most):
            at, _, uid = heapq.heappop(self._done)
            before = self.last_step_at
            if not self._deliver(uid, at):
                continue
            taken.append(self.last_step_at - before)
            over = self._scenario.total_steps is not None and self.step >= self._scenario.total_steps
            if end_due(self._ends, self.executed, pods, self.step) or over:
                if over:
                    self._finish()
                break
        if taken:
            self._report()
            if self.on_updates is not None:
                self.on_updates(began, taken)
        return len(taken)

    def _deliver(self, uid: str, at: float) -> bool:
        """A worker has computed its batch; whether its update was applied."""
        worker, service, timing = self._workers.get(uid), self._service, self._scenario.timing
        if worker is None or service is None or worker.grant is None or worker.grant.lease is None:
            return False
        self._link_free = max(at, self._link_free) + timing.link_seconds
        self._server_free = max(self._link_free, self._server_free) + timing.update_seconds
        done, grant = self._server_free, worker.grant
        assert grant.lease is not None
        verdict = service.judge(Update(uid, service.incarnation, grant.lease.number, grant.version), done)
        worker.grant = None
        self._count(worker, grant.lease.samples, done - worker.began)
        if isinstance(verdict, Accepted):
            service.applied(verdict, done)
            self.executed += 1
            self.step = service.version
            self.last_step_at = max(done, self.last_step_at)
            every = self._scenario.checkpoint_steps
            if every and self.step % every == 0:
                self._kept = self.step, service.ledger.document()
        self._grant(done)
        return isinstance(verdict, Accepted)

    def _grant(self, now: float) -> None:
        service, plan = self._service, self.followed_plan
        if service is None or plan is None or plan.holds:
            return
        for grant in service.grants(now):
            worker = self._workers[grant.worker]
            if grant.lease is None:
                continue
            self._link_free = max(now, self._link_free) + self._scenario.timing.link_seconds
            worker.grant, worker.began = grant, now
            worker.own = self._own_seconds(worker, grant.lease.samples)
            heapq.heappush(self._done, (self._link_free + worker.own, next(self._order), grant.worker))

    def _own_seconds(self, worker: _Worker, samples: int) -> float:
        pod = worker.pod
        own = pod.scale * pod.law.seconds(samples) * self._factors.of(pod.column, worker.batches)
        worker.batches += 1
        trainee = Trainee(pod.name, pod.group, pod.column, pod.begun_limit, pod.started_step)
        found = self._influences.of(self.executed, 1, (trainee,)) if self._scenario.events else None
        if found is None:
            worker.used = 1.0, 1.0
            return own
        worker.used = float(found.throttled[0, 0]), float(found.waiting[0, 0])
        return own * float(found.true[0, 0])

    def _count(self, worker: _Worker, samples: int, cycle: float) -> None:
        if worker.counted is None:
            worker.counted = _Counted()
            if self._scenario.timing.unmeasured_steps:
                return  # it may have begun under the plan before
        counted, own, (held, waiting) = worker.counted, worker.own, worker.used
        work = own / (held * waiting)
        weight = self._scenario.job.smoothing
        counted.updates += 1
        counted.samples += samples
        counted.own += own
        counted.squares += own**2
        counted.cycles += cycle
        counted.cpu += work
        counted.throttled += work * max(held - 1, 0.0)
        counted.waiting += work * held * max(waiting - 1, 0.0)
        counted.smoothed = own if counted.smoothed is None else counted.smoothed + weight * (own - counted.smoothed)

    def _report(self) -> None:
        """Write what was counted into the workers' metrics, and into the server's what it knows of them."""
        plan, service, server = self.followed_plan, self._service, self._server
        if plan is None or service is None or server is None:
            return
        for worker in self._workers.values():
            self._report_of(worker, plan)
        server.metrics = replace(
            server.metrics,
            step=self.step,
            epoch=self._epoch,
            total_steps=self._scenario.total_steps or 0,
            peers=tuple(self._peers(service)),
        )

    def _report_of(self, worker: _Worker, plan: Plan) -> None:
        pod, counted = worker.pod, worker.counted or _Counted()
        metrics = replace(
            first_metrics(plan, worker.rank, self.step, self._epoch, self._scenario.total_steps),
            steps=counted.updates,
            samples=counted.samples,
            own_seconds=counted.own,
            own_seconds_squared=counted.squares,
            wait_seconds=max(counted.cycles - counted.own, 0.0),
            own_seconds_ewma=counted.smoothed,
        )
        use = pod.memory
        if use is not None:
            samples = at_once(plan.members[worker.rank])
            peak = use.peak_bytes(samples) if counted.updates and samples else pod.metrics.memory_peak_bytes
            metrics = replace(
                metrics, memory_peak_bytes=peak, memory_batch_size=samples, memory_limit_bytes=use.limit_bytes
            )
        if pod.exports_use:
            metrics = replace(
                metrics,
                observed_seconds=counted.cycles,
                cpu_seconds=counted.cpu,
                cpu_throttled_seconds=counted.throttled,
                cpu_wait_seconds=counted.waiting,
                computing_threads=1.0,
            )
        pod.metrics = metrics

    def _peers(self, service: Service) -> Iterable[PeerMetrics]:
        for uid, worker in self._workers.items():
            standing = service.workers.get(uid)
            if standing is not None:
                mean = standing.staleness / standing.updates if standing.updates else None
                yield PeerMetrics(
                    worker.pod.name, float(standing.updates), float(standing.discarded), standing.waited, mean
                )

    # --- ends --------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._report()
        assert self._server is not None
        for pod in (self._server, *(worker.pod for worker in self._workers.values())):
            pod.last_step = self.step
            pod.end(0, finished=True, leader=pod is self._server)
        self._service = self._server = None
        self._forget_workers()
