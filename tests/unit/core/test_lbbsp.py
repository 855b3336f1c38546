"""LB-BSP's two ways: by speed on CPUs, and towards balance in coarse and then fine steps on GPUs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterotrain_operator.core.batching.policies import POLICIES, Seat
from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.core.prediction.series import Series, Window
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.remembered.batching import Batching
from heterotrain_operator.core.remembered_worker import RememberedWorker
from unit.core.traces import World

BALANCED = (89, 21, 12, 6)
"""Where the paper's four GPUs come to rest from 32 samples each. Source: LB-BSP, section 5.2."""

FIXED, PER_SAMPLE = 0.01, 0.001


def gpu_world(interval: int, noise: float, seed: int, balanced: Sequence[int] = BALANCED) -> World:
    """Workers whose times are equal at these batches."""
    groups = tuple(Group(name=f"g{rank}", replicas=1, device="gpu") for rank in range(len(balanced)))
    job = Job(name="job", groups=groups, global_batch=sum(balanced), policy="LBBSP", interval=interval)
    scales = {f"job-g{rank}-0": 0.5 / (FIXED + PER_SAMPLE * batch) for rank, batch in enumerate(balanced)}
    return World(job, scales, noise=noise, seed=seed, fixed=FIXED, per_sample=PER_SAMPLE, forgetful=True).start()


def train(world: World, steps: int) -> list[str]:
    """Reasons of the decisions."""
    return [decision.reason for decision in world.run(math.ceil(steps / world.job.interval))]


@pytest.mark.parametrize(("interval", "fine_by"), [(1, 30), (5, 75), (10, 150)])
@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_gpus_come_to_rest_where_the_papers_do(interval: int, fine_by: int, noise: float) -> None:
    world = gpu_world(interval, noise, seed=1)
    reasons = train(world, 300)
    assert world.plan is not None
    assert all(abs(batch - best) <= 1 for batch, best in zip(world.plan.batch_sizes, BALANCED, strict=True))
    (fine,) = [index for index, reason in enumerate(reasons) if "small steps from now on" in reason]
    assert (fine + 1) * interval <= fine_by


@given(st.lists(st.integers(3, 30), min_size=2, max_size=4))
@settings(max_examples=5, deadline=None)
def test_gpus_end_within_a_sample_of_the_split_by_which_all_finish_together(balanced: list[int]) -> None:
    world = gpu_world(1, 0.0, seed=1, balanced=balanced)
    train(world, 100 + 3 * sum(balanced))
    assert world.plan is not None
    assert all(abs(batch - best) <= 1 for batch, best in zip(world.plan.batch_sizes, balanced, strict=True))


def test_small_steps_become_large_again_where_workers_drift_apart() -> None:
    world = gpu_world(1, 0.0, seed=1)
    train(world, 150)
    world.workers["job-g0-0"].scale *= 2
    reasons = train(world, 100)
    assert any("drifted apart" in reason for reason in reasons)
    seconds = world.true_seconds()
    assert max(seconds) < 1.1 * min(seconds)


def gpu(seconds: float, batch: int, memory: float = 0.5, device: str = "gpu", low: int = 1) -> Seat:
    """A worker with six equal windows."""
    group = Group(name="g", replicas=1, device=device)
    known = RememberedWorker(series=Series(Window(seconds, batch, -1.0, memory) * 6))
    return Seat("w", group, batch, (low, 512), Estimate(seconds, 0.0, 10), memory=known)


def batches_of(*seats: Seat) -> tuple[int, ...] | None:
    job = Job(name="job", groups=(), global_batch=sum(each.batch for each in seats), policy="LBBSP")
    return POLICIES["LBBSP"].propose(job, seats, Batching()).batches


def test_samples_go_from_the_slowest_to_the_fastest_that_has_memory_left() -> None:
    assert batches_of(gpu(0.1, 32), gpu(0.2, 32), gpu(0.3, 32)) == (37, 32, 27)
    assert batches_of(gpu(0.1, 32, memory=0.96), gpu(0.2, 32), gpu(0.3, 32)) == (32, 37, 27)
    assert batches_of(gpu(0.1, 32, memory=0.96), gpu(0.3, 32, memory=0.96)) is None


def test_a_move_keeps_bounds_and_is_fine_where_a_coarse_one_would_leave_nothing() -> None:
    assert batches_of(gpu(0.1, 32), gpu(0.3, 32, low=30)) == (34, 30)
    assert batches_of(gpu(0.1, 32), gpu(0.3, 5)) is None  # from here on single samples move


def test_cpus_share_by_speed_and_with_gpus_too() -> None:
    """320, 160 and 80 samples per second; then 240 of 480 for the GPUs, and five from the slower of them."""
    assert batches_of(*(gpu(seconds, 32, device="cpu") for seconds in (0.1, 0.2, 0.4))) == (55, 27, 14)
    mixed = (gpu(0.1, 40), gpu(0.2, 40), gpu(0.2, 40, device="cpu"), gpu(0.1, 40, device="cpu"))
    assert batches_of(*mixed) == (45, 35, 27, 53)
