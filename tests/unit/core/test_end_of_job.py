"""A job whose last step is committed has succeeded, whatever became of those that the first of them did without."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain_operator.core.decide import decide
from heterotrain_operator.core.model import Decision, Group, Job
from heterotrain_operator.core.state import Memory
from unit.core.members import A, B, C, elastic_world, names
from unit.core.traces import World


def finished(world: World, *names: str) -> None:
    for name in names:
        world.workers[name].end(0, finished=True)


@pytest.mark.parametrize("how", ["kill", "preempt", "vanish", "raise", "asked"])
def test_member_that_ends_just_before_the_first_one_finishes_starts_nobody_again(how: str) -> None:
    world = elastic_world()
    if how == "kill":
        world.workers[B].end(137)
    elif how == "preempt":
        world.workers[B].end(143, disrupted=True)
    elif how == "vanish":
        del world.workers[B]
    elif how == "raise":
        world.workers[B].end_by_script(12)
    else:
        world.workers[B].end_asked()
    finished(world, A, C)
    decision = world.tick()
    assert (decision.phase, world.memory.budget.restarts) == ("Succeeded", 0)


def looked(world: World, *, lost: str = "") -> Decision:
    """A look in which the node of one worker does not answer."""
    world.now += 5
    seen = world.seen()
    workers = tuple(replace(each, node_lost=each.name == lost) for each in seen.workers)
    decision, world.memory = decide(world.job, replace(seen, workers=workers), world.memory, world.now)
    return decision


def test_worker_on_a_node_that_is_lost_is_waited_for_until_that_is_known() -> None:
    world = elastic_world()
    world.workers[B].answers = False
    finished(world, A, C)
    assert [looked(world).phase for _ in range(3)] == ["Running"] * 3, "it may be about to finish, too"
    assert looked(world, lost=B).phase == "Succeeded"


def test_job_whose_first_member_ended_starts_again_since_that_one_saves_the_final_checkpoint() -> None:
    world = elastic_world()
    world.workers[A].end(137)
    finished(world, B, C)
    assert world.tick().phase == "Restarting"


def test_member_that_says_that_no_other_try_may_be_made_fails_the_job_though_others_finish() -> None:
    world = elastic_world()
    world.workers[B].end_for_good("weights differ")
    finished(world, A, C)
    assert world.tick().phase == "Failed"


@pytest.mark.parametrize("how", ["kill", "preempt", "vanish", "asked", "finish"])
@pytest.mark.parametrize("forgetful", [False, True])
def test_job_whose_first_member_has_finished_is_done_whatever_becomes_of_the_others(how: str, forgetful: bool) -> None:
    world = elastic_world()
    world.forgetful = forgetful
    finished(world, A)
    world.workers[B].end(137)
    decisions = [world.tick(5) for _ in range(3)]
    assert [decision.phase for decision in decisions] == ["Running"] * 3, "one has yet to finish"
    assert not any(decision.create for decision in decisions), "nobody joins any more"
    if how == "kill":
        world.workers[C].end(137)
    elif how == "preempt":
        world.workers[C].end(143, disrupted=True)
    elif how == "vanish":
        del world.workers[C]
    elif how == "asked":
        world.workers[C].end_asked()
    else:
        finished(world, C)
    assert (world.tick().phase, world.memory.budget.restarts) == ("Succeeded", 0)


def test_job_of_which_a_later_member_has_finished_starts_again_if_the_rest_end() -> None:
    world = elastic_world()
    finished(world, C)
    world.workers[A].end(137)
    assert world.tick().phase == "Running"
    world.workers[B].end(137)
    assert world.tick().phase == "Restarting"
    assert not world.memory.following.ending


def staying_world() -> World:
    """Three workers that cannot do without one another."""
    world = World(Job("job", (Group("a", 3),), global_batch=192)).start()
    world.run(3)
    return world


def test_job_whose_members_cannot_do_without_one_that_ends_starts_again() -> None:
    world = staying_world()
    world.workers[B].end(137)
    finished(world, A, C)
    assert world.tick().phase == "Restarting"


# --- workers that leave since the job is done -------------------------------------------------------------------


def test_member_that_leaves_since_the_job_is_done_keeps_nobody_from_success() -> None:
    world = elastic_world()
    world.workers[C].end_in_order(12)
    finished(world, A, B)
    assert (world.tick().phase, world.memory.budget.restarts) == ("Succeeded", 0)


def test_member_that_leaves_while_others_have_yet_to_finish_is_no_failure() -> None:
    world = elastic_world()
    finished(world, A)
    world.workers[C].end_in_order(12)
    for _ in range(3):
        decision = world.tick()
        assert (decision.phase, decision.plan, decision.create) == ("Running", None, ())
    assert (world.memory.budget.restarts, world.memory.pending) == (0, ())
    finished(world, B)
    assert world.tick().phase == "Succeeded"


def test_member_that_leaves_while_nobody_has_finished_is_replaced_and_counts_for_nothing() -> None:
    world = elastic_world(backoff_limit=0)
    world.workers[C].end_in_order(12)
    decision = world.tick()
    assert (decision.phase, [key.name for key in decision.create]) == ("Running", ["job-a-3"])
    assert [place.failures for place in world.memory.pending] == [0]


def test_member_that_only_says_that_it_left_starts_those_again_that_cannot_do_without_it() -> None:
    world = staying_world()
    world.workers[C].end_in_order(12)
    assert world.tick().phase == "Restarting"


# --- others that were to join, or are lost, while the members finish ---------------------------------------------


def test_job_ends_when_its_members_have_finished_though_others_were_to_join() -> None:
    world = elastic_world()
    world.workers[B].end(137)
    world.tick()
    world.train(1)
    for name in (A, C):
        world.workers[name].end(0, finished=True)
    assert world.tick().phase == "Succeeded"


def test_job_ends_when_all_have_finished_but_one_that_had_not_followed_yet() -> None:
    world = elastic_world()
    world.workers[B].end(137)
    world.tick()
    world.train(1)
    assert names(world.tick().plan) == [A, C, "job-a-3"]
    for name in (A, C):
        world.workers[name].end(0, finished=True)
    assert world.tick().phase == "Succeeded"


def test_job_whose_memory_is_lost_does_not_wait_for_those_that_are_too_late() -> None:
    world = elastic_world()
    world.workers[B].end(137)
    world.tick()
    world.train(1)
    assert names(world.tick().plan) == [A, C, "job-a-3"]
    for name in (A, C):
        world.workers[name].end(0, finished=True)
    world.memory = Memory.initial()
    assert world.tick().phase == "Succeeded"


def test_worker_that_dies_while_others_finish_is_not_replaced() -> None:
    world = elastic_world()
    world.workers[A].end(0, finished=True)
    world.workers[B].end(137)
    decision = world.tick()
    assert decision.create == ()
    assert names(decision.plan) == [C]
    world.workers[C].end(0, finished=True)
    assert world.tick().phase == "Succeeded"
