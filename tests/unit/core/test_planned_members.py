"""Workers that change by plan alone, and cannot go on without one that ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain.contract import MEMBERS_CHANGE, MEMBERS_STAY
from heterotrain_operator.core.model import Group, Job
from unit.core.members import A, B, C, names, planned_world, resize, settled
from unit.core.traces import World


@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_replicas_change_without_a_restart_while_all_live(replicas: int) -> None:
    world = planned_world()
    uids = {name: pod.uid for name, pod in world.workers.items()}
    resize(world, replicas)
    settled(world, 10)
    assert names(world.plan) == [f"job-a-{index}" for index in range(replicas)]
    assert world.plan is not None
    assert world.plan.continues > 0
    assert world.memory.budget.restarts == 0
    assert all(world.workers[name].uid == uid for name, uid in uids.items() if name in names(world.plan))


@pytest.mark.parametrize("resized", [False, True])
def test_member_that_ends_still_starts_all_again(resized: bool) -> None:
    world = planned_world()
    if resized:
        resize(world, 4)
        world.tick()
    world.workers[B].end(137)
    world.tick()
    settled(world, 10)
    assert world.memory.budget.restarts == 1
    assert world.plan is not None
    assert world.plan.continues == 0
    assert len(world.plan.members) == (4 if resized else 3)


def test_newcomer_that_dies_restarts_nobody() -> None:
    world = planned_world()
    resize(world, 4)
    world.tick()
    world.workers["job-a-3"].end(1)
    settled(world, 12)
    assert names(world.plan) == [A, B, C, "job-a-4"]
    assert world.memory.budget.restarts == 0


def test_first_member_stays_though_it_is_a_straggler() -> None:
    world = planned_world()
    rows = world.memory.workers
    named = rows[0].evidence._replace(named=True)
    world.memory = replace(world.memory, workers=(rows[0]._replace(evidence=named), *rows[1:]))
    resize(world, 2)
    settled(world)
    assert names(world.plan) == [A, B]


def test_group_of_the_first_member_that_is_removed_starts_all_again() -> None:
    job = Job("job", (Group("a", 1), Group("b", 2)), global_batch=192)
    world = World(job, protocol=MEMBERS_CHANGE)
    world.start().run(3)
    world.job = replace(job, groups=(Group("b", 2),))
    settled(world, 10)
    assert names(world.plan) == ["job-b-0", "job-b-1"]
    assert world.plan is not None
    assert world.plan.continues == 0


def test_workers_that_learn_when_they_meet_that_they_cannot_change_start_again() -> None:
    world = planned_world()
    for pod in world.workers.values():  # as over NCCL
        pod.protocol = MEMBERS_STAY
    world.train(1)
    world.tick()
    resize(world, 4)
    settled(world, 10)
    assert world.plan is not None
    assert world.plan.continues == 0
    assert len(world.plan.members) == 4
