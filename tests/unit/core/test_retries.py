"""A worker without samples is tried again now and then, at a cost that is bounded."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.core.split.allocation import Line, waterfill
from unit.core.traces import World

FIXED = 0.03
SCALES = (1.0, 2.0, 2.0)


def idle_world(*, slow: float = 30.0, noise: float = 0.05, seed: int = 0, forgetful: bool = False) -> World:
    """The fastest of three workers is slowed until it has no samples."""
    job = Job("job", tuple(Group(f"g{rank}", 1, batch_min=0) for rank in range(3)), 192)
    scales = {f"job-g{rank}-0": scale for rank, scale in enumerate(SCALES)}
    world = World(job, scales, fixed=FIXED, noise=noise, seed=seed, forgetful=forgetful).start()
    world.run(6)
    world.workers["job-g0-0"].scale = slow
    for _ in range(20):
        world.run(1)
        if batches(world)[0] == 0:
            break
    assert batches(world)[0] == 0
    return world


def batches(world: World) -> tuple[int, ...]:
    assert world.plan is not None
    return world.plan.batch_sizes


def best_seconds(world: World, scales: tuple[float, ...]) -> float:
    lines = [Line(scale * world.fixed, scale * world.per_sample) for scale in scales]
    best = waterfill(lines, 192, [(0, 192)] * len(lines))
    return max(line.at(batch) for line, batch in zip(lines, best, strict=True) if batch)


def step_seconds(world: World) -> float:
    return max(second for second, batch in zip(world.true_seconds(), batches(world), strict=True) if batch)


@pytest.mark.parametrize("forgetful", [False, True])
@pytest.mark.parametrize("slow", [10.0, 30.0])
def test_a_worker_that_recovered_comes_back(slow: float, forgetful: bool) -> None:
    world = idle_world(slow=slow, forgetful=forgetful)
    world.workers["job-g0-0"].scale = 1.0
    world.run(120)
    assert step_seconds(world) < 1.05 * best_seconds(world, SCALES)


@pytest.mark.parametrize("slow", [10.0, 30.0, 200.0])
def test_retries_of_a_worker_that_stays_slow_grow_rare_and_cost_little(slow: float) -> None:
    world = idle_world(slow=slow)
    ideal = best_seconds(world, (slow, *SCALES[1:]))
    taken, retried = 0.0, []
    for interval in range(1500):
        before = world.plan
        taken += step_seconds(world)
        world.run(1)
        if world.plan is not before and batches(world)[0] > 0:
            retried.append(interval)
    assert 2 <= len(retried) <= 8
    gaps = [later - earlier for earlier, later in itertools.pairwise(retried)]
    assert all(later > 1.5 * earlier for earlier, later in itertools.pairwise(gaps))
    assert taken / 1500 < {10.0: 1.015, 30.0: 1.02, 200.0: 1.07}[slow] * ideal


def test_the_reason_names_who_is_tried_again() -> None:
    world = idle_world()
    world.run(130)
    told = [d.reason for d in world.decisions if "job-g0-0 is tried again with" in d.reason]
    assert told
    assert "after" in told[0]


def test_a_raised_cpu_limit_is_a_reason_to_try_at_once() -> None:
    world = idle_world()
    for worker in world.workers.values():
        worker.cpu_limit = 1.0
    world.run(2)
    assert batches(world)[0] == 0
    world.workers["job-g0-0"].cpu_limit = 1.5
    world.workers["job-g0-0"].scale = 1.0
    world.run(1)
    world.tick()
    assert batches(world)[0] > 0
    world.run(6)
    assert step_seconds(world) < 1.05 * best_seconds(world, SCALES)


def test_a_lowered_limit_is_none() -> None:
    world = idle_world()
    for worker in world.workers.values():
        worker.cpu_limit = 1.0
    world.run(2)
    world.workers["job-g0-0"].cpu_limit = 0.5
    world.run(3)
    assert batches(world)[0] == 0


def test_a_worker_that_comes_to_another_node_is_tried_at_once() -> None:
    world = idle_world()
    for name, worker in world.workers.items():
        worker.node = f"node-{name}"
        world.nodes[name] = worker.node
    for known in (world.memory,):
        world.memory = replace(known, workers=tuple(worker._replace(place=7) for worker in known.workers))
    world.nodes["job-g0-0"] = "another"
    world.scales["job-g0-0"] = 1.0
    world.workers["job-g0-0"].end(137, message="the node was drained", disrupted=True)
    for _ in range(6):
        world.tick(20)
    world.run(4)
    assert batches(world)[0] > 0


def test_a_worker_that_may_not_idle_is_never_without_samples_and_never_tried() -> None:
    job = Job("job", tuple(Group(f"g{rank}", 1) for rank in range(3)), 192)
    world = World(job, {"job-g0-0": 30.0}, fixed=FIXED, noise=0.05).start()
    world.run(60)
    assert batches(world)[0] >= 1
    assert not any("tried again" in decision.reason for decision in world.decisions)


def test_a_worker_that_was_unreadable_while_it_had_no_samples_is_tried_again() -> None:
    world = idle_world(slow=10.0)
    world.workers["job-g0-0"].answers = False
    world.run(8)
    world.workers["job-g0-0"].answers = True
    world.workers["job-g0-0"].scale = 1.0
    world.run(60)
    assert step_seconds(world) < 1.05 * best_seconds(world, SCALES)
