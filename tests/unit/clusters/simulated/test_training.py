"""Steps of a simulated job: what trainers would count, what happens to workers, and all of it from the seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from heterotrain_operator.clusters.simulated.cluster import SimulatedCluster
from heterotrain_operator.clusters.simulated.communication import RingAllReduce
from heterotrain_operator.clusters.simulated.events import (
    ClusterEvent,
    Death,
    Drift,
    Interference,
    Jump,
    LateMetrics,
    LimitChange,
    Preemption,
    SourceDown,
    Unreadable,
    WarmUp,
)
from heterotrain_operator.clusters.simulated.laws import Affine, Throttled
from heterotrain_operator.clusters.simulated.noise import AR1, Matrix, Noise
from heterotrain_operator.clusters.simulated.scenario import AT_ONCE, MemoryUse, Scenario, Timing, WorkerModel
from heterotrain_operator.clusters.simulated.steps import Steps
from heterotrain_operator.core.model import Group, Job, WorkerMetrics
from heterotrain_operator.loop import Loop

FAST, SLOW = "job-fast-0", "job-slow-0"
JOB = Job("job", (Group("fast", 1), Group("slow", 1)), 96, policy="Uniform")
MODELS = {"fast": WorkerModel(Affine(0.0, 0.001)), "slow": WorkerModel(Affine(0.0, 0.002))}
MIB = 2.0**20


class Simulation:
    """A cluster with the loop that steers its job, and every step that was executed."""

    def __init__(
        self,
        *events: ClusterEvent,
        models: Mapping[str, WorkerModel] = MODELS,
        job: Job = JOB,
        timing: Timing = AT_ONCE,
        communication: RingAllReduce | None = None,
        total_steps: int | None = None,
        shared_noise: Noise | None = None,
    ) -> None:
        scenario = Scenario(job, models, events, timing=timing, total_steps=total_steps, seed=3)
        if shared_noise is not None:
            scenario = replace(scenario, shared_noise=shared_noise)
        if communication is not None:
            scenario = replace(scenario, communication=communication)
        self.cluster = SimulatedCluster(scenario)
        self.loop = Loop(self.cluster, clock=lambda: self.cluster.now, monotonic=lambda: self.cluster.now)
        self.steps: list[Steps] = []
        self.cluster.training.on_steps = self.steps.append

    def start(self) -> Simulation:
        for _ in range(60):
            self.loop.round(self.cluster.scenario.job, None)
            if self.cluster.plan is not None:
                return self
            self.cluster.wait(0.5)
        raise AssertionError("no plan within half a minute")

    def round(self, seconds: float = 0.0) -> None:
        self.cluster.wait(seconds)
        self.loop.round(self.cluster.scenario.job, None)

    def metrics(self, name: str) -> WorkerMetrics | None:
        workers = {worker.name: worker for worker in self.cluster.observe()[0].workers}
        return workers[name].metrics

    def own_seconds(self) -> Matrix:
        return np.concatenate([steps.own_seconds for steps in self.steps])


def test_step_takes_as_long_as_its_slowest_member_and_the_communication_after_it() -> None:
    simulation = Simulation(communication=RingAllReduce(1e6, 1e8)).start()
    simulation.cluster.train(3)
    assert simulation.steps[0].seconds == pytest.approx([48 * 0.002 + 0.01] * 3)


def test_noise_that_workers_share_makes_all_of_them_slower_and_faster_together() -> None:
    simulation = Simulation(shared_noise=AR1(0.9, 0.3)).start()
    simulation.cluster.train(40)
    own = simulation.own_seconds()
    assert own[:, 1] == pytest.approx(2 * own[:, 0])
    assert 0.1 < own[:, 0].std() / own[:, 0].mean() < 0.5
    again = Simulation(shared_noise=AR1(0.9, 0.3)).start()
    for steps in (7, 1, 32):
        again.cluster.train(steps)
    assert (again.own_seconds() == own).all()


def test_counters_are_those_that_a_trainer_exports() -> None:
    simulation = Simulation().start()
    simulation.cluster.train(4)
    fast, slow = simulation.metrics(FAST), simulation.metrics(SLOW)
    assert fast is not None and slow is not None
    assert (fast.plan_version, fast.batch_size, fast.step, fast.steps, fast.samples) == (1, 48, 4, 4, 192)
    assert (fast.own_seconds, fast.wait_seconds) == pytest.approx((4 * 0.048, 4 * 0.048))
    assert (slow.own_seconds, slow.wait_seconds) == pytest.approx((4 * 0.096, 0.0))
    assert slow.own_seconds_squared == pytest.approx(4 * 0.096**2)


def test_time_passes_in_whole_steps_and_the_one_under_way_goes_on() -> None:
    simulation = Simulation().start()
    taken = []
    for _ in range(4):
        before = simulation.cluster.training.executed
        simulation.cluster.wait(0.25)
        taken.append(simulation.cluster.training.executed - before)
    assert taken == [2, 3, 2, 3]


def test_first_step_of_a_version_is_not_measured_and_a_plan_is_followed_some_steps_after_it_was_published() -> None:
    job = replace(JOB, policy="Optimal", interval=5)
    simulation = Simulation(job=job, timing=replace(AT_ONCE, switch_steps=3, unmeasured_steps=1)).start()
    simulation.cluster.train(6)
    assert simulation.metrics(FAST).steps == 5  # type: ignore[union-attr]
    simulation.round()
    plan = simulation.cluster.plan
    assert plan is not None and plan.version == 2
    simulation.cluster.train(2)
    assert simulation.metrics(FAST).plan_version == 1  # type: ignore[union-attr]
    simulation.cluster.train(3)
    metrics = simulation.metrics(FAST)
    assert metrics is not None
    assert (metrics.plan_version, metrics.batch_size, metrics.steps) == (2, plan.batch_sizes[0], 1)


def test_workers_start_and_meet_before_they_train() -> None:
    timing = Timing(pod_seconds=2, prepare_seconds=3, rendezvous_seconds=1.5)
    simulation = Simulation(timing=timing, models={**MODELS, "slow": replace(MODELS["slow"], start_seconds=4)})
    simulation.round()
    phases = []
    for _ in range(22):
        simulation.round(0.5)
        metrics = simulation.cluster.pods[SLOW].seen().metrics
        phases.append("" if metrics is None else metrics.phase)
    assert [phases.index(phase) / 2 for phase in ("preparing", "starting", "training")] == [1.5, 9.0, 10.0]


def test_noise_of_a_worker_at_a_step_depends_on_no_batch_and_on_no_cut() -> None:
    models = {name: replace(model, noise=AR1(0.9, 0.2)) for name, model in MODELS.items()}
    runs = []
    for policy, lengths in (("Uniform", [60]), ("Optimal", [7, 13, 10, 30])):
        simulation = Simulation(models=models, job=replace(JOB, policy=policy)).start()
        for steps in lengths:
            simulation.cluster.train(steps)
            simulation.round()
        runs.append(np.concatenate([steps.factors for steps in simulation.steps]))
        assert len({steps.plan.batch_sizes for steps in simulation.steps}) == (1 if policy == "Uniform" else 2)
    assert np.array_equal(*runs)


def slowdown(*events: ClusterEvent, steps: int = 40, models: Mapping[str, WorkerModel] = MODELS) -> list[float]:
    """By step, how many times as long the slow worker takes."""
    simulation = Simulation(*events, models=models).start()
    simulation.cluster.train(steps)
    return [float(factor) for factor in simulation.own_seconds()[:, 1] / 0.096]


def test_times_jump_drift_and_suffer_from_neighbours() -> None:
    assert slowdown(Jump(("slow",), 3.0, 10, 20)) == pytest.approx([1] * 10 + [3] * 10 + [1] * 20)
    drift = slowdown(Drift((SLOW,), 4.0, 10, 20))
    assert [drift[step] for step in (9, 15, 20, 39)] == pytest.approx([1, 2, 4, 4])
    neighbour = slowdown(Interference((), 2.0, period=10, busy=0.3, begin=10))
    assert neighbour == pytest.approx([1] * 10 + ([2] * 3 + [1] * 7) * 3)
    assert slowdown(Jump(("fast",), 3.0, 0)) == pytest.approx([1] * 40)


def test_a_limit_makes_slow_as_far_as_it_binds() -> None:
    models = {**MODELS, "slow": replace(MODELS["slow"], cpu_limit=2.0)}
    binding = slowdown(LimitChange(("slow",), 1.0, 10), LimitChange(("slow",), 2.0, 20), models=models)
    assert binding == pytest.approx([1] * 10 + [2] * 10 + [1] * 20)
    assert slowdown(LimitChange(("slow",), 1.0, 10, elasticity=0.0), models=models) == pytest.approx([1] * 40)
    assert slowdown(LimitChange(("slow",), 0.5, 10, elasticity=0.5), models=models)[10:] == pytest.approx([2] * 30)


def test_operator_sees_a_limit_only_if_it_is_known() -> None:
    models = {**MODELS, "slow": replace(MODELS["slow"], cpu_limit=2.0)}
    simulation = Simulation(LimitChange((), 1.0, 10, known=False), LimitChange((), 0.5, 20), models=models).start()
    limits = []
    for _ in range(3):
        simulation.cluster.train(10)
        limits.append({pod.seen().cpu_limit for pod in (simulation.cluster.pods[SLOW],)})
    assert limits == [{2.0}, {0.5}, {0.5}]


def test_use_of_the_cpu_says_what_made_a_worker_slow() -> None:
    models = {**MODELS, "slow": replace(MODELS["slow"], cpu_limit=2.0)}
    causes = (LimitChange(("slow",), 1.0, 0), Interference(("slow",), 3.0, 10), Jump(("fast",), 5.0, 0))
    simulation = Simulation(*causes, models=models).start()
    simulation.cluster.train(10)
    fast, slow = simulation.metrics(FAST), simulation.metrics(SLOW)
    assert fast is not None and slow is not None
    assert (fast.cpu_seconds, fast.cpu_throttled_seconds, fast.cpu_wait_seconds) == pytest.approx((2.4, 0.0, 0.0))
    # Twice its 96 ms by the limit, and half of the time three times that.
    used = (slow.cpu_seconds, slow.cpu_throttled_seconds, slow.cpu_wait_seconds)
    assert used == pytest.approx((0.96, 0.96, 5 * 2 * 0.192))
    assert slow.own_seconds == pytest.approx(sum(used))  # type: ignore[arg-type]  # none is None
    assert slow.observed_seconds == pytest.approx(slow.own_seconds + slow.wait_seconds)


def test_a_worker_that_has_just_started_warms_up() -> None:
    warming = slowdown(WarmUp(("slow",), 5.0, 4.0))
    assert (warming[0], warming[4]) == pytest.approx((5.0, 1 + 4 / np.e))
    assert warming[-1] < 1.001


def test_whoever_keeps_the_others_waiting_is_slower_under_a_quota() -> None:
    models = {name: WorkerModel(Throttled(model.law, 1.5)) for name, model in MODELS.items()}
    simulation = Simulation(models=models).start()
    simulation.cluster.train(1)
    assert simulation.own_seconds()[0] == pytest.approx([0.048, 1.5 * 0.096])


@pytest.mark.parametrize(
    ("event", "disrupted", "code"), [(Preemption(("slow",), 7), True, 143), (Death(("slow",), 7), False, 137)]
)
def test_a_worker_dies_at_its_step_and_nobody_trains_on(event: ClusterEvent, disrupted: bool, code: int) -> None:
    simulation = Simulation(event).start()
    assert simulation.cluster.train(20) == 7
    slow = simulation.cluster.pods[SLOW].seen()
    assert (slow.exit_code, slow.disrupted, slow.step, slow.metrics) == (code, disrupted, 7, None)
    assert simulation.cluster.train(5) == 0
    assert simulation.metrics(FAST).phase == "reforming"  # type: ignore[union-attr]


def test_clock_stops_at_a_death_that_nobody_has_seen() -> None:
    simulation = Simulation(Death(("slow",), 7)).start()
    began = simulation.cluster.now
    simulation.cluster.wait(100)
    assert simulation.cluster.now - began == pytest.approx(7 * 0.096)
    simulation.cluster.observe()
    simulation.cluster.wait(100)
    assert simulation.cluster.now - began == pytest.approx(7 * 0.096 + 100)


def test_who_needs_more_memory_than_its_limit_is_killed() -> None:
    use = MemoryUse(100 * MIB, 10 * MIB, 500 * MIB)
    simulation = Simulation(models={**MODELS, "slow": replace(MODELS["slow"], memory=use)}).start()
    assert simulation.cluster.train(5) == 0
    slow = simulation.cluster.pods[SLOW].seen()
    assert (slow.exit_code, slow.out_of_memory) == (137, True)


def test_peaks_are_exported_with_their_batch_and_limit() -> None:
    use = MemoryUse(100 * MIB, 10 * MIB, 1000 * MIB)
    simulation = Simulation(models={**MODELS, "slow": replace(MODELS["slow"], memory=use)}).start()
    simulation.cluster.train(5)
    metrics = simulation.metrics(SLOW)
    assert metrics is not None and metrics.memory_peak_bytes is not None
    assert metrics.memory_peak_bytes == pytest.approx(580 * MIB, rel=0.01)
    assert (metrics.memory_batch_size, metrics.memory_limit_bytes) == (48, 1000 * MIB)


def test_metrics_are_lost_each_by_itself() -> None:
    simulation = Simulation(Unreadable(("slow",), 5, 15, 0.5), SourceDown(20, 30)).start()
    simulation.cluster.train(4)
    assert all(simulation.metrics(SLOW) is not None for _ in range(20))
    simulation.cluster.train(6)
    read = [simulation.metrics(SLOW) is not None for _ in range(100)]
    assert 30 < sum(read) < 70
    assert simulation.metrics(FAST) is not None
    simulation.cluster.train(10)
    seen, _ = simulation.cluster.observe()
    assert seen.metrics_problem
    assert {worker.metrics for worker in seen.workers} == {None}


def test_late_metrics_are_those_of_the_last_scrape() -> None:
    simulation = Simulation(LateMetrics((), 15.0)).start()
    steps = []
    for _ in range(6):
        simulation.cluster.wait(4.81)
        steps.append(simulation.metrics(SLOW).step)  # type: ignore[union-attr]
    assert steps == [0, 0, 0, 200, 200, 200]


def test_job_of_so_many_steps_finishes() -> None:
    simulation = Simulation(total_steps=25).start()
    for _ in range(5):
        simulation.round(1.0)
    assert simulation.cluster.training.step == 25
    assert {(pod.phase, pod.exit_code, pod.finished) for pod in simulation.cluster.pods.values()} == {
        ("Succeeded", 0, True)
    }


def test_workers_that_start_again_go_on_from_the_last_checkpoint() -> None:
    scenario = Scenario(
        replace(JOB, resumable=True), MODELS, (Preemption(("slow",), 57),), timing=AT_ONCE, checkpoint_steps=20
    )
    cluster = SimulatedCluster(scenario)
    loop = Loop(cluster, clock=lambda: cluster.now, monotonic=lambda: cluster.now)
    while cluster.training.executed < 60:
        loop.round(scenario.job, None)
        cluster.wait(0.5)
    assert cluster.training.step == cluster.training.executed - 57 + 40
