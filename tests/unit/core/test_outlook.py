"""What would be decided now, on the operator's memory alone and with own times reported elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain_operator.core.outlook import Outlook, outlook
from heterotrain_operator.core.state import Remembered
from unit.core.traces import World, hetero_world


def looked(world: World, memory: Remembered | None = None, reported: dict[str, float] | None = None) -> Outlook:
    assert world.plan is not None
    return outlook(world.job, world.plan, memory or world.memory, reported or {}, world.now)


def true_times(world: World) -> dict[str, float]:
    return dict(zip((member.name for member in world.plan.members), world.true_seconds(), strict=True))


def test_outlook_agrees_with_the_decision_that_comes() -> None:
    world = hetero_world()
    world.train(world.job.interval)
    before = world.plan
    ahead = looked(world, reported=true_times(world))
    decision = world.tick()
    assert before is not None
    assert tuple(worker.proposed for worker in ahead.workers) == decision.plan.batch_sizes
    assert ahead.proposal.batches == decision.plan.batch_sizes


def test_balanced_job_is_at_its_ceiling() -> None:
    world = hetero_world()
    world.run(6)
    ahead = looked(world)
    assert ahead.proposal.batches is None
    assert 0.97 < ahead.ceiling.share <= 1
    assert not any(worker.reported for worker in ahead.workers)


def test_reported_times_stand_in_only_where_the_memory_has_none() -> None:
    world = hetero_world()
    world.run(3)
    absurd = dict.fromkeys(true_times(world), 99.0)
    assert looked(world, reported=absurd) == looked(world)
    fresh = replace(world.memory, workers=tuple(worker.unmeasured() for worker in world.memory.workers))
    ahead = looked(world, fresh, true_times(world))
    assert all(worker.reported for worker in ahead.workers)
    assert [worker.samples_per_second for worker in ahead.workers] == pytest.approx(
        [worker.samples_per_second for worker in looked(world).workers], rel=1e-4
    )


def test_nothing_is_promised_of_workers_that_nothing_is_known_of() -> None:
    world = hetero_world()
    ahead = looked(world, Remembered.initial())
    assert ahead.ceiling is None
    assert ahead.no_ceiling == "nothing is known yet of job-g0-0, job-g1-0, job-g2-0"
    assert ahead.proposal.batches is None
    assert [worker.best for worker in ahead.workers] == [None] * 3
    assert [worker.samples_per_second for worker in ahead.workers] == [None] * 3


def test_edited_bounds_come_first() -> None:
    world = hetero_world()
    world.run(3)
    assert world.plan is not None
    groups = (replace(world.job.groups[0], batch_max=70), *world.job.groups[1:])
    ahead = outlook(replace(world.job, groups=groups), world.plan, world.memory, {}, world.now)
    assert ahead.workers[0].proposed == 70
    assert "bounds are [1, 70]" in ahead.proposal.reason
