"""Workers that are wanted and do not come: the others train on, and everybody can read why they are so few."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain.contract import MEMBERS_MAY_END, PHASE_PREPARING
from heterotrain_operator.core.memory.members import MOST_PENDING
from heterotrain_operator.core.model import Condition, Decision, Group, Job
from heterotrain_operator.core.state import Memory
from unit.core.members import A, B, C, D, E, elastic_world, names, resize, settled
from unit.core.traces import World


def degraded(decision: Decision) -> Condition:
    (found,) = [each for each in decision.conditions if each.type == "Degraded"]
    return found


def stuck_world(replicas: int = 4, **changes: object) -> World:
    """Three workers train, and others are wanted, whose pods `hold` keeps from starting."""
    world = elastic_world(**changes)
    resize(world, replicas)
    return world


def hold(world: World, message: str, node: str = "node-1") -> None:
    """All newcomers' pods wait, for that reason."""
    for pod in world.workers.values():
        if pod.metrics.generation == 0 and pod.exit_code is None:
            pod.phase, pod.message, pod.node, pod.answers = "Pending", message, node, False


def looks(world: World, number: int, seconds: float, message: str, node: str = "node-1") -> list[Decision]:
    found = []
    for _ in range(number):
        hold(world, message, node)
        world.train(1)
        found.append(world.tick(seconds))
    return found


# --- what is told -----------------------------------------------------------------------------------------------


def test_why_a_newcomer_does_not_start_is_told_as_it_is_of_a_job_that_starts() -> None:
    message = "ImagePullBackOff: Back-off pulling image"
    starting = World(Job("job", (Group("a", 3),), global_batch=192))
    starting.tick()
    for pod in starting.workers.values():
        pod.phase, pod.message, pod.answers = "Pending", message, False
    assert f"{A} (Pending: {message})" in starting.tick().reason
    world = stuck_world()
    *_, decision = looks(world, 3, 5.0, message)
    assert decision.phase == "Running"
    assert f"waiting for {D} (Pending: {message})" in decision.reason
    assert not degraded(decision).status, "it may start yet"


def test_pod_that_is_refused_is_told_of() -> None:
    world = stuck_world()
    world.tick()
    del world.workers[D]
    seen = world.seen
    vars(world)["seen"] = lambda: replace(seen(), refused=((D, "exceeded quota"),))
    assert f"{D} (exceeded quota)" in world.tick(30).reason


def test_newcomer_that_finds_no_place_is_waited_for_and_told_of() -> None:
    world = stuck_world(startup_deadline_seconds=100.0)
    decisions = looks(world, 60, 10.0, "Unschedulable: 0/3 nodes are available", node="")
    assert {decision.phase for decision in decisions} == {"Running"}
    assert world.created == 4
    assert (degraded(decisions[-1]).status, degraded(decisions[-1]).reason) == (True, "InsufficientCapacity")
    assert "0/3 nodes" in degraded(decisions[-1]).message
    pod = world.workers[D]
    pod.phase, pod.message, pod.node, pod.answers = "Running", "", "node-1", True
    settled(world, 3)
    assert names(world.plan) == [A, B, C, D]
    assert not degraded(world.decisions[-1]).status


def test_time_without_a_place_does_not_count_as_time_to_start() -> None:
    world = stuck_world(startup_deadline_seconds=100.0)
    looks(world, 60, 10.0, "Unschedulable", node="")
    looks(world, 8, 10.0, "ContainerCreating")
    assert world.created == 4


# --- how often, and how long ------------------------------------------------------------------------------------


def test_newcomer_that_cannot_start_is_tried_so_often_and_given_up_while_the_others_train() -> None:
    world = stuck_world(backoff_limit=2, startup_deadline_seconds=100.0)
    step = world.cluster.training.step
    decisions = looks(world, 100, 10.0, "ErrImagePull: not found")
    assert {decision.phase for decision in decisions} == {"Running"}
    assert world.created == 3 + 3, "one, and two in its place"
    assert set(world.workers) == {A, B, C}
    assert world.cluster.training.step == step + 100
    assert degraded(decisions[-1]).reason == "WorkersMissing"
    assert "given up after 3 tries" in degraded(decisions[-1]).message
    assert "not found" in degraded(decisions[-1]).message
    assert world.memory.budget.restarts == 0
    [event] = [event for each in decisions for event in each.events if event.reason == "WorkerGivenUp"]
    assert (event.kind, "2 replacements" in event.message) == ("Warning", True)


