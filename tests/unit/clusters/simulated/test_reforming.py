"""Simulated workers whose members can change: survivors go on by themselves, and newcomers start while others train."""

from __future__ import annotations

import numpy as np
import pytest

from heterotrain.contract import Member, Plan
from heterotrain_operator.clusters.simulated.cluster import SimulatedCluster
from heterotrain_operator.clusters.simulated.events import Death, Preemption
from heterotrain_operator.clusters.simulated.laws import Affine
from heterotrain_operator.clusters.simulated.pod import SimulatedPod, reformed
from heterotrain_operator.clusters.simulated.scenario import AT_ONCE, Scenario, Timing, WorkerModel
from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.experiments.report.simulated import standstill
from heterotrain_operator.experiments.simulations import SimulationResult, simulate
from heterotrain_operator.experiments.simulations.comparison import compared, figures_of
from heterotrain_operator.loop import Loop

JOB = Job("job", (Group("a", 3),), 96)
TIMING = Timing(pod_seconds=5.0, prepare_seconds=10.0, reform_seconds=1.0, transition_seconds=0.5)
ENDS = (Preemption(("job-a-0",), 120), Death(("job-a-1",), 420))


def simulated(protocol: int, *, forgetful: bool = False) -> SimulationResult:
    """Steps take 0.1 s and more of each worker."""
    model = WorkerModel(Affine(0.1, 0.001), protocol=protocol)
    scenario = Scenario(JOB, {"a": model}, ENDS, timing=TIMING, checkpoint_steps=50, intervals=60)
    return simulate(scenario, forgetful=forgetful)


def pauses(result: SimulationResult) -> list[float]:
    """Seconds between two steps, where there are any."""
    gaps = result.began[1:] - (result.began + result.step_seconds)[:-1]
    return [float(gap) for gap in gaps if gap > 1e-6]


def test_every_step_is_executed_once_and_those_that_are_left_stand_still_for_seconds_alone() -> None:
    result = simulated(3)
    assert (result.phase, result.steps, result.repeated_steps) == ("Running", 600, 0)
    assert result.plans[-1].workers == ("job-a-2", "job-a-3", "job-a-0")
    # Once for each end, and once for each worker that joins.
    assert pauses(result) == pytest.approx([1.0, 0.5, 1.0, 0.5], abs=0.2)


def test_workers_that_start_again_execute_steps_twice_and_wait_for_all_to_start() -> None:
    again, elastic = simulated(1), simulated(3)
    assert again.repeated_steps > 0
    assert again.idle_seconds > 5 * elastic.idle_seconds


def test_newcomer_starts_while_the_others_train() -> None:
    result = simulated(3)
    joined = next(plan for plan in result.plans if "job-a-3" in plan.workers)
    left = next(plan for plan in result.plans if plan.generation == 2)
    assert joined.seconds - left.seconds >= 15
    assert joined.step - left.step > 50


def test_what_is_remembered_can_be_lost_and_read_back_between_two_decisions() -> None:
    kept, forgotten = simulated(3), simulated(3, forgetful=True)
    assert kept.plans == forgotten.plans
    assert np.array_equal(kept.step_seconds, forgotten.step_seconds)


def test_summary_says_that_every_sample_was_used_once() -> None:
    words = {}
    for protocol in (1, 3):
        result = simulated(protocol)
        [policy] = compared("x", "", [figures_of("Optimal", result)], result).policies
        words[protocol] = standstill(policy)
    assert words[3].startswith("600 steps, every sample once, and ")
    assert "were executed before" in words[1]


def test_counters_of_survivors_begin_again_under_the_same_version_with_the_batches_that_they_share() -> None:
    scenario = Scenario(JOB, {"a": WorkerModel(Affine(0.1, 0.001), protocol=3)}, timing=AT_ONCE)
    cluster = SimulatedCluster(scenario)
    loop = Loop(cluster, clock=lambda: cluster.now, monotonic=lambda: cluster.now)
    while cluster.plan is None:
        loop.round(JOB, None)
    cluster.train(7)
    cluster.pods["job-a-1"].end(137)
    cluster.train(4)
    metrics = cluster.pods["job-a-0"].seen().metrics
    assert metrics is not None
    assert (metrics.plan_version, metrics.generation, metrics.batch_size, metrics.step) == (1, 1, 48, 11)
    assert (metrics.steps, metrics.samples) == (4, 4 * 48)
    assert metrics.own_seconds == pytest.approx(4 * 0.148)


def test_survivors_share_the_batch_and_compute_no_more_at_once_than_before() -> None:
    members = tuple(
        Member(name, f"u-{name}", "10.0.0.1:1", "a", batch) for name, batch in (("x", 30), ("y", 20), ("z", 10))
    )
    pods = [SimulatedPod(name, "a", 0, f"u-{name}", Affine(0.002, 0.001), protocol=3) for name in ("x", "z")]
    plan = reformed(Plan(4, 2, "step", members), pods)
    assert [(m.name, m.batch_size, m.micro_batch_size) for m in plan.members] == [("x", 45, 30), ("z", 15, 10)]
    assert (plan.version, plan.generation, plan.global_batch_size) == (4, 2, 60)
