"""Workers that are wanted and do not come, or end before they train: the others go on, and everybody can read why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain.contract import PHASE_PREPARING
from heterotrain_operator.core.facts import worker_name
from heterotrain_operator.core.state import Remembered
from unit.core.jobs import (
    A,
    B,
    C,
    D,
    changed,
    condition,
    elastic_world,
    ends,
    failing,
    looks,
    names,
    newcomers,
    nobody_reaches,
    resize,
    settled,
    stuck_world,
)

# --- what is told ------------------------------------------------------------------------------------------------


def test_why_a_newcomer_does_not_start_is_told() -> None:
    *_, decision = looks(stuck_world(), 3, 5.0, "ImagePullBackOff: Back-off pulling image")
    assert decision.phase == "Running"
    assert f"waiting for {D} (Pending: ImagePullBackOff: Back-off pulling image)" in decision.reason
    assert not condition(decision).status, "it may start yet"


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


# --- how often, and how long -------------------------------------------------------------------------------------


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


def test_delays_grow_from_try_to_try() -> None:
    world = stuck_world(backoff_limit=8)
    delays = []
    for _ in range(600):
        if newcomers(world):
            now, before = world.now, world.created
            failing(world, 1, 0.1)
            delays.append(0 if world.created > before else round(world.memory.pending[0].due_at - now))
        world.train(1)
        world.tick(0.5)
    assert delays[:8] == [0, 1, 2, 4, 8, 16, 32, 60]
    assert world.created == 3 + 9


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


def test_newcomer_that_is_taken_away_before_the_switch_does_not_forget_the_tries_before_it() -> None:
    world = elastic_world()
    resize(world, 4)
    for tries in range(1, 5):
        while world.plan is None or len(world.plan.members) < 4:
            world.train(1)
            world.tick(5)
        ends(world, names(world.plan)[-1], "preempt")
        world.tick()
        [place] = world.memory.pending
        assert (place.failures, place.tries) == (0, tries)
    settled(world)
    assert world.memory.pending == (), "one that trains has left them behind"


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