@pytest.mark.parametrize("named", [False, True])
def test_newcomer_that_ends_at_its_start_again_and_again_is_given_up(named: bool) -> None:
    world = stuck_world(backoff_limit=1)
    for _ in range(60):
        for pod in world.workers.values():
            ready = world.plan is not None and pod.name in names(world.plan)
            if pod.metrics.generation == 0 and pod.exit_code is None and (ready or not named):
                pod.end_out_of_memory("while it imported")
        if not named:
            world.train(1)
        decision = world.tick(5)
        assert decision.phase == "Running"
        if named:
            for pod in world.workers.values():
                if pod.metrics.generation and pod.exit_code is None:
                    pod.metrics = replace(pod.metrics, step=pod.metrics.step + 1)
    assert world.created == 3 + 2
    assert degraded(decision).reason == "WorkersMissing"
    assert "while it imported" in degraded(decision).message


def test_delays_grow_from_try_to_try() -> None:
    world = stuck_world(backoff_limit=8)
    delays = []
    for _ in range(600):
        for pod in list(world.workers.values()):
            if pod.metrics.generation == 0 and pod.exit_code is None:
                pod.end(1)
                world.train(1)
                now, created = world.now, world.created
                world.tick(0.1)
                at_once = world.created > created
                delays.append(0 if at_once else round(world.memory.pending[0].due_at - now))
        world.train(1)
        world.tick(0.5)
    assert delays[:8] == [0, 1, 2, 4, 8, 16, 32, 60]
    assert world.created == 3 + 9


def test_newcomer_whose_script_never_gets_ready_counts() -> None:
    world = stuck_world(backoff_limit=0, startup_deadline_seconds=50.0)
    for _ in range(20):
        for pod in world.workers.values():
            if pod.metrics.generation == 0:
                pod.metrics = replace(pod.metrics, phase=PHASE_PREPARING)
        world.train(1)
        decision = world.tick(10)
    assert (decision.phase, set(world.workers)) == ("Running", {A, B, C})
    assert "its script is not at its loop yet" in degraded(decision).message


def test_source_of_metrics_that_is_away_is_no_newcomers_fault() -> None:
    world = stuck_world(startup_deadline_seconds=50.0)
    world.tick()
    seen = world.seen

    def blind() -> object:
        found = seen()
        workers = tuple(replace(worker, metrics=None) for worker in found.workers)
        return replace(found, workers=workers, metrics_problem="the server is away")

    vars(world)["seen"] = blind
    for _ in range(20):
        world.train(1)
        assert world.tick(10).delete == ()


def test_member_whose_place_is_given_up_for_its_newcomers_leaves_the_others_training() -> None:
    world = elastic_world(backoff_limit=1)
    world.workers[B].end(1)
    for _ in range(30):
        world.train(1)
        decision = world.tick(5)
        for pod in world.workers.values():
            if pod.metrics.generation == 0 and pod.exit_code is None:
                pod.end(1, message="no such module")
    assert (decision.phase, names(world.plan)) == ("Running", [A, C])
    assert degraded(decision).reason == "WorkersMissing"


def test_place_that_was_given_up_is_tried_again_once_it_was_not_wanted() -> None:
    world = stuck_world(backoff_limit=0)
    for _ in range(4):
        for pod in world.workers.values():
            if pod.metrics.generation == 0 and pod.exit_code is None:
                pod.end(1)
        world.train(1)
        world.tick(20)
    assert world.created == 4
    resize(world, 3)
    settled(world, 2)
    assert world.memory.pending == ()
    resize(world, 4)
    settled(world)
    assert len(names(world.plan)) == 4


def test_hundreds_of_newcomers_that_cannot_start_are_not_tried_for_ever() -> None:
    world = stuck_world(replicas=203, backoff_limit=1, global_batch=1024)
    for _ in range(60):
        for pod in world.workers.values():
            if pod.metrics.generation == 0 and pod.exit_code is None:
                pod.end(1)
        world.train(1)
        decision = world.tick(20)
        assert decision.phase == "Running"
        assert len(world.memory.pending) <= MOST_PENDING
    created = world.created
    settled(world, 10)
    assert world.created == created <= 3 + 200 + 2 * MOST_PENDING
    assert names(world.plan) == [A, B, C]


