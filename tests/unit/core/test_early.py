"""A gross imbalance is acted on after a few steps, and a small one waits for the interval."""

from __future__ import annotations

from dataclasses import replace

import pytest

from unit.core.traces import World, hetero_world


def steps_until_a_move(world: World, limit: int = 10) -> int:
    """One look after each step."""
    for step in range(1, limit + 1):
        world.train(1)
        if world.tick().plan is not None:
            return step
    return limit + 1


@pytest.mark.parametrize("scales", [(1, 2, 4), (1, 1, 4, 1, 2, 1, 3, 1)])
def test_first_move_comes_after_three_steps_at_four_times_the_speed(scales: tuple[float, ...]) -> None:
    steps = sorted(steps_until_a_move(hetero_world(scales=scales, noise=0.1, seed=seed)) for seed in range(10))
    assert steps[-3] <= 3
    assert steps[-1] <= 4


@pytest.mark.parametrize("seed", range(5))
def test_small_imbalance_waits_for_the_interval(seed: int) -> None:
    assert steps_until_a_move(hetero_world(scales=(1, 1.15, 1.2), noise=0.05, seed=seed)) >= 10


def test_noise_alone_moves_nothing_at_any_look() -> None:
    moves = 0
    for seed in range(30):
        world = hetero_world(scales=(1,) * 8, noise=0.15, seed=seed)
        for _ in range(60):
            world.train(1)
            moves += world.tick().plan is not None
    assert moves <= 3


def test_one_step_is_no_evidence() -> None:
    world = hetero_world(scales=(1, 40))
    world.train(1)
    assert world.tick().plan is None


@pytest.mark.parametrize("seed", range(5))
def test_gross_change_is_followed_within_a_few_steps(seed: int) -> None:
    world = hetero_world(scales=(1, 2, 4), noise=0.05, seed=seed)
    world.run(15)
    world.workers["job-g0-0"].scale = 4.0
    assert steps_until_a_move(world) <= 5


def test_every_worker_needs_two_steps() -> None:
    world = hetero_world()
    world.train(4)
    late = world.workers["job-g1-0"]
    late.metrics = replace(late.metrics, steps=1.0, own_seconds=0.1, own_seconds_squared=0.01)
    assert world.tick().plan is None


def test_profile_and_dry_run_keep_their_intervals() -> None:
    world = hetero_world("Profile")
    world.train(9)
    assert world.tick().plan is None
    world = hetero_world(dry_run=True)
    world.train(4)
    assert world.tick().reason.startswith("dry run, nothing changes"), "it says what it would do at once, too"
