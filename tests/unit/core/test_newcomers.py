"""Workers that were no members yet, or are none any more: whatever becomes of them, those that train go on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain.contract import MEMBERS_CHANGE, MEMBERS_MAY_END
from heterotrain_operator.core.state import Memory
from unit.core.members import (
    A,
    B,
    C,
    D,
    E,
    elastic_world,
    joined_by,
    named,
    names,
    planned_world,
    resize,
    settled,
    world_of,
)
from unit.core.traces import hetero_world

# --- whose ends count -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["fatal", "silent", "script"])
def test_newcomer_that_ends_in_the_same_look_as_a_member_fails_no_job(how: str) -> None:
    world = joined_by(planned_world(), 4)
    newcomer = world.workers[D]
    if how == "fatal":
        newcomer.end_for_good("another model")
    elif how == "silent":
        newcomer.end(0)
    else:
        newcomer.end_by_script(0)
    world.workers[B].end(143, disrupted=True)
    decision = world.tick()
    assert decision.phase == "Restarting"
    assert world.memory.budget.restarts == 0, "a disruption is nobody's fault"
    assert D not in decision.reason


def test_newcomer_that_is_taken_away_does_not_excuse_a_member_that_fails() -> None:
    world = joined_by(planned_world(), 4)
    world.workers[D].end(143, disrupted=True)
    world.workers[B].end(1)
    assert world.tick().phase == "Restarting"
    assert world.memory.budget.restarts == 1


def test_worker_that_left_by_plan_and_ends_badly_fails_no_job() -> None:
    world = planned_world()
    resize(world, 2)
    world.tick()
    world.train(1)
    assert names(world.plan) == [A, B]
    world.workers[C].end_for_good("cut off while it left")
    world.workers[B].end(143, disrupted=True)
    decision = world.tick()
    assert (decision.phase, world.memory.budget.restarts) == ("Restarting", 0)
    assert C not in decision.reason


@pytest.mark.parametrize("how", ["end_for_good", "end_asked", "end"])
def test_pod_that_no_plan_names_ends_as_it_likes(how: str) -> None:
    world = hetero_world(scales=(1, 2))
    world.run(1)
    stray = replace(world.workers["job-g1-0"], name="job-g1-7", uid="uid-stray", index=7)
    world.workers[stray.name] = stray
    getattr(stray, how)(*{"end_for_good": ["no"], "end": [3]}.get(how, []))
    decision = world.tick()
    assert (decision.phase, decision.delete) == ("Running", (stray.name,))


# --- between the plan that names a newcomer and the step at which all go over ------------------------------------


@pytest.mark.parametrize("protocol", [MEMBERS_CHANGE, MEMBERS_MAY_END])
@pytest.mark.parametrize("how", ["kill", "preempt", "vanish", "delete", "fatal", "script"])
def test_newcomer_that_ends_before_the_switch_is_left_out_and_replaced(protocol: int, how: str) -> None:
    world = named(world_of(protocol), 5)
    newcomer = world.workers[D]
    if how == "kill":
        newcomer.end(137)
    elif how == "preempt":
        newcomer.end(143, disrupted=True)
    elif how == "vanish":
        del world.workers[D]
    elif how == "delete":
        newcomer.gone_at = world.now + 30
    elif how == "fatal":
        newcomer.end_for_good("another model")
    else:
        newcomer.end_by_script(0)
    decision = world.tick()
    assert decision.phase == "Running"
    assert names(decision.plan) == [A, B, C, E]
    settled(world, 12)
    assert names(world.plan) == [A, B, C, E, "job-a-5"]
    assert (world.memory.budget.restarts, world.created) == (0, 6)


@pytest.mark.parametrize("protocol", [MEMBERS_CHANGE, MEMBERS_MAY_END])
def test_newcomers_of_which_every_one_raises_at_its_start_fail_no_job(protocol: int) -> None:
    world = world_of(protocol)
    resize(world, 4)
    for _ in range(3):
        for pod in world.workers.values():
            if pod.metrics.generation == 0 and pod.exit_code is None:
                pod.end_by_script(0)
        world.train(1)
        assert world.tick(5).phase == "Running"
    assert world.memory.budget.restarts == 0


def test_newcomer_that_is_seen_to_have_gone_over_is_a_member_as_any_other() -> None:
    world = named(planned_world())
    world.train(1)
    world.tick()
    world.workers[D].end(137)
    assert world.tick().phase == "Restarting"


def test_member_that_ends_before_the_switch_is_no_newcomer() -> None:
    world = named(planned_world())
    world.workers[C].end(137)
    assert world.tick().phase == "Restarting"


def test_batch_that_a_newcomer_has_never_computed_is_not_what_it_ran_out_of_memory_with() -> None:
    world = named(elastic_world())
    world.workers[D].end_out_of_memory("while it imported")
    world.tick()
    [place] = world.memory.pending
    assert (place.failures, place.known.memory_use.failed_batch) == (1, 0)


def test_job_that_ends_before_its_newcomer_has_met_the_others_has_succeeded() -> None:
    world = named(elastic_world())
    for name in (A, B, C):
        world.workers[name].end(0, finished=True)
    world.workers[D].end(1, message="lost the others")
    assert world.tick().phase == "Succeeded"


@pytest.mark.parametrize("protocol", [MEMBERS_CHANGE, MEMBERS_MAY_END])
def test_newcomer_is_known_as_one_though_the_memory_is_lost(protocol: int) -> None:
    world = named(world_of(protocol))
    world.job = replace(world.job, backoff_limit=0)
    world.memory = Memory.initial()
    world.tick()
    world.workers[D].end(1)
    decision = world.tick()
    assert (decision.phase, names(decision.plan)) == ("Running", [A, B, C])


def test_member_that_ends_together_with_the_memory_starts_nobody_again() -> None:
    world = elastic_world()
    world.memory = Memory.initial()
    world.workers[A].end(137)
    decision = world.tick()
    assert (decision.phase, names(decision.plan)) == ("Running", [B, C])