def test_newcomers_that_start_do_not_keep_the_end_of_a_member_from_being_remembered() -> None:
    world = stuck_world(replicas=103, global_batch=1024)
    looks(world, 2, 5.0, "ContainerCreating")
    world.workers[B].end(1)
    decision = world.tick()
    assert decision.phase == "Running"
    assert names(world.plan) == [A, C]


def test_lost_memory_does_not_lose_sight_of_a_newcomer_that_does_not_start() -> None:
    world = stuck_world(backoff_limit=0, startup_deadline_seconds=50.0)
    looks(world, 3, 5.0, "ErrImagePull")
    world.memory = Memory.initial()
    looks(world, 12, 5.0, "ErrImagePull")
    assert set(world.workers) == {A, B, C}


def test_newcomer_that_waits_costs_no_writes() -> None:
    world = stuck_world()
    looks(world, 3, 1.0, "Unschedulable", node="")
    writes = 0
    for _ in range(30):
        before = world.memory
        looks(world, 1, 1.0, "Unschedulable", node="")
        writes += not world.memory.same_but_measurements(before)
    assert writes == 0


# --- fewer workers, of which the rest cannot do without those that are to come -----------------------------------


def swap_world(**changes: object) -> World:
    """192 samples, which a worker with 128 and one with 64 hold, and neither alone."""
    a, b = Group("a", 1, batch_min=128, multiple_of=128), Group("b", 1, batch_min=64, multiple_of=64)
    job = Job("job", (a, b, Group("c", 0, batch_min=64, multiple_of=64)), global_batch=192)
    world = World(replace(job, **changes), protocol=MEMBERS_MAY_END).start()  # type: ignore[arg-type]
    world.run(2)
    swapped = (a, replace(b, replicas=0), replace(world.job.groups[2], replicas=1))
    world.job = replace(world.job, groups=swapped)
    return world


@pytest.mark.parametrize("removed", [False, True])
def test_worker_that_the_others_cannot_do_without_stays_until_its_successor_is_ready(removed: bool) -> None:
    world = swap_world()
    if removed:
        world.job = replace(world.job, groups=(world.job.groups[0], world.job.groups[2]))
    step = world.cluster.training.step
    for _ in range(20):
        for pod in world.workers.values():
            if pod.group == "c":
                pod.metrics = replace(pod.metrics, phase=PHASE_PREPARING)
        world.train(1)
        decision = world.tick(5)
        assert (decision.phase, decision.plan, decision.delete) == ("Running", None, ())
        assert "192" in decision.reason
    for pod in world.workers.values():
        if pod.group == "c":
            pod.metrics = replace(pod.metrics, phase="waiting")
    settled(world, 4)
    assert names(world.plan) == ["job-a-0", "job-c-0"]
    assert set(world.workers) == {"job-a-0", "job-c-0"}
    assert (world.memory.budget.restarts, world.cluster.training.step) == (0, step + 28)


def test_successor_that_never_comes_starts_all_again_for_the_true_reason() -> None:
    world = swap_world(startup_deadline_seconds=60.0)
    decisions = []
    for _ in range(30):
        for pod in world.workers.values():
            if pod.group == "c":
                pod.metrics = replace(pod.metrics, phase=PHASE_PREPARING)
        world.train(1)
        decisions.append(world.tick(5))
        if decisions[-1].phase != "Running":
            break
    assert (decisions[-1].phase, decisions[-1].events[0].reason) == ("Restarting", "WorkersResized")
    assert "group b wants 0 workers" in decisions[-1].reason
    assert "192" in decisions[-1].reason
    assert world.memory.budget.restarts == 0


def test_all_members_that_are_not_wanted_stay_until_others_have_their_state() -> None:
    world = World(Job("job", (Group("a", 2), Group("b", 0)), global_batch=192), protocol=MEMBERS_MAY_END).start()
    world.run(2)
    step = world.cluster.training.step
    world.job = replace(world.job, groups=(Group("a", 0), Group("b", 2)))
    settled(world, 8)
    assert names(world.plan) == ["job-b-0", "job-b-1"]
    assert (world.cluster.training.step, world.memory.budget.restarts) == (step + 16, 0)
    assert E not in world.workers
