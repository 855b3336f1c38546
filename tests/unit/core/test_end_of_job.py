"""A job whose last step is committed has succeeded, whatever became of those that the first of them did without."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.core.state import Remembered
from unit.core.jobs import (
    A,
    B,
    C,
    D,
    changed,
    created,
    decided,
    elastic_world,
    ends,
    names,
)
from unit.core.traces import World


def staying_world() -> World:
    """Three workers that cannot do without one another."""
    world = World(Job("job", (Group("a", 3),), global_batch=192)).start()
    world.run(3)
    return world


@pytest.mark.parametrize("how", ["kill", "preempt", "vanish", "script", "asked", "left"])
def test_member_that_ends_just_before_the_first_one_finishes_starts_nobody_again(how: str) -> None:
    world = elastic_world()
    ends(world, B, how)
    for name in (A, C):
        ends(world, name, "finish")
    assert (world.tick().phase, world.memory.budget.restarts) == ("Succeeded", 0)


def test_worker_on_a_node_that_is_lost_is_waited_for_until_that_is_known() -> None:
    world = elastic_world()
    world.workers[B].answers = False
    for name in (A, C):
        ends(world, name, "finish")
    assert [world.tick(5).phase for _ in range(3)] == ["Running"] * 3, "it may be about to finish, too"
    assert decided(world, changed(world.seen(), B, node_lost=True), 5)[0].phase == "Succeeded"


@pytest.mark.parametrize(
    ("elastic", "happened", "phase"),
    [
        (True, {A: "kill", B: "finish", C: "finish"}, "Restarting"),  # the first saves the final checkpoint
        (True, {A: "finish", B: "fatal", C: "finish"}, "Failed"),
        (False, {A: "finish", B: "kill", C: "finish"}, "Restarting"),
        (False, {C: "left"}, "Restarting"),
    ],
)
def test_job_that_lacks_what_its_end_needs_starts_again_or_fails(
    elastic: bool, happened: dict[str, str], phase: str
) -> None:
    world = elastic_world() if elastic else staying_world()
    for name, how in happened.items():
        ends(world, name, how)
    assert world.tick().phase == phase


@pytest.mark.parametrize("how", ["kill", "preempt", "vanish", "asked", "finish"])
@pytest.mark.parametrize("forgetful", [False, True])
def test_job_whose_first_member_has_finished_is_done_whatever_becomes_of_the_others(how: str, forgetful: bool) -> None:
    world = elastic_world()
    world.forgetful = forgetful
    ends(world, A, "finish")
    ends(world, B)
    decisions = [world.tick(5) for _ in range(3)]
    assert [decision.phase for decision in decisions] == ["Running"] * 3, "one has yet to finish"
    assert created(decisions) == [], "nobody joins any more"
    ends(world, C, how)
    assert (world.tick().phase, world.memory.budget.restarts) == ("Succeeded", 0)


def test_job_of_which_a_later_member_has_finished_starts_again_if_the_rest_end() -> None:
    world = elastic_world()
    ends(world, C, "finish")
    ends(world, A)
    assert world.tick().phase == "Running"
    ends(world, B)
    assert world.tick().phase == "Restarting"
    assert not world.memory.following.ending


def test_member_that_leaves_while_others_have_yet_to_finish_is_no_failure() -> None:
    world = elastic_world()
    ends(world, A, "finish")
    ends(world, C, "left")
    for _ in range(3):
        decision = world.tick()
        assert (decision.phase, decision.plan, decision.create) == ("Running", None, ())
    assert (world.memory.budget.restarts, world.memory.pending) == (0, ())
    ends(world, B, "finish")
    assert world.tick().phase == "Succeeded"


@pytest.mark.parametrize("newcomer", ["created", "named", "named, memory lost", "entering", "entering and lost"])
def test_job_whose_members_have_finished_is_over_though_others_were_to_join(newcomer: str) -> None:
    world = elastic_world()
    ends(world, B)
    world.tick()
    world.train(1)
    if newcomer != "created":
        assert names(world.tick().plan) == [A, C, D]
    if newcomer == "named, memory lost":
        world.memory = Remembered.initial()
    if "entering" in newcomer:
        world.train(1)
        pod = world.workers[D]
        pod.metrics = replace(pod.metrics, generation=0, plan_version=0)
        world.tick()
    if newcomer == "entering and lost":
        ends(world, D, "exit")
    for name in (A, C):
        ends(world, name, "finish")
    assert (world.tick().phase, world.memory.budget.restarts) == ("Succeeded", 0)
