"""What was known is lost or cannot be read: the next plan carries on the training of those that are there."""

from __future__ import annotations

from dataclasses import replace

from heterotrain.job.planfile import check_successor
from heterotrain_operator.core.decide import decide
from unit.core.members import A, B, C, elastic_world, names, resize, settled


def test_change_while_nobody_who_trains_is_read_carries_on_what_the_plan_before_does() -> None:
    """Members may train under the one before that one, and refuse a plan which does not carry on their training."""
    world = elastic_world(2)
    first = world.plan
    assert first is not None
    resize(world, 3)
    for _ in range(9):
        if world.tick(10).plan is not None and len(names(world.plan)) == 3:
            break
        world.train(1)
    assert names(world.plan) == [A, B, C]
    world.workers[B].end(137)
    seen = world.seen()
    unread = tuple(replace(each, metrics=None) if each.name == A else each for each in seen.workers)
    decision, _ = decide(world.job, replace(seen, workers=unread), world.memory, world.now + 1)
    assert names(decision.plan) == [A, C]
    assert decision.plan is not None
    assert decision.plan.continues == first.generation
    check_successor(first, decision.plan)


def test_change_while_nobody_is_read_carries_on_the_plan_that_was_seen_to_be_followed() -> None:
    world = settled(elastic_world(), 2)
    world.workers[B].end(137)
    settled(world)
    before, seen = world.plan, world.seen()
    assert before is not None
    assert before.generation > 1
    world.workers[A].end(137)
    unread = tuple(replace(each, metrics=None) for each in world.seen().workers)
    decision, _ = decide(world.job, replace(seen, workers=unread), world.memory, world.now + 1)
    assert decision.plan is not None
    assert decision.plan.continues == before.generation


def test_memory_that_is_lost_learns_again_that_members_can_change() -> None:
    world = elastic_world()
    world.memory = type(world.memory).initial()
    world.tick()
    world.workers[B].end(137)
    assert names(world.tick().plan) == [A, C]


def test_lost_memory_does_not_lose_the_newcomers() -> None:
    world = elastic_world()
    world.workers[B].end(137)
    world.tick()
    world.train(1)
    world.memory = type(world.memory).initial()
    settled(world)
    assert names(world.plan) == [A, C, "job-a-3"]
    assert world.created == 4


def test_lost_plan_is_restored_in_the_order_in_which_the_members_are() -> None:
    world = elastic_world()
    world.workers[A].end(137)
    settled(world)
    before = world.plan
    world.plan = None
    restored = world.tick().plan
    assert names(restored) == names(before) == [B, C, "job-a-3"]
