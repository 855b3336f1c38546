"""Newcomers that take over the state of the others, which have gone over already: no members before they say so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain.contract import PHASE_STARTING
from heterotrain_operator.core.model import Decision
from heterotrain_operator.core.state import Memory
from unit.core.members import A, B, C, elastic_world, names, reasons, resize, settled
from unit.core.traces import World

D, E = "job-a-3", "job-a-4"


def enters(world: World, name: str) -> None:
    """The others train with a newcomer that has not reported it yet."""
    pod = world.workers[name]
    pod.metrics = replace(pod.metrics, generation=0, plan_version=0, phase=PHASE_STARTING)


def entering(world: World, replicas: int) -> str:
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


def ended(world: World, name: str, how: str) -> Decision:
    pod = world.workers[name]
    if how == "script":
        pod.end_by_script(0, message="RuntimeError: cannot take over the state")
    elif how == "fatal":
        pod.end_for_good("another model")
    elif how == "asked":
        pod.end_asked()
    else:
        pod.end(1, message="connection refused")
    return world.tick()


@pytest.mark.parametrize("how", ["exit", "script", "fatal"])
def test_newcomers_of_which_every_one_ends_while_it_enters_are_given_up_and_the_others_train_on(how: str) -> None:
    world = elastic_world(backoff_limit=2)
    said = []
    for _ in range(3):
        decision = ended(world, entering(world, 4), how)
        assert (decision.phase, names(decision.plan)) == ("Running", [A, B, C])
        said += reasons(decision)
    assert said.count("WorkerGivenUp") == 1
    settled(world, 12)
    assert names(world.plan) == [A, B, C]
    assert (world.memory.budget.restarts, world.created) == (0, 6)


def test_newcomer_that_raises_while_it_enters_fails_no_job_in_which_a_member_raised() -> None:
    world = elastic_world()
    world.workers[C].end_by_script(world.cluster.training.step)
    world.tick()
    settled(world, 8)
    newcomer = entering(world, 4)
    decision = ended(world, newcomer, "script")
    assert (decision.phase, len(names(decision.plan))) == ("Running", 3)


def test_member_that_raises_at_an_early_step_fails_no_job_that_has_come_further_since() -> None:
    world = elastic_world()
    step = world.cluster.training.step
    world.workers[C].end_by_script(step)
    assert world.tick().phase == "Running"
    world.train(5)
    settled(world, 8)
    world.workers[B].end_by_script(step)
    assert world.tick().phase == "Running"


def test_members_that_raise_at_the_same_step_fail_the_job() -> None:
    world = elastic_world()
    step = world.cluster.training.step
    world.workers[C].end_by_script(step)
    assert world.tick().phase == "Running"
    world.workers[B].end_by_script(step)
    assert world.tick().phase == "Failed"


def test_newcomer_that_nobody_shows_who_asked_to_stop_is_given_up_and_fails_no_job() -> None:
    world = elastic_world(backoff_limit=0)
    newcomer = entering(world, 4)
    assert ended(world, newcomer, "asked").phase == "Running"
    for _ in range(20):
        world.train(1)
        assert world.tick(20).phase == "Running"


def test_newcomer_that_enters_by_a_plan_that_was_replaced_meanwhile_is_still_none_of_the_members() -> None:
    world = elastic_world(backoff_limit=0)
    newcomer = entering(world, 4)
    world.job = replace(world.job, backoff_limit=3)
    world.workers[B].end(137)
    assert names(world.tick().plan) == [A, C, newcomer]
    world.train(1)
    enters(world, newcomer)
    world.tick()
    world.job = replace(world.job, backoff_limit=0)
    decision = ended(world, newcomer, "exit")
    assert (decision.phase, names(decision.plan)[:2]) == ("Running", [A, C])


def test_newcomer_that_enters_is_known_as_one_though_the_memory_is_lost() -> None:
    world = elastic_world(backoff_limit=0)
    newcomer = entering(world, 4)
    world.memory = Memory.initial()
    world.tick()
    decision = ended(world, newcomer, "exit")
    assert (decision.phase, names(decision.plan)) == ("Running", [A, B, C])


def test_worker_that_has_told_that_it_trains_is_a_member_whatever_is_read_of_it_later() -> None:
    world = elastic_world(backoff_limit=0)
    newcomer = entering(world, 4)
    world.train(1)
    pod = world.workers[newcomer]
    pod.metrics = replace(world.workers[A].metrics, in_collective=False)
    world.tick()
    assert Memory.from_json(world.memory.to_json()).following.entering == ""
    assert ended(world, newcomer, "exit").phase == "Failed"


def test_newcomer_that_runs_out_of_memory_while_it_enters_has_computed_no_batch() -> None:
    world = elastic_world()
    newcomer = entering(world, 4)
    world.workers[newcomer].end_out_of_memory("while it took the state over")
    world.tick()
    [place] = world.memory.pending
    assert (place.failures, place.known.memory_use.failed_batch) == (1, 0)


@pytest.mark.parametrize("how", ["left", "exit", "killed"])
def test_job_that_ends_while_a_newcomer_enters_has_succeeded(how: str) -> None:
    world = elastic_world()
    newcomer = entering(world, 4)
    for name in (A, B, C):
        world.workers[name].end(0, finished=True)
    if how == "left":
        world.workers[newcomer].end_in_order(36)
    else:
        world.workers[newcomer].end(1 if how == "exit" else 137)
    assert world.tick().phase == "Succeeded"
    assert world.memory.budget.restarts == 0
