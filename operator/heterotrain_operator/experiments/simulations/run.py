"""Run a scenario to its end: the ordinary loop on a simulated cluster, whose clock is the loop's clock."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from heterotrain_operator.clusters.simulated.asynchronous import AsynchronousTraining
from heterotrain_operator.clusters.simulated.cluster import BEGIN, SimulatedCluster
from heterotrain_operator.clusters.simulated.oracle import Oracle
from heterotrain_operator.clusters.simulated.scenario import Scenario
from heterotrain_operator.clusters.simulated.steps import Steps
from heterotrain_operator.core.model import Decision, PeerMetrics, Seen
from heterotrain_operator.experiments.simulations.result import (
    Floats,
    HappenedEvent,
    PublishedPlan,
    SimulationResult,
)
from heterotrain_operator.garbage import seldom_collected
from heterotrain_operator.loop import run_job

LONGEST_SECONDS = 3_600.0
"""So long, on its clock, a simulation may go on without a step before it is given up."""


def simulate(
    scenario: Scenario,
    *,
    forgetful: bool = False,
    own_seconds: bool = True,
    on_progress: Callable[[int], None] | None = None,
) -> SimulationResult:
    """Run a scenario for as many steps as it has, or until its job is over, and compare every step with the oracle's.

    The same scenario gives the same result, to the last bit. `forgetful`: what is remembered is written and read back
    before every decision. Without `own_seconds` the workers' own are not kept, which take 8 bytes for each and step.
    `on_progress` is called after each round with the steps executed so far. A run ends early, too, if no step is taken
    for an hour of its clock, as where no worker can ever be ready.
    """
    cluster = SimulatedCluster(scenario, forgetful=forgetful)
    recorder = _Recorder(scenario, own_seconds)
    if isinstance(cluster.training, AsynchronousTraining):
        cluster.training.on_updates = recorder.add_updates
    else:
        cluster.training.on_steps = recorder.add
    events: list[HappenedEvent] = []
    plans: list[PublishedPlan] = []
    peers: tuple[PeerMetrics, ...] = ()
    half_way = peers
    rounds, last_step, last_step_at = 0, -1, cluster.now

    def on_round(seen: Seen, decision: Decision) -> None:
        nonlocal rounds, peers, half_way
        peers = next((each.metrics.peers for each in seen.workers if each.metrics and each.metrics.peers), peers)
        if cluster.training.executed <= scenario.steps // 2:
            half_way = peers
        rounds += 1
        executed, now = cluster.training.executed, cluster.now - BEGIN
        events.extend(HappenedEvent(executed, now, event) for event in decision.events)
        if decision.plan is not None:
            plan = decision.plan
            names = tuple(member.name for member in plan.members)
            version, generation = plan.version, plan.generation
            plans.append(PublishedPlan(executed, now, version, generation, names, plan.batch_sizes, decision.reason))
        if on_progress is not None:
            on_progress(executed)

    def until(_: Seen, __: Decision) -> bool:
        nonlocal last_step, last_step_at
        if cluster.training.executed > last_step:
            last_step, last_step_at = cluster.training.executed, cluster.now
        return cluster.training.executed >= scenario.steps or cluster.now - last_step_at > LONGEST_SECONDS

    with seldom_collected():
        last = run_job(
            scenario.job,
            cluster,
            now=lambda: cluster.now,
            pause=cluster.wait,
            on_round=on_round,
            until=until,
            monotonic=lambda: cluster.now,
        )
    most, memory = scenario.steps, cluster.memory
    return SimulationResult(
        scenario=scenario,
        workers=tuple(recorder.columns),
        began=_joined(recorder.began)[:most],
        step_seconds=_joined(recorder.seconds)[:most],
        oracle_seconds=_joined(recorder.oracles)[:most],
        own_seconds=recorder.own_seconds()[:most],
        plans=tuple(plans),
        events=tuple(events),
        phase=last.phase,
        reason=last.reason,
        rounds=rounds,
        virtual_seconds=cluster.now - BEGIN,
        repeated_steps=cluster.training.repeated,
        sizes=() if last.scaling is None else last.scaling.points,
        peers=peers,
        peers_half_way=half_way,
        cost=None if memory is None else memory.cost.total(group.name for group in scenario.job.groups),
    )


class _Recorder:
    """Keeps what every step took, and what the oracle's would have taken."""

    def __init__(self, scenario: Scenario, keeps_own: bool) -> None:
        self._keeps_own = keeps_own
        self._oracle = Oracle(scenario.job)
        self.columns = {name: column for column, (name, _) in enumerate(scenario.workers())}
        self.began: list[Floats] = []
        self.seconds: list[Floats] = []
        self.oracles: list[Floats] = []
        self._own: list[tuple[list[int], Floats]] = []

    def add(self, steps: Steps) -> None:
        self.began.append(steps.began - BEGIN + np.cumsum(steps.seconds) - steps.seconds)
        self.seconds.append(steps.seconds)
        self.oracles.append(self._oracle.seconds(steps))
        if self._keeps_own:
            columns = [self.columns.setdefault(pod.name, len(self.columns)) for pod in steps.pods]
            self._own.append((columns, steps.own_seconds))

    def add_updates(self, began: float, seconds: list[float]) -> None:
        """Of an asynchronous job, which has no best split: every worker trains at its own pace whatever its batch."""
        taken = np.array(seconds)
        self.began.append(began - BEGIN + np.cumsum(taken) - taken)
        self.seconds.append(taken)
        self.oracles.append(np.full(len(taken), np.nan))

    def own_seconds(self) -> Floats:
        kept = np.full((sum(len(own) for _, own in self._own), len(self.columns)), np.nan)
        row = 0
        for columns, own in self._own:
            kept[row : row + len(own), columns] = own
            row += len(own)
        return kept


def _joined(parts: list[Floats]) -> Floats:
    return np.concatenate(parts) if parts else np.empty(0)
