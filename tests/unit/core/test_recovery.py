"""A plan that is gone or damaged: nobody who trains is stopped by it, and nobody follows a version of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain.contract import PHASE_CHECKPOINTING, PHASE_PAUSED, PHASE_WAITING
from heterotrain.job.planfile import check_successor
from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.core.prediction.memory_model import MemoryUse
from heterotrain_operator.core.state import Memory
from unit.core.traces import MemoryWorld, World, hetero_job, hetero_world


@pytest.fixture
def world() -> World:
    """A balanced job whose plan vanishes after a while."""
    world = hetero_world()
    world.run(4)
    world.tick(30)
    return world


@pytest.mark.parametrize("forgotten", [False, True], ids=["memory kept", "memory lost too"])
def test_lost_plan_is_restored_from_what_the_workers_follow(world: World, forgotten: bool) -> None:
    before = world.plan
    assert before is not None
    world.plan = None
    if forgotten:
        world.memory = Memory.initial()
    decision = world.tick()
    assert decision.plan == replace(before, version=before.version + 1)
    assert not decision.create
    assert not decision.delete
    assert [event.reason for event in decision.events] == ["PlanRestored"]


@pytest.mark.parametrize("forgotten", [False, True], ids=["memory kept", "memory lost too"])
def test_restored_plan_keeps_what_each_worker_computes_at_once(forgotten: bool) -> None:
    """Else a worker would run out of the memory whose limit was found out before."""
    world = MemoryWorld(hetero_job(), {"job-g1-0": 2.0, "job-g2-0": 4.0}).start()
    world.run(2)
    # Workers that hold 30 samples at once hold 90 of 192 together.
    small = MemoryUse(guessed_batch=30, failed_batch=60)
    known = tuple(worker._replace(memory_use=small) for worker in world.memory.workers)
    world.memory = replace(world.memory, workers=known)
    world.run(3)
    world.tick(30)
    before = world.plan
    assert before is not None
    assert any(0 < member.micro_batch_size <= 30 < member.batch_size for member in before.members)
    world.plan = None
    if forgotten:
        world.memory = Memory.initial()
    decision = world.tick()
    assert decision.plan == replace(before, version=before.version + 1), decision.reason


def joined_late() -> World:
    """A job whose first worker by name is its last member."""
    world = World(Job("job", (Group("a", 3),), global_batch=192), protocol=3).start()
    world.run(2)
    world.workers["job-a-0"].end(137)
    world.tick()
    world.train(2)
    world.workers["job-a-1"].end(137)
    for _ in range(8):
        world.train(2)
        world.tick(20)
    assert world.plan is not None
    # Its index is taken from one that is free again.
    assert [member.name for member in world.plan.members] == ["job-a-2", "job-a-3", "job-a-0"]
    return world


def test_plan_that_is_lost_with_the_memory_is_restored_in_the_order_that_the_workers_report() -> None:
    world = joined_late()
    before = world.plan
    assert before is not None
    world.plan, world.memory = None, Memory.initial()
    restored = world.tick().plan
    assert restored is not None
    assert restored.members == before.members


@pytest.mark.parametrize("forgotten", [False, True], ids=["memory kept", "memory lost too"])
def test_restored_plan_of_members_that_have_changed_carries_their_training_on(forgotten: bool) -> None:
    """A member that has followed the others without having seen the lost plan would take it for a new beginning."""
    world = joined_late()
    before = world.plan
    assert before is not None
    assert before.continues > 0
    world.plan = None
    if forgotten:
        world.memory = Memory.initial()
    restored = world.tick().plan
    assert restored is not None
    assert restored == replace(before, version=before.version + 1)
    check_successor(before, restored)


def test_restored_first_plan_carries_nothing_on() -> None:
    world = hetero_world(protocol=3)
    world.run(4)
    world.tick(30)
    before = world.plan
    assert before is not None
    world.plan = None
    restored = world.tick().plan
    assert restored == replace(before, version=before.version + 1)
    assert before.continues == 0


def test_plan_that_is_restored_after_a_restart_carries_nothing_on_where_members_stay_the_same(world: World) -> None:
    world.workers["job-g2-0"].end(137)
    for _ in range(20):
        world.tick(10)
        world.train(5)
    before = world.plan
    assert before is not None
    assert before.generation > 1
    world.plan = None
    restored = world.tick(30).plan
    assert restored == replace(before, version=before.version + 1)


def test_members_that_hold_go_on_to_hold_under_the_restored_plan() -> None:
    groups = (Group("a", 2, min_replicas=2), Group("b", 2))
    world = World(Job("job", groups, global_batch=192), protocol=3).start()
    world.run(2)
    world.workers["job-a-1"].end(137)
    world.tick()
    del world.workers["job-a-2"]
    world.train(1)
    before = world.plan
    assert before is not None
    assert before.holds
    # As many workers as are wanted, but not in each group.
    world.job = replace(world.job, groups=(groups[0], Group("b", 1)))
    world.plan = None
    restored = world.tick(30).plan
    assert restored is not None
    assert restored.members == before.members
    assert restored.holds


@pytest.mark.parametrize("ranks", [(None, None, None), (0, None, 1), (0, 1, 1)])
def test_ranks_that_cannot_be_are_no_order(world: World, ranks: tuple[int | None, ...]) -> None:
    before = world.plan
    assert before is not None
    for pod, rank in zip(world.workers.values(), ranks, strict=True):
        pod.metrics = replace(pod.metrics, rank=rank)
    world.plan, world.memory = None, Memory.initial()
    restored = world.tick().plan
    assert restored is not None
    assert restored.members == before.members


@pytest.mark.parametrize("forgotten", [False, True], ids=["memory kept", "memory lost too"])
@pytest.mark.parametrize("claimed", [0, 1, 10_000_000], ids=["none", "one", "more than all"])
def test_restored_plan_splits_the_global_batch_whatever_a_worker_says_of_its_own(
    world: World, claimed: int, forgotten: bool
) -> None:
    world.plan = None
    if forgotten:
        world.memory = Memory.initial()
    worker = world.workers["job-g1-0"]
    worker.metrics = replace(worker.metrics, batch_size=claimed)
    decision = world.tick()
    assert decision.plan is not None
    assert decision.plan.global_batch_size == 192
    assert "the batches add up to" in decision.reason


def test_restored_plan_keeps_to_bounds_that_were_edited_meanwhile(world: World) -> None:
    world.plan = None
    (first, *others) = world.job.groups
    world.job = replace(world.job, groups=(replace(first, batch_max=20), *others))
    decision = world.tick()
    assert decision.plan is not None
    assert decision.plan.members[0].batch_size <= 20
    assert decision.plan.global_batch_size == 192


def test_restored_plan_is_steered_on(world: World) -> None:
    world.plan = None
    world.tick()
    assert all(decision.phase == "Running" and decision.plan is None for decision in world.run(5))


@pytest.mark.parametrize("phase", [PHASE_CHECKPOINTING, PHASE_PAUSED])
def test_restoring_waits_for_workers_that_pause(world: World, phase: str) -> None:
    world.plan = None
    worker = world.workers["job-g1-0"]
    training = worker.metrics
    worker.metrics = replace(training, phase=phase)
    waiting = world.tick()
    assert waiting.plan is None
    assert waiting.phase == "Running"
    worker.metrics = training
    assert world.tick().plan is not None


def test_worker_missing_beside_the_plan_starts_all_again(world: World) -> None:
    world.plan = None
    del world.workers["job-g2-0"]
    decision = world.tick()
    assert decision.phase == "Restarting"
    assert "2 of 3 workers are there" in decision.reason
    assert world.memory.budget.restarts == 0


def test_newcomer_beside_the_lost_plan_starts_all_again(world: World) -> None:
    world.plan = None
    worker = world.workers["job-g2-0"]
    worker.metrics = replace(worker.metrics, plan_version=0, generation=0, phase=PHASE_WAITING)
    decision = world.tick()
    assert decision.phase == "Restarting"
    assert "job-g2-0 cannot join" in decision.reason
