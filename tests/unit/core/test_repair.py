"""A plan that violates the job, or that workers would ignore, is repaired at once."""

from __future__ import annotations

from dataclasses import replace

from heterotrain.contract import parse_plan
from heterotrain_operator.core.model import Condition
from heterotrain_operator.core.state import Memory
from unit.core.traces import World, hetero_world


def last(world: World, kind: str) -> Condition:
    return next(c for c in world.decisions[-1].conditions if c.type == kind)


def test_bounds_changed_while_running_are_kept_at_once() -> None:
    world = hetero_world()
    world.run(3)
    world.job = replace(world.job, groups=(replace(world.job.groups[0], batch_max=80), *world.job.groups[1:]))
    decision = world.tick()
    assert decision.plan is not None
    assert decision.plan.batch_sizes[0] == 80
    assert decision.plan.global_batch_size == 192
    assert "bounds are [1, 80]" in decision.reason


def test_bounds_that_became_infeasible_degrade_the_job_and_leave_its_plan() -> None:
    world = hetero_world()
    world.run(3)
    world.job = replace(world.job, groups=tuple(replace(group, batch_min=70) for group in world.job.groups))
    decision = world.tick()
    assert decision.plan is None
    assert decision.phase == "Running"
    assert "192 samples is below 210" in last(world, "Degraded").message


def test_plan_not_yet_followed_is_not_superseded_for_ten_seconds() -> None:
    world = hetero_world()
    world.job = replace(world.job, groups=(replace(world.job.groups[0], batch_max=60), *world.job.groups[1:]))
    assert world.tick(5).plan is None
    assert world.tick(6).plan is not None


def test_workers_that_follow_a_newer_plan_get_one_newer_still() -> None:
    world = hetero_world("Uniform")
    world.train(10)
    for worker in world.workers.values():
        worker.metrics = replace(worker.metrics, plan_version=9)
    decision = world.tick()
    assert decision.plan is not None
    assert decision.plan.version == 10
    assert decision.plan.batch_sizes == (64, 64, 64)


def test_memory_of_another_plan_is_not_taken_for_this_ones() -> None:
    world = hetero_world()
    world.train(10)
    world.memory = Memory.initial()
    decision = world.tick()
    assert decision.plan is not None
    assert parse_plan(decision.plan.to_json()).version == 2


def test_global_batch_is_restored_after_a_policy_that_lets_it_go() -> None:
    world = hetero_world("Profile")
    world.run(4)
    assert world.plan is not None
    assert world.plan.global_batch_size != 192
    world.job = replace(world.job, policy="Optimal")
    world.train(1)
    plan = world.tick().plan
    assert plan is not None
    assert plan.global_batch_size == 192
