"""Newcomers, until they train with the others: created, waited for, named by a plan, taken in, or given up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heterotrain.contract import (
    MEMBERS_MAY_END,
    PHASE_PREPARING,
    PHASE_REFORMING,
    PHASE_STARTING,
    PHASE_WAITING,
)
from heterotrain_operator.core.facts import worker_name
from heterotrain_operator.core.model import Decision, Group, Job
from heterotrain_operator.core.state import Remembered
from unit.core.jobs import (
    A,
    B,
    C,
    D,
    E,
    changed,
    condition,
    elastic_world,
    ends,
    failing,
    looks,
    named,
    names,
    newcomers,
    nobody_reaches,
    reasons,
    resize,
    settled,
    stuck_world,
)
from unit.core.traces import World


def test_newcomer_that_finds_no_place_is_waited_for_told_of_and_has_its_whole_time_to_start_then() -> None:
    world = stuck_world(startup_deadline_seconds=100.0)
    decisions = looks(world, 60, 10.0, "Unschedulable: 0/3 nodes are available", node="")
    assert {decision.phase for decision in decisions} == {"Running"}
    degraded = condition(decisions[-1])
    assert (degraded.status, degraded.reason, "0/3 nodes" in degraded.message) == (True, "InsufficientCapacity", True)
    looks(world, 8, 10.0, "ContainerCreating")
    assert world.created == 4
    pod = world.workers[D]
    pod.phase, pod.message, pod.answers = "Running", "", True
    settled(world, 3)
    assert names(world.plan) == [A, B, C, D]
    assert not condition(world.decisions[-1]).status


def test_newcomer_that_waits_costs_no_writes() -> None:
    world = stuck_world()
    looks(world, 3, 1.0, "Unschedulable", node="")
    for _ in range(30):
        before = world.memory
        looks(world, 1, 1.0, "Unschedulable", node="")
        assert world.memory.same_but_measurements(before)


@pytest.mark.parametrize("why", ["never starts", "is never ready", "ends", "is named and ends", "is not reached"])
@pytest.mark.parametrize("forgetful", [False, True])
def test_newcomer_that_cannot_join_is_tried_so_often_and_given_up_while_the_others_train(
    why: str, forgetful: bool
) -> None:
    world = stuck_world(backoff_limit=2, startup_deadline_seconds=50.0)
    world.forgetful = forgetful
    step, decisions = world.cluster.training.step, []
    if why == "is not reached":
        nobody_reaches(world, A, B, C)
    for _ in range(120):
        if why == "never starts":
            decisions += looks(world, 1, 5.0, "ErrImagePull: not found")
            continue
        for name in newcomers(world):
            if why == "is never ready":
                world.workers[name].metrics = replace(world.workers[name].metrics, phase=PHASE_PREPARING)
            elif why == "ends" or (why == "is named and ends" and name in names(world.plan)):
                ends(world, name, "out of memory")
        world.train(1)
        decisions.append(world.tick(5))
    assert {decision.phase for decision in decisions} == {"Running"}
    assert world.created == 3 + 3, "one, and two in its place"
    assert (set(world.workers), names(world.plan)) == ({A, B, C}, [A, B, C])
    assert (world.cluster.training.step, world.memory.budget.restarts) == (step + 120, 0)
    said = {
        "never starts": "not found",
        "is never ready": "its script is not at its loop yet",
        "is not reached": "did not follow the plan",
    }.get(why, "while it imported")
    degraded = condition(decisions[-1])
    assert (degraded.status, degraded.reason) == (True, "WorkersMissing")
    assert "given up after 3 tries" in degraded.message
    assert said in degraded.message
    [event] = [event for each in decisions for event in each.events if event.reason == "WorkerGivenUp"]
    assert (event.kind, "2 replacements" in event.message) == ("Warning", True)


def test_newcomer_that_nobody_reaches_keeps_no_other_out() -> None:
    world = elastic_world(backoff_limit=2)
    resize(world, 5)
    unreachable = {D}
    for _ in range(100):
        nobody_reaches(world, *(set(world.workers) - unreachable))
        world.train(1)
        assert world.tick(5).phase == "Running"
        # Whoever comes in its place is not reached either.
        places = (place for place in world.memory.pending if place.replaces in unreachable)
        unreachable |= {worker_name("job", place.group, place.index) for place in places}
    assert names(world.plan)[:3] == [A, B, C]
    assert len(names(world.plan)) == 4
    assert world.created == 5 + 2 + 1, "both are tried once more, and one of them a third time"


def test_source_of_metrics_that_is_away_is_no_newcomers_fault() -> None:
    world = stuck_world(startup_deadline_seconds=50.0)
    world.tick()
    seen = world.seen
    vars(world)["seen"] = lambda: replace(changed(seen(), metrics=None), metrics_problem="the server is away")
    for _ in range(20):
        world.train(1)
        assert world.tick(10).delete == ()


def test_place_that_was_given_up_is_tried_again_once_it_was_not_wanted() -> None:
    world = stuck_world(backoff_limit=0)
    failing(world, 4, 20)
    assert world.created == 4
    resize(world, 3)
    settled(world, 2)
    assert world.memory.pending == ()
    resize(world, 4)
    settled(world)
    assert len(names(world.plan)) == 4


def test_lost_memory_does_not_lose_sight_of_a_newcomer_that_does_not_start() -> None:
    world = stuck_world(backoff_limit=0, startup_deadline_seconds=50.0)
    looks(world, 3, 5.0, "ErrImagePull")
    world.memory = Remembered.initial()
    looks(world, 12, 5.0, "ErrImagePull")
    assert set(world.workers) == {A, B, C}


@pytest.mark.parametrize("how", ["kill", "preempt", "vanish", "delete", "fatal", "script"])
def test_newcomer_that_ends_before_the_switch_is_left_out_and_replaced(how: str) -> None:
    world = named(elastic_world(), 5)
    ends(world, D, how)
    decision = world.tick()
    assert (decision.phase, names(decision.plan)) == ("Running", [A, B, C, E])
    settled(world, 12)
    assert names(world.plan) == [A, B, C, E, "job-a-5"]
    assert (world.memory.budget.restarts, world.created) == (0, 6)


@pytest.mark.parametrize("phase", [PHASE_STARTING, PHASE_REFORMING])
def test_nobody_hangs_while_all_wait_until_a_newcomer_has_their_state(phase: str) -> None:
    world = named(elastic_world())
    for pod in world.workers.values():
        pod.metrics = replace(pod.metrics, phase=phase)
    for _ in range(50):
        decision = world.tick(10)
        assert (decision.phase, decision.plan, decision.delete) == ("Running", None, ())


@pytest.mark.parametrize("gone_over", [False, True])
def test_newcomer_that_waits_neither_hides_that_members_hang_nor_is_blamed_for_it(gone_over: bool) -> None:
    world = named(elastic_world(progress_timeout_seconds=30.0))
    if gone_over:
        world.train(1)
        enters(world, D)
        world.tick()
    newcomer = world.workers[D]
    newcomer.metrics = replace(newcomer.metrics, generation=0, phase=PHASE_WAITING)
    said, stood_still = [], 0
    while "WorkerHung" not in said:
        assert (stood_still := stood_still + 5) <= 45
        said += reasons(world.tick(5))
    assert "PlanNotFollowed" not in said
    assert D not in world.decisions[-1].reason


def enters(world: World, name: str) -> None:
    """The others train with a newcomer that has not reported it yet."""
    pod = world.workers[name]
    pod.metrics = replace(pod.metrics, generation=0, plan_version=0, phase=PHASE_STARTING)


def entering(world: World, replicas: int = 4) -> str:
    """The next newcomer, once the others are seen to have gone over to the plan that names it."""
    resize(world, replicas)
    for _ in range(40):
        decision = world.tick(10)
        assert decision.phase == "Running"
        if decision.plan is not None and len(decision.plan.members) == replicas:
            break
        world.train(1)
    newcomer = names(world.plan)[-1]
    world.train(1)
    enters(world, newcomer)
    assert world.tick().plan is None
    return newcomer


@pytest.mark.parametrize(("deadline", "left_out"), [(600.0, False), (100.0, True)])
def test_large_state_takes_as_long_as_a_start_may_take(deadline: float, left_out: bool) -> None:
    world = elastic_world(startup_deadline_seconds=deadline)
    newcomer, plans = entering(world), []
    for _ in range(50):
        if newcomer in world.workers:
            enters(world, newcomer)
        world.train(1)
        if newcomer in world.workers:
            enters(world, newcomer)
        plans.append(world.tick(10).plan)
        assert world.decisions[-1].phase == "Running"
    assert ([A, B, C] in [names(plan) for plan in plans if plan is not None]) is left_out
    settled(world, 3)
    assert names(world.plan)[:3] == [A, B, C]
    assert (names(world.plan)[3:] == [newcomer]) is not left_out


@pytest.mark.parametrize("meanwhile", ["nothing", "another plan", "memory lost"])
def test_newcomer_that_enters_is_none_of_the_members_whatever_happens_meanwhile(meanwhile: str) -> None:
    world = elastic_world(backoff_limit=3)
    newcomer = entering(world)
    if meanwhile == "another plan":
        ends(world, B)
        assert names(world.tick().plan) == [A, C, newcomer]
        world.train(1)
        enters(world, newcomer)
    elif meanwhile == "memory lost":
        world.memory = Remembered.initial()
    world.tick()
    world.job = replace(world.job, backoff_limit=0)
    ends(world, newcomer, "exit")
    decision = world.tick()
    assert (decision.phase, set(names(decision.plan)) - {B, E}) == ("Running", {A, C})


def test_newcomer_is_known_as_one_before_the_switch_though_the_memory_is_lost() -> None:
    world = named(elastic_world(backoff_limit=0))
    world.memory = Remembered.initial()
    world.tick()
    ends(world, D, "exit")
    decision = world.tick()
    assert (decision.phase, names(decision.plan)) == ("Running", [A, B, C])


def test_worker_that_has_told_that_it_trains_is_a_member_whatever_is_read_of_it_later() -> None:
    world = elastic_world(backoff_limit=0)
    newcomer = entering(world)
    world.train(1)
    world.workers[newcomer].metrics = replace(world.workers[A].metrics, in_collective=False)
    world.tick()
    assert Remembered.from_json(world.memory.to_json()).following.entering == ""
    ends(world, newcomer, "exit")
    assert world.tick().phase == "Failed"


@pytest.mark.parametrize("has_gone_over", [False, True])
def test_batch_that_a_newcomer_has_never_computed_is_not_what_it_ran_out_of_memory_with(has_gone_over: bool) -> None:
    world = elastic_world()
    ends(world, entering(world) if has_gone_over else names(named(world).plan)[-1], "out of memory")
    world.tick()
    [place] = world.memory.pending
    assert (place.failures, place.known.memory_use.failed_batch) == (1, 0)


def swap_world(**changes: Any) -> World:
    """192 samples, which a worker with 128 and one with 64 hold, and neither alone."""
    a, b = Group("a", 1, batch_min=128, multiple_of=128), Group("b", 1, batch_min=64, multiple_of=64)
    c = Group("c", 0, batch_min=64, multiple_of=64)
    world = World(replace(Job("job", (a, b, c), global_batch=192), **changes), protocol=MEMBERS_MAY_END).start()
    world.run(2)
    world.job = replace(world.job, groups=(a, replace(b, replicas=0), replace(c, replicas=1)))
    return world


def wait_for_successor(world: World, looks: int) -> list[Decision]:
    decisions: list[Decision] = []
    for _ in range(looks):
        for name in newcomers(world):
            world.workers[name].metrics = replace(world.workers[name].metrics, phase=PHASE_PREPARING)
        world.train(1)
        decisions.append(world.tick(5))
        if decisions[-1].phase != "Running":
            break
    return decisions


@pytest.mark.parametrize("removed", [False, True])
def test_worker_that_the_others_cannot_do_without_stays_until_its_successor_is_ready(removed: bool) -> None:
    world = swap_world()
    if removed:
        world.job = replace(world.job, groups=(world.job.groups[0], world.job.groups[2]))
    step = world.cluster.training.step
    for decision in wait_for_successor(world, 20):
        assert (decision.phase, decision.plan, decision.delete) == ("Running", None, ())
        assert "192" in decision.reason
    for name in newcomers(world):
        world.workers[name].metrics = replace(world.workers[name].metrics, phase=PHASE_WAITING)
    settled(world, 4)
    assert list(world.workers) == names(world.plan) == ["job-a-0", "job-c-0"]
    assert (world.memory.budget.restarts, world.cluster.training.step) == (0, step + 28)


def test_successor_that_never_comes_starts_all_again_for_the_true_reason() -> None:
    world = swap_world(startup_deadline_seconds=60.0)
    *_, last = wait_for_successor(world, 30)
    assert (last.phase, last.events[0].reason) == ("Restarting", "WorkersResized")
    assert "group b wants 0 workers" in last.reason
    assert "192" in last.reason
    assert world.memory.budget.restarts == 0


def test_all_members_that_are_not_wanted_stay_until_others_have_their_state() -> None:
    world = World(Job("job", (Group("a", 2), Group("b", 0)), global_batch=192), protocol=MEMBERS_MAY_END).start()
    world.run(2)
    step = world.cluster.training.step
    world.job = replace(world.job, groups=(Group("a", 0), Group("b", 2)))
    settled(world, 8)
    assert names(world.plan) == ["job-b-0", "job-b-1"]
    assert (world.cluster.training.step, world.memory.budget.restarts) == (step + 16, 0)


def test_newcomers_that_start_do_not_keep_the_end_of_a_member_from_being_remembered() -> None:
    world = stuck_world(replicas=103, global_batch=1024)
    looks(world, 2, 5.0, "ContainerCreating")
    ends(world, B, "exit")
    assert (world.tick().phase, names(world.plan)) == ("Running", [A, C])
