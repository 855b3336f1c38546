"""A plan that is gone or damaged: nobody who trains is stopped by it, and nobody follows a version of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heterotrain.contract import MEMBERS_MAY_END, PHASE_CHECKPOINTING, PHASE_PAUSED, PHASE_WAITING, Plan
from heterotrain.job.planfile import check_successor
from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.core.prediction.memory_model import MemoryUse
from heterotrain_operator.core.state import Remembered
from unit.core.jobs import condition, ends, names, reasons
from unit.core.traces import MemoryWorld, World, hetero_job, hetero_world

SECOND = "job-g1-0"


def balanced(protocol: int = 1) -> World:
    world = hetero_world(protocol=protocol)
    world.run(4)
    world.tick(30)
    return world


def in_passes() -> World:
    """Workers that hold 30 samples at once hold 90 of 192 together."""
    world = MemoryWorld(hetero_job(), {SECOND: 2.0, "job-g2-0": 4.0}).start()
    world.run(2)
    small = MemoryUse(guessed_batch=30, failed_batch=60)
    known = tuple(worker._replace(memory_use=small) for worker in world.memory.workers)
    world.memory = replace(world.memory, workers=known)
    world.run(3)
    world.tick(30)
    assert any(0 < member.micro_batch_size <= 30 < member.batch_size for member in world.plan.members)
    return world


def joined_late() -> World:
    """A job whose first worker by name is its last member."""
    world = World(Job("job", (Group("a", 3),), global_batch=192), protocol=MEMBERS_MAY_END).start()
    world.run(2)
    ends(world, "job-a-0")
    world.tick()
    world.train(2)
    ends(world, "job-a-1")
    for _ in range(8):
        world.train(2)
        world.tick(20)
    # Its index is taken from one that is free again.
    assert names(world.plan) == ["job-a-2", "job-a-3", "job-a-0"]
    assert world.plan.continues > 0
    return world


def restarted() -> World:
    world = balanced()
    ends(world, "job-g2-0")
    for _ in range(20):
        world.tick(10)
        world.train(5)
    world.tick(30)
    assert world.plan.generation > 1
    return world


def lost(world: World, *, forgotten: bool) -> Plan:
    """The plan that is gone, perhaps together with the memory."""
    before, world.plan = world.plan, None
    assert before is not None
    if forgotten:
        world.memory = Remembered.initial()
    return before


@pytest.mark.parametrize("forgotten", [False, True], ids=["memory kept", "memory lost too"])
@pytest.mark.parametrize(
    "made",
    [balanced, in_passes, joined_late, restarted, lambda: balanced(MEMBERS_MAY_END)],
    ids=["first plan", "several passes", "members that have changed", "after a restart", "first plan of some that may"],
)
def test_lost_plan_is_restored_from_what_the_workers_follow_and_steered_on(made: Any, forgotten: bool) -> None:
    """Members, ranks, batches, passes, and what it carries on: who has followed the others without having seen the lost
    plan would take it for a new beginning.
    """
    world = made()
    before = lost(world, forgotten=forgotten)
    decision = world.tick()
    assert decision.plan == replace(before, version=before.version + 1), decision.reason
    assert (decision.create, decision.delete, reasons(decision)) == ((), (), ["PlanRestored"])
    check_successor(before, decision.plan)
    assert all(decision.phase == "Running" and not decision.delete for decision in world.run(5))


@pytest.mark.parametrize("protocol", [1, MEMBERS_MAY_END])
def test_plan_lost_long_after_it_was_published_is_restored_and_one_that_cannot_be_is_waited_for_so_long(
    protocol: int,
) -> None:
    world = balanced(protocol)
    for _ in range(100):
        world.train(10)
        world.tick(10)
    assert world.now - world.memory.published_at > world.job.startup_deadline_seconds
    lost(world, forgotten=False)
    worker = world.workers[SECOND]
    training, worker.metrics = worker.metrics, replace(worker.metrics, phase=PHASE_PAUSED)
    assert (world.tick().phase, world.tick(60).phase) == ("Running", "Running")
    worker.metrics = training
    assert reasons(world.tick()) == ["PlanRestored"]
    lost(world, forgotten=False)
    worker.metrics = replace(training, phase=PHASE_PAUSED)
    assert world.tick(world.job.startup_deadline_seconds + 30).phase == "Restarting"


@pytest.mark.parametrize("ranks", [(None, None, None), (0, None, 1), (0, 1, 1)])
def test_ranks_that_cannot_be_are_no_order(ranks: tuple[int | None, ...]) -> None:
    world = balanced()
    for pod, rank in zip(world.workers.values(), ranks, strict=True):
        pod.metrics = replace(pod.metrics, rank=rank)
    before = lost(world, forgotten=True)
    plan = world.tick().plan
    assert plan.members == before.members


@pytest.mark.parametrize("forgotten", [False, True], ids=["memory kept", "memory lost too"])
@pytest.mark.parametrize("claimed", [0, 1, 10_000_000], ids=["none", "one", "more than all"])
def test_restored_plan_splits_the_global_batch_whatever_a_worker_says_of_its_own(claimed: int, forgotten: bool) -> None:
    world = balanced()
    lost(world, forgotten=forgotten)
    worker = world.workers[SECOND]
    worker.metrics = replace(worker.metrics, batch_size=claimed)
    decision = world.tick()
    assert decision.plan.global_batch_size == 192
    assert "the batches add up to" in decision.reason


@pytest.mark.parametrize("phase", [PHASE_CHECKPOINTING, PHASE_PAUSED])
def test_restoring_waits_for_workers_that_pause(phase: str) -> None:
    world = balanced()
    lost(world, forgotten=False)
    worker = world.workers[SECOND]
    training = worker.metrics
    worker.metrics = replace(training, phase=phase)
    waiting = world.tick()
    assert (waiting.phase, waiting.plan) == ("Running", None)
    worker.metrics = training
    assert world.tick().plan is not None


@pytest.mark.parametrize(("missing", "said"), [(True, "2 of 3 workers are there"), (False, "job-g2-0 cannot join")])
def test_worker_that_is_missing_or_new_beside_the_lost_plan_starts_all_again(missing: bool, said: str) -> None:
    world = balanced()
    lost(world, forgotten=False)
    worker = world.workers["job-g2-0"]
    if missing:
        del world.workers["job-g2-0"]
    else:
        worker.metrics = replace(worker.metrics, plan_version=0, generation=0, phase=PHASE_WAITING)
    decision = world.tick()
    assert (decision.phase, world.memory.budget.restarts) == ("Restarting", 0)
    assert said in decision.reason


def test_bounds_changed_while_running_are_kept_at_once_unless_they_are_infeasible() -> None:
    world = hetero_world()
    world.run(3)
    first, *others = world.job.groups
    world.job = replace(world.job, groups=(replace(first, batch_max=80), *others))
    decision = world.tick()
    assert (decision.plan.batch_sizes[0], decision.plan.global_batch_size) == (80, 192)
    assert "bounds are [1, 80]" in decision.reason
    world.train(1)
    world.job = replace(world.job, groups=tuple(replace(group, batch_min=70) for group in world.job.groups))
    decision = world.tick(30)
    assert (decision.phase, decision.plan) == ("Running", None)
    assert "192 samples is below 210" in condition(decision).message


def test_workers_that_follow_a_newer_plan_get_one_newer_still() -> None:
    world = hetero_world("Uniform")
    world.train(10)
    for worker in world.workers.values():
        worker.metrics = replace(worker.metrics, plan_version=9)
    plan = world.tick().plan
    assert (plan.version, plan.batch_sizes) == (10, (64, 64, 64))


def test_global_batch_is_restored_after_a_policy_that_lets_it_go() -> None:
    world = hetero_world("Profile")
    world.run(4)
    assert world.plan.global_batch_size != 192
    world.job = replace(world.job, policy="Optimal")
    world.train(1)
    plan = world.tick().plan
    assert plan.global_batch_size == 192
