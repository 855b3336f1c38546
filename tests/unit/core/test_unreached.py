"""Newcomers that the members cannot reach, or that are gone before: tried again so often, and later each time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain_operator.core.facts import worker_name
from unit.core.members import A, B, C, D, elastic_world, named, names, nobody_reaches, resize, settled


@pytest.mark.parametrize("forgetful", [False, True])
def test_newcomers_that_nobody_reaches_are_tried_so_often_and_given_up(forgetful: bool) -> None:
    world = elastic_world()
    world.forgetful = forgetful
    world.job = replace(world.job, backoff_limit=2)
    nobody_reaches(world, A, B, C)
    resize(world, 4)
    step = world.cluster.training.step
    for _ in range(120):
        world.train(1)
        assert world.tick(5).phase == "Running"
    assert world.created == 3 + 3, "one, and two in its place"
    assert (set(world.workers), names(world.plan)) == ({A, B, C}, [A, B, C])
    assert world.cluster.training.step == step + 120
    [condition] = [each for each in world.decisions[-1].conditions if each.type == "Degraded"]
    assert (condition.status, condition.reason) == (True, "WorkersMissing")
    assert "given up after 3 tries" in condition.message
    assert "did not follow the plan" in condition.message


def test_newcomers_that_nobody_reaches_are_tried_later_each_time() -> None:
    world = elastic_world()
    world.job = replace(world.job, backoff_limit=6)
    nobody_reaches(world, A, B, C)
    resize(world, 4)
    waited, left_at = [], None
    for _ in range(900):
        world.train(1)
        decision = world.tick(1)
        if "PlanNotFollowed" in [event.reason for event in decision.events]:
            left_at = world.now
        if left_at is not None and decision.create:
            waited.append(world.now - left_at)
            left_at = None
    assert waited == [0, 1, 2, 4, 8, 16]


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
        world.workers[world.plan.members[-1].name].end(143, disrupted=True)
        world.tick()
        [place] = world.memory.pending
        assert (place.failures, place.tries) == (0, tries)


def test_newcomer_that_trains_has_left_the_tries_before_it_behind() -> None:
    world = named(elastic_world())
    assert [place.identity for place in world.memory.pending] == [("a", 3)]
    settled(world, 2)
    assert world.memory.pending == ()
