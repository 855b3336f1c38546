"""Workers that run out of memory: all start again, and they get smaller batches."""

from __future__ import annotations

import pytest

from unit.core.jobs import restart_fully
from unit.core.traces import World, hetero_world


def run_out_of_memory(world: World, name: str) -> int:
    """Let a worker run out of memory with its batch, which is returned."""
    assert world.plan is not None
    batch = next(member.batch_size for member in world.plan.members if member.name == name)
    world.workers[name].end(137, message="out of memory (limit 256Mi)")
    world.workers[name].out_of_memory = True
    world.tick()
    return batch


def batch_of(world: World, name: str) -> int:
    assert world.plan is not None
    return next(member.batch_size for member in world.plan.members if member.name == name)


@pytest.mark.parametrize("policy", ["Uniform", "Proportional", "Optimal"])
def test_worker_that_ran_out_of_memory_never_gets_that_batch_again(policy: str) -> None:
    world = hetero_world(policy)
    world.run(5)
    batch = run_out_of_memory(world, "job-g0-0")
    assert f"job-g0-0 gets at most {batch // 2} samples instead of {batch}" in world.decisions[-1].reason
    restart_fully(world)
    assert world.plan is not None
    assert world.plan.global_batch_size == 192
    for _ in range(10):
        assert batch_of(world, "job-g0-0") <= batch // 2
        world.run(1)


def test_safe_batch_survives_reading_the_memory_back() -> None:
    world = hetero_world()
    world.run(3)
    batch = run_out_of_memory(world, "job-g0-0")
    world.forgetful = True
    restart_fully(world)
    world.run(3)
    assert batch_of(world, "job-g0-0") <= batch // 2


def test_batch_that_no_memory_holds_is_tried_until_the_backoff_limit() -> None:
    world = hetero_world(backoff_limit=1)
    for name in ("job-g0-0", "job-g1-0", "job-g2-0"):
        world.workers[name].end(137, message="out of memory")
        world.workers[name].out_of_memory = True
    world.tick()
    restart_fully(world)
    assert world.plan is not None
    assert world.plan.batch_sizes == (64, 64, 64), "half of it everywhere cannot hold the global batch"
    world.workers["job-g0-0"].end(137, message="out of memory")
    assert world.tick().phase == "Failed"
