"""Workers that were no members yet, or are none any more: whatever becomes of them, those that train go on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain_operator.core.state import Memory
from unit.core.members import (
    A,
    B,
    C,
    D,
    E,
    elastic_world,
    named,
    names,
    resize,
    settled,
)
from unit.core.traces import hetero_world

# --- whose ends count -------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("how", ["kill", "preempt", "vanish", "delete", "fatal", "script"])
def test_newcomer_that_ends_before_the_switch_is_left_out_and_replaced(how: str) -> None:
    world = named(elastic_world(), 5)
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


def test_newcomers_of_which_every_one_raises_at_its_start_fail_no_job() -> None:
    world = elastic_world()
    resize(world, 4)
    for _ in range(3):
        for pod in world.workers.values():
            if pod.metrics.generation == 0 and pod.exit_code is None:
                pod.end_by_script(0)
        world.train(1)
        assert world.tick(5).phase == "Running"
    assert world.memory.budget.restarts == 0


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


def test_newcomer_is_known_as_one_though_the_memory_is_lost() -> None:
    world = named(elastic_world())
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
