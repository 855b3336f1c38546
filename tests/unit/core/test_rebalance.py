"""When a decision about batches is taken, on what, and what becomes of figures that cannot be."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from heterotrain_operator.core.decide import decide
from heterotrain_operator.core.model import Condition, Group, Job
from unit.core.traces import World, hetero_world


def last(world: World, kind: str) -> Condition:
    return next(c for c in world.decisions[-1].conditions if c.type == kind)


def test_no_small_move_before_every_worker_has_its_interval_of_steps() -> None:
    world = hetero_world(scales=(1, 1.1, 1.2))
    world.train(9)
    decision = world.tick()
    assert decision.plan is None
    assert "has 9 of 10 measured steps" in decision.reason
    world.train(1)
    assert world.tick().plan is not None


def test_steps_under_an_older_plan_do_not_count() -> None:
    world = hetero_world()
    world.train(10)
    world.tick()
    decision = world.tick()
    assert decision.plan is None
    assert "plan 2 is not followed yet by job-g0-0 (training, plan 1)" in decision.reason


def test_steps_that_take_no_time_that_a_number_can_hold_move_nothing() -> None:
    world = hetero_world("Uniform")
    for steps, seconds in ((0.0, 1.0), (7e53, 1.7e-270)):
        for pod, counted in zip(world.workers.values(), (steps, 0.0, 0.0), strict=True):
            pod.metrics = replace(pod.metrics, plan_version=1, steps=counted, own_seconds=seconds, samples=0.0)
        assert world.tick().plan is None


def test_rebalancing_keeps_generation_members_and_global_batch_and_tells_why() -> None:
    world = hetero_world()
    before = world.plan
    decision = world.run(1)[0]
    assert before is not None
    assert decision.plan is not None
    assert decision.plan.generation == before.generation
    assert decision.plan.version == before.version + 1
    assert [m.uid for m in decision.plan.members] == [m.uid for m in before.members]
    assert decision.plan.global_batch_size == 192
    assert [event.reason for event in decision.events] == ["BatchRebalanced"]
    assert "job-g2-0 takes 264 ms at 64 samples, the median is 132 ms" in decision.reason
    assert "to job-g0-0 saves 57 % of the step" in decision.reason


def test_slow_worker_gets_smaller_batch() -> None:
    world = hetero_world()
    world.run(1)
    assert world.plan is not None
    fast, middle, slow = world.plan.batch_sizes
    assert fast > middle > slow


def test_same_observation_rebalances_once() -> None:
    world = hetero_world()
    world.train(10)
    seen = world.seen()
    first, memory = decide(world.job, seen, world.memory, world.now)
    second, _ = decide(world.job, seen, memory, world.now)
    assert first.plan is not None
    assert second.plan is None


def test_plan_applies_when_the_job_says() -> None:
    world = hetero_world(apply_at="epoch")
    assert world.plan is not None
    assert world.plan.apply_at == "epoch"


def test_dry_run_publishes_the_first_plan_and_then_only_explains() -> None:
    world = hetero_world(dry_run=True)
    decision = world.run(1)[0]
    assert decision.plan is None
    assert decision.reason.startswith("dry run, nothing changes: job-g2-0 takes")
    assert [event.reason for event in decision.events] == ["DryRun"]


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, 0.0, -3.0, 1e300])
@pytest.mark.parametrize("policy", ["Proportional", "Optimal", "Profile"])
def test_impossible_own_times_are_ignored_with_a_reason(policy: str, seconds: float) -> None:
    world = hetero_world(policy)
    world.train(10)
    worker = world.workers["job-g1-0"]
    worker.metrics = replace(worker.metrics, own_seconds=seconds)
    decision = world.tick()
    assert decision.plan is None
    assert "job-g1-0" in decision.reason
    assert "ignored the window of job-g1-0" in decision.reason or "measured steps" in decision.reason


def test_impossible_own_time_does_not_spoil_what_comes_after() -> None:
    world = hetero_world()
    world.train(10)
    good = world.workers["job-g1-0"].metrics
    world.workers["job-g1-0"].metrics = replace(good, own_seconds=-1.0)
    world.tick()
    world.workers["job-g1-0"].metrics = good
    decisions = world.run(2)
    assert any(decision.plan is not None for decision in decisions)


def test_silent_worker_stops_decisions_not_training() -> None:
    world = hetero_world()
    world.train(10)
    world.workers["job-g1-0"].answers = False
    decision = world.tick()
    assert decision.plan is None
    assert decision.phase == "Running"
    assert "metrics cannot be read of job-g1-0" in decision.reason


def test_one_worker_trains_with_the_whole_batch() -> None:
    world = hetero_world(scales=(1,))
    world.run(3)
    assert world.plan is not None
    assert world.plan.batch_sizes == (192,)
    assert last(world, "Balanced").status


def test_worker_without_samples_neither_holds_decisions_up_nor_moves_them() -> None:
    groups = tuple(Group(f"g{rank}", 1, batch_min=0) for rank in range(3))
    world = World(Job("job", groups, 2), {"job-g0-0": 1.0, "job-g1-0": 1.0}).start()
    assert world.plan is not None
    assert world.plan.batch_sizes == (1, 1, 0)
    world.train(10)
    idle = world.workers["job-g2-0"]
    idle.metrics = replace(idle.metrics, steps=0.0, own_seconds=0.0, own_seconds_squared=0.0)
    decision = world.tick()
    assert "the best split saves" in decision.reason


def test_balance_is_told_with_figures() -> None:
    world = hetero_world(fixed=0.016)
    world.run(1)
    world.tick()
    assert not last(world, "Balanced").status
    world.run(6)
    assert last(world, "Balanced").status
    assert "above the mean of" in last(world, "Balanced").message


def test_policy_changed_while_running_takes_over() -> None:
    world = hetero_world("Uniform")
    world.run(2)
    world.job = replace(world.job, policy="Optimal")
    assert world.run(1)[0].plan is not None
    world.job = replace(world.job, policy="Uniform")
    plan = world.run(1)[0].plan
    assert plan is not None
    assert plan.batch_sizes == (64, 64, 64)


def test_unknown_policy_keeps_the_batches_and_lists_the_known() -> None:
    world = hetero_world("Clever")
    decision = world.run(1)[0]
    assert decision.plan is None
    assert "policy 'Clever' is not known; known are Uniform, Static" in decision.reason


def test_decision_about_a_thousand_workers_is_exact() -> None:
    world = World(
        Job("job", (Group("cpu", 1000, batch_max=512),), 64_000),
        {f"job-cpu-{index}": 1.0 + index % 4 for index in range(1000)},
    ).start()
    world.run(1)
    assert world.plan is not None
    assert world.plan.global_batch_size == 64_000
    assert len(set(world.plan.batch_sizes)) >= 4


def test_balance_is_still_told_when_the_job_is_over() -> None:
    world = hetero_world()
    world.run(6)
    assert last(world, "Balanced").status
    for worker in world.workers.values():
        worker.end(0, finished=True)
    world.tick()
    world.tick()
    assert last(world, "Succeeded").status
    assert last(world, "Balanced").status
