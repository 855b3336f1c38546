"""CPU limits that change are followed by what they let predict, before anything is measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain_operator.core.prediction.predictors.ema import predict
from heterotrain_operator.core.worker_memory import WorkerMemory
from unit.core.traces import MemoryWorld, World, hetero_job, hetero_world


def resized_world(scales: tuple[float, ...] = (1, 1), device: str = "cpu", factor: float = 0.5) -> World:
    """Two workers in balance, of which the first is just given so many times its CPU limit."""
    world = hetero_world(scales=scales)
    world.job = replace(world.job, groups=tuple(replace(group, device=device) for group in world.job.groups))
    for worker in world.workers.values():
        worker.cpu_limit = 1.0
    world.run(3)
    world.workers["job-g0-0"].cpu_limit = factor
    return world


def test_known_limit_moves_samples_at_once_and_says_why() -> None:
    world = resized_world()
    world.train(1)
    decision = world.tick()
    assert decision.plan is not None
    assert decision.plan.batch_sizes == pytest.approx((64, 128), abs=2)
    assert decision.reason.startswith("by the CPU limits that changed, job-g0-0 takes 196 ms at 96 samples")


def test_limit_that_does_not_bind_costs_one_interval() -> None:
    world = resized_world()
    world.train(1)
    assert world.tick().plan is not None
    world.run(2)
    assert world.plan is not None
    assert world.plan.batch_sizes == pytest.approx((96, 96), abs=4)


@pytest.mark.parametrize("limit", [8 / 3, 1 / 3, 0.123456789, 63.987654321])
def test_limit_of_more_digits_than_are_remembered_changes_only_once(limit: float) -> None:
    world = hetero_world(scales=(1, 2))
    world.forgetful = True
    for worker in world.workers.values():
        worker.cpu_limit = limit
    world.run(1)
    for _ in range(3):
        world.train(1)
        world.tick()
    measured = world.memory.workers[0].step_time
    assert measured.counted_steps in (0, world.job.interval), "a window of some steps is under way"


def test_new_limit_before_anything_is_measured_is_no_reason_to_move() -> None:
    world = hetero_world(scales=(1, 1))
    for worker in world.workers.values():
        worker.cpu_limit = 1.0
    world.tick()
    world.workers["job-g0-0"].cpu_limit = 0.5
    assert world.tick().plan is None


def test_cpu_limit_beside_a_gpu_says_nothing_of_its_speed() -> None:
    world = resized_world(device="gpu")
    world.train(1)
    assert world.tick().plan is None
    assert all(decision.plan is None for decision in world.run(3))


def test_limits_that_change_one_by_one_are_each_followed_at_once() -> None:
    world = resized_world(scales=(1, 1, 1, 1), factor=1.0)
    for worker in world.workers.values():
        worker.cpu_limit, worker.scale = 0.5, 2.0
        world.train(1)
        assert world.tick().plan is not None
    assert world.plan is not None
    assert world.plan.batch_sizes == pytest.approx((48, 48, 48, 48), abs=1)


def test_shape_is_not_bent_by_a_limit_that_does_not_bind() -> None:
    """A worker with much time that does not depend on its batch, seen at many batches, is given twice its limit, and is
    no faster; the line known of it stays as it was."""
    world = hetero_world(scales=(1, 2), fixed=0.06)
    fast = world.workers["job-g0-0"]
    fast.cpu_limit = 1.0
    world.run(8)
    before = world.memory.workers[0]
    share = fixed_share(before)
    assert share == pytest.approx(60 / 160, abs=0.05)
    fast.cpu_limit = 2.0
    world.train(1)
    assert world.tick().plan is not None
    world.run(12)
    assert fixed_share(world.memory.workers[0]) == pytest.approx(share, abs=0.05)


def fixed_share(known: WorkerMemory) -> float:
    """Of a worker's time at 100 samples."""
    prediction = predict(known.batch_cost, 0, None)
    assert prediction is not None
    line = prediction.line
    return line.fixed_seconds / line.at(100)


def test_a_speed_that_was_only_expected_bounds_no_batch() -> None:
    """Twice the limit makes a worker 1.9 times as fast: not a fall of the throughput that it had before."""
    world = hetero_world("Proportional", scales=(1, 1))
    for worker in world.workers.values():
        worker.cpu_limit = 1.0
    world.run(3)
    first = world.workers["job-g0-0"]
    first.cpu_limit, first.scale = 2.0, 1 / 1.9
    world.train(1)
    assert world.tick().plan is not None
    world.run(20)
    assert world.plan is not None
    assert world.plan.batch_sizes[0] > 120
    assert world.memory.workers[0].throughput_cap.cap == 0


def test_memory_that_shrank_with_the_same_resize_bounds_what_is_predicted() -> None:
    job = hetero_job(scales=(1, 1))
    world = MemoryWorld(job)
    world.start()
    for worker in world.workers.values():
        worker.cpu_limit = 1.0
    world.run(3)
    world.limit_mib = 800.0
    world.train(1)
    world.workers["job-g0-0"].cpu_limit = 2.0
    assert world.tick().plan is not None
    assert world.plan is not None
    assert world.peak_mib(max(world.plan.batch_sizes)) <= 800.0


def flapping(world: World, *, binds: bool, times: int = 16) -> list[bool]:
    """The first worker's limit goes up and down every six intervals; whether each of them moved batches."""
    first, moves = world.workers["job-g0-0"], []
    for flap in range(times):
        first.cpu_limit = 2.0 if flap % 2 else 1.0
        if binds:
            first.scale = 1 / first.cpu_limit
        world.train(1)
        moves.append(world.tick().plan is not None)
        moves += [decision.plan is not None for decision in world.run(6)]
    return moves


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_limit_that_never_binds_soon_moves_nothing(noise: float) -> None:
    world = hetero_world(scales=(1,) * 4, noise=noise, seed=2)
    for worker in world.workers.values():
        worker.cpu_limit = 2.0
    world.run(6)
    moves = flapping(world, binds=False)
    assert sum(moves) <= 8
    # Under noise some moves are small gains, taken as the evidence grows.
    assert sum(moves[len(moves) // 2 :]) <= (4 if noise else 1)
    seconds = world.true_seconds()
    assert max(seconds) <= (1.1 if noise else 1.05) * min(seconds)
    assert world.memory.workers[0].step_time.elasticity <= 0.2


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_limit_that_binds_goes_on_being_followed_at_once(noise: float) -> None:
    world = hetero_world(scales=(1,) * 4, noise=noise, seed=2)
    for worker in world.workers.values():
        worker.cpu_limit = 2.0
    world.workers["job-g0-0"].scale = 0.5
    world.run(6)
    moves = flapping(world, binds=True)
    assert sum(moves[::7]) >= 15
    assert world.memory.workers[0].step_time.elasticity >= 0.8


def test_limit_that_begins_to_bind_is_learned_again() -> None:
    world = hetero_world(scales=(1,) * 4)
    for worker in world.workers.values():
        worker.cpu_limit = 2.0
    world.run(6)
    flapping(world, binds=False)
    flapping(world, binds=True, times=6)
    assert world.memory.workers[0].step_time.elasticity >= 0.6
