"""How long a change may take from its plan to the step at which all go over, and who is waited for meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain.contract import (
    PHASE_EVALUATING,
    PHASE_REFORMING,
    PHASE_STARTING,
    PHASE_WAITING,
)
from unit.core.members import (
    A,
    B,
    C,
    D,
    elastic_world,
    late,
    named,
    names,
    on_time,
    resize,
    settled,
)
from unit.core.traces import World

# --- how long a change may take ---------------------------------------------------------------------------------


def test_volumes_that_are_late_take_nobody_out() -> None:
    world = elastic_world()
    late(world)
    resize(world, 4)
    for _ in range(16):
        world.train(2)
        decision = world.tick(5)
        assert D not in decision.delete
    on_time(world)
    settled(world, 4)
    assert names(world.plan) == [A, B, C, D]
    assert world.created == 4


def test_worker_that_is_to_leave_is_not_deleted_while_it_trains_with_those_that_stay() -> None:
    world = elastic_world()
    late(world)
    resize(world, 2)
    for look in range(60):
        if look > 30:
            world.workers[C].answers = look % 3 > 0
        world.train(2)
        decision = world.tick(5)
        assert C not in decision.delete
    on_time(world)
    settled(world, 4)
    assert set(world.workers) == {A, B}


def test_large_state_takes_as_long_as_it_takes_once_the_others_have_gone_over() -> None:
    world = named(elastic_world())
    newcomer = world.workers[D]
    world.train(1)
    for _ in range(50):
        newcomer.metrics = replace(newcomer.metrics, generation=0, plan_version=0, phase=PHASE_STARTING)
        world.train(1)
        newcomer.metrics = replace(newcomer.metrics, generation=0, plan_version=0, phase=PHASE_STARTING)
        decision = world.tick(10)
        assert (decision.phase, decision.plan, decision.delete) == ("Running", None, ())
    settled(world, 3)
    assert names(world.plan) == [A, B, C, D]


@pytest.mark.parametrize("phase", [PHASE_STARTING, PHASE_REFORMING])
def test_nobody_hangs_while_all_wait_until_a_newcomer_has_their_state(phase: str) -> None:
    world = named(elastic_world())
    for pod in world.workers.values():
        pod.metrics = replace(pod.metrics, phase=phase)
    for _ in range(50):
        decision = world.tick(10)
        assert (decision.phase, decision.plan, decision.delete) == ("Running", None, ())


def test_newcomer_that_is_on_its_way_in_for_too_long_is_left_out() -> None:
    world = named(elastic_world(startup_deadline_seconds=100.0))
    newcomer = world.workers[D]
    plans = []
    for _ in range(20):
        world.train(1)
        if D in world.workers:
            newcomer.metrics = replace(newcomer.metrics, generation=0, plan_version=0, phase=PHASE_STARTING)
        plans.append(world.tick(10).plan)
    assert [A, B, C] in [names(plan) for plan in plans if plan is not None]


def test_pause_of_those_that_stay_is_written_once_in_a_while_at_most() -> None:
    world = named(elastic_world())
    for pod in world.workers.values():
        pod.metrics = replace(pod.metrics, phase=PHASE_EVALUATING if pod.metrics.generation else PHASE_WAITING)
    before, _ = world.memory, world.tick(1)
    writes = 0
    for _ in range(30):
        before = world.memory
        world.tick(1)
        assert world.memory.following.changed_at == world.now
        writes += not world.memory.same_but_measurements(before)
    assert writes <= 6


# --- what is reported of workers that leave ----------------------------------------------------------------------


def states(world: World) -> dict[str, str]:
    return {name: state.value for name, state in world.decisions[-1].worker_states}


def test_worker_that_the_plan_names_no_more_is_leaving_until_it_is_gone() -> None:
    world = elastic_world()
    resize(world, 2)
    world.tick()
    assert states(world) == {A: "member", B: "member", C: "leaving"}, "the plan of this very look lets it go"
    world.tick()
    assert states(world)[C] == "leaving"
    world.workers[C].answers = False
    world.tick()
    assert states(world)[C] == "leaving", "whatever can be read of it"
    world.train(1)
    world.tick()
    assert states(world)[C] == "gone"


def test_worker_that_leaves_and_cannot_be_read_takes_no_newcomers_place() -> None:
    world = elastic_world()
    late(world)
    resize(world, 2)
    world.tick()
    world.workers[C].answers = False
    resize(world, 3)
    decisions = [world.tick(11), world.tick(11)]
    assert [key.name for decision in decisions for key in decision.create] == [D]
    assert not any(C in decision.delete for decision in decisions)
