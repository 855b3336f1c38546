"""Nodes that are lost, pods that are deleted, metrics that are away: what they cost, and what they must not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain_operator.core.decide import decide
from heterotrain_operator.core.model import Decision, Seen, WorkerSeen
from heterotrain_operator.core.state import Memory
from unit.core.traces import World, hetero_world


def changed(seen: Seen, name: str, **changes: object) -> Seen:
    workers = tuple(
        replace(worker, **changes) if worker.name == name else worker  # type: ignore[arg-type]  # as the test says
        for worker in seen.workers
    )
    return replace(seen, workers=workers)


def decided(world: World, seen: Seen) -> tuple[Decision, Memory]:
    return decide(world.job, seen, world.memory, world.now)


def test_lost_node_starts_all_again_without_counting() -> None:
    world = hetero_world(backoff_limit=0)
    world.run(1)
    decision, memory = decided(world, changed(world.seen(), "job-g1-0", node_lost=True, metrics=None))
    assert decision.phase == "Restarting"
    assert "job-g1-0 is on a node that does not answer" in decision.reason
    assert memory.budget.restarts == 0


@pytest.mark.parametrize(
    ("changes", "forced"),
    [
        ({"node_lost": True, "deleting_since": -1.0}, ("job-g1-0",)),
        ({"node_lost": True, "deleting_since": 5.0}, ()),
        ({"node_lost": True, "deleting_since": None}, ()),
        ({"node_lost": False, "deleting_since": -1.0}, ()),
    ],
    ids=["lost and due", "grace not over", "not deleted", "node answers"],
)
def test_only_pods_of_lost_nodes_go_without_an_answer(changes: dict[str, float], forced: tuple[str, ...]) -> None:
    world = hetero_world()
    world.run(1)
    if changes["deleting_since"] is not None:
        changes = {**changes, "deleting_since": world.now + changes["deleting_since"]}
    decision, _ = decided(world, changed(world.seen(), "job-g1-0", **changes))
    assert decision.force_delete == forced


def test_pod_that_is_being_deleted_is_no_member_of_a_new_plan() -> None:
    world = World(hetero_world().job)
    world.tick()
    decision, _ = decided(world, changed(world.seen(), "job-g1-0", deleting_since=world.now + 30))
    assert decision.plan is None
    assert "job-g1-0 (being deleted)" in decision.reason


@pytest.mark.parametrize("how", ["source", "everybody"])
def test_plan_stays_while_no_metrics_can_be_read_at_all(how: str) -> None:
    world = hetero_world()
    world.run(1)
    memory = world.memory
    seen = Seen(
        tuple(replace(worker, metrics=None) for worker in world.seen().workers),
        world.plan,
        metrics_problem="http://prometheus:9090 does not answer" if how == "source" else "",
    )
    for _ in range(100):
        world.now += 10
        decision, memory = decide(world.job, seen, memory, world.now)
        assert decision.phase == "Running"
        assert decision.plan is None
        assert not decision.delete
    degraded = next(condition for condition in decision.conditions if condition.type == "Degraded")
    assert (degraded.status, degraded.reason) == (True, "MetricsUnavailable")
    again, memory = decide(world.job, world.seen(), memory, world.now + 1)
    assert again.phase == "Running", "steering resumes by itself"


def test_workers_that_fall_silent_together_for_a_moment_impair_nothing() -> None:
    world = hetero_world(heartbeat_timeout_seconds=5.0)
    world.run(1)
    silent = Seen(tuple(replace(worker, metrics=None) for worker in world.seen().workers), world.plan)
    memory, told = world.memory, []
    for seconds in (0, 4, 6):
        decision, memory = decide(world.job, silent, memory, world.now + seconds)
        told += [condition.status for condition in decision.conditions if condition.type == "Degraded"]
    assert told == [False, False, True]


@pytest.mark.parametrize(
    ("policy", "deleted"),
    [
        ("All", {"job-g0-0", "job-g1-0", "job-g2-0"}),
        ("Running", {"job-g0-0", "job-g1-0"}),
        ("None", set()),
    ],
)
def test_ended_job_keeps_the_pods_that_its_policy_names(policy: str, deleted: set[str]) -> None:
    world = hetero_world(backoff_limit=0, clean_pod_policy=policy)
    world.workers["job-g2-0"].end(1)
    seen = world.seen()
    decision, memory = decided(world, seen)
    assert decision.phase == "Failed"
    assert set(decision.delete) == deleted
    again, _ = decide(world.job, seen, memory, world.now + 1)
    assert set(again.delete) == deleted


def test_pod_of_an_ended_worker_that_a_side_container_keeps_running_goes_with_the_running_ones() -> None:
    world = hetero_world(clean_pod_policy="Running")
    for worker in world.workers.values():
        worker.end(0, finished=True)
    seen = world.seen()
    lingers = replace(seen.workers[1], lingering=True)
    decision, _ = decided(world, replace(seen, workers=(seen.workers[0], lingers, seen.workers[2])))
    assert decision.phase == "Succeeded"
    assert decision.delete == (lingers.name,)


def test_finished_job_is_removed_once_its_time_is_over() -> None:
    world = hetero_world(ttl_seconds=60.0)
    for worker in world.workers.values():
        worker.end(0, finished=True)
    assert not world.tick().remove_job
    assert not world.tick(59).remove_job
    assert world.tick(1).remove_job


def test_memory_differs_only_in_measurements_while_a_job_trains_on() -> None:
    world = hetero_world()
    world.run(5)
    before = world.memory
    world.run(3)
    assert world.memory != before
    assert world.memory.same_but_measurements(before)
    world.workers["job-g0-0"].end(1)
    world.tick()
    assert not world.memory.same_but_measurements(before)


def test_single_silent_worker_is_not_taken_for_a_lost_source() -> None:
    world = hetero_world(scales=(1,))
    world.run(1)
    workers: tuple[WorkerSeen, ...] = tuple(replace(worker, metrics=None) for worker in world.seen().workers)
    decision = None
    memory = world.memory
    for _ in range(100):
        world.now += 10
        decision, memory = decide(world.job, Seen(workers, world.plan), memory, world.now)
        if decision.phase == "Restarting":
            break
    assert decision is not None
    assert decision.phase == "Restarting"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"deleting_since": 1_700_000_100.0, "disrupted": True}, "job-g2-0 is taken away"),
        ({"deleting_since": 1_700_000_100.0}, "job-g2-0 is taken away"),
        ({"node_lost": True}, "job-g2-0 is on a node that does not answer"),
    ],
)
def test_who_leaves_with_a_worker_that_is_taken_away_does_not_count(changes: dict[str, object], said: str) -> None:
    world = hetero_world(backoff_limit=0)
    world.run(1)
    world.workers["job-g0-0"].end(143, message="asked to stop; left after step 50")
    decision, memory = decided(world, changed(world.seen(), "job-g2-0", **changes))
    assert decision.phase == "Restarting"
    assert said in decision.reason
    assert memory.budget.restarts == 0


def test_who_ends_beside_a_worker_that_vanished_does_not_count() -> None:
    world = hetero_world(backoff_limit=0)
    world.run(1)
    world.workers["job-g0-0"].end(1, message="connection closed by peer")
    del world.workers["job-g2-0"]
    decision = world.tick()
    assert decision.phase == "Restarting"
    assert decision.reason.startswith("job-g2-0 vanished; job-g0-0 exited with code 1")
    assert world.memory.budget.restarts == 0


def test_worker_that_fails_at_every_start_counts_every_time() -> None:
    world = hetero_world(backoff_limit=2)
    world.run(1)
    for restarts in (1, 2):
        world.workers["job-g0-0"].end(1, message="no module named torch")
        world.tick()
        assert world.memory.budget.restarts == restarts
        world.tick(61)
    world.workers["job-g0-0"].end(1, message="no module named torch")
    assert world.tick().phase == "Failed"


def test_start_tells_what_the_source_of_metrics_does_not_know() -> None:
    world = World(hetero_world().job)
    world.tick()
    seen = replace(world.seen(), metrics_note="the server holds nothing of the workers")
    silent = replace(seen, workers=tuple(replace(worker, metrics=None) for worker in seen.workers))
    decision, _ = decided(world, silent)
    assert decision.reason.endswith("the server holds nothing of the workers")
