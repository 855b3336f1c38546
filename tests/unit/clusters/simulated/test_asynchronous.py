"""A simulated asynchronous job: the real decisions, the server's real rules, and pods that come and go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain_operator.clusters.simulated.cluster import SimulatedCluster
from heterotrain_operator.clusters.simulated.events import Death
from heterotrain_operator.clusters.simulated.laws import Affine
from heterotrain_operator.clusters.simulated.scenario import Scenario, Timing, WorkerModel
from heterotrain_operator.core.model import SERVER_GROUP, Group, Job
from heterotrain_operator.experiments.simulations import simulate
from heterotrain_operator.loop import Loop

JOB = Job(
    "job",
    (Group("fast", 1), Group("slow", 1)),
    96,
    policy="PapersProportional",
    fixed_global_batch=False,
    interval=100,
    server=Group(SERVER_GROUP, 1),
)
MODELS = {"fast": WorkerModel(Affine(0.01, 0.001), protocol=3), "slow": WorkerModel(Affine(0.01, 0.004), protocol=3)}
SCENARIO = Scenario(JOB, MODELS, intervals=60, timing=Timing(link_seconds=0.001, update_seconds=0.001), seed=3)


def test_batches_even_out_how_often_updates_come() -> None:
    uniform = simulate(replace(SCENARIO, job=replace(JOB, policy="Uniform")))
    balanced = simulate(SCENARIO)
    assert uniform.spread_of_rates > 3
    assert balanced.spread_of_rates < 1.1
    assert balanced.steps == SCENARIO.steps
    assert simulate(SCENARIO).plans == balanced.plans


@pytest.mark.parametrize("most", [0, 3])
def test_nobody_is_further_ahead_than_the_bound(most: int) -> None:
    found = simulate(replace(SCENARIO, job=replace(JOB, policy="Uniform"), max_staleness=most, intervals=5))
    updates = [peer.updates for peer in found.peers]
    assert max(updates) - min(updates) <= most + 1
    assert found.spread_of_rates < 1.1


def test_late_updates_are_discarded_where_nobody_waits_for_them() -> None:
    job = replace(JOB, policy="Uniform")
    found = simulate(replace(SCENARIO, job=job, max_staleness=1, late="Discard", intervals=5))
    discarded = {peer.worker: peer.discarded for peer in found.peers}
    assert discarded["job-slow-0"] > 0
    assert discarded["job-fast-0"] == 0


def test_one_link_and_one_server_bound_how_many_updates_there_are() -> None:
    timing = Timing(link_seconds=0.001, update_seconds=0.5)
    found = simulate(replace(SCENARIO, timing=timing, intervals=5))
    assert found.step_seconds[100:].mean() == pytest.approx(0.5, rel=0.01)


def test_worker_that_dies_has_a_successor_and_no_update_is_lost() -> None:
    found = simulate(replace(SCENARIO, events=(Death(at=1000, workers=("slow",)),)))
    assert found.steps == SCENARIO.steps
    assert found.repeated_steps == 0
    assert [peer.worker for peer in found.peers] == ["job-fast-0", "job-slow-1"]


def test_job_goes_on_from_its_servers_newest_checkpoint() -> None:
    scenario = replace(SCENARIO, checkpoint_steps=50, job=replace(JOB, resumable=True))
    cluster = SimulatedCluster(scenario)
    loop = Loop(cluster, clock=lambda: cluster.now, monotonic=lambda: cluster.now)
    for _ in range(30):
        loop.round(scenario.job, None)
        cluster.wait(1.0)
    before = cluster.training.step
    assert before > 100
    server = next(pod for pod in cluster.pods.values() if pod.group == SERVER_GROUP)
    server.end(137, message="killed")
    for _ in range(60):
        loop.round(scenario.job, None)
        cluster.wait(1.0)
    assert cluster.training.repeated == before % 50
    assert cluster.training.step > before


def test_job_ends_well_after_its_last_update() -> None:
    found = simulate(replace(SCENARIO, total_steps=700))
    assert found.phase == "Succeeded"
    assert found.steps == 700
