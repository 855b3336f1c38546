"""Own time from counters: steady under noise, quick after a change, and never fooled by figures that cannot be.

Errors are as large as windows really vary, so that noise which lasts moves no batches.
"""

from __future__ import annotations

import math
import random
import statistics
from statistics import fmean

import pytest

from heterotrain_operator.clusters.simulated.noise import AR1
from heterotrain_operator.core.batching.words import balance
from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.core.prediction.jumps import follow
from heterotrain_operator.core.prediction.step_time import (
    ASSUMED_VARIATION,
    Estimate,
    StepTime,
    counted,
    steps_since,
    window_of,
)
from heterotrain_operator.core.state import Remembered
from unit.core.traces import World, hetero_job


def metrics(steps: float, seconds: float, squares: float = 0.0) -> WorkerMetrics:
    return WorkerMetrics(plan_version=1, steps=steps, own_seconds=seconds, own_seconds_squared=squares)


def windows(random_source: random.Random, count: int, mean: float, variation: float) -> list[Estimate]:
    result = []
    for _ in range(count):
        times = [random_source.gauss(mean, variation * mean) for _ in range(10)]
        result.append(Estimate(statistics.fmean(times), statistics.variance(times), 10))
    return result


def followed(known: StepTime, *series: Estimate) -> tuple[StepTime, int]:
    jumps = 0
    for window in series:
        estimate, jumped = follow(known.estimate, window)
        known = known.with_estimate(estimate)
        jumps += jumped
    return known, jumps


def test_window_is_what_was_counted_since_the_last_one_or_since_counters_began_again() -> None:
    known = counted(StepTime(), metrics(10, 1.0, 0.1))
    window = window_of(known, metrics(12, 1.4, 0.1 + 0.01 + 0.09))
    assert isinstance(window, Estimate)
    assert (window.mean_seconds, window.variance, window.steps) == pytest.approx((0.2, 0.02, 2), rel=1e-3)
    known, fresh = counted(StepTime(), metrics(100, 10.0, 1.0)), metrics(10, 2.0, 0.4)
    assert steps_since(known, fresh) == 10
    window = window_of(known, fresh)
    assert isinstance(window, Estimate)
    assert window.mean_seconds == pytest.approx(0.2)


@pytest.mark.parametrize("squares", [0.0, -1.0, 2.0, 1e30])
def test_impossible_squares_give_the_assumed_noise(squares: float) -> None:
    window = window_of(StepTime(), metrics(10, 1.0, squares))
    assert isinstance(window, Estimate)
    assert math.sqrt(window.variance) / window.mean_seconds == pytest.approx(ASSUMED_VARIATION)


@pytest.mark.parametrize(
    "counters",
    [
        metrics(10, math.nan),
        metrics(math.nan, 1.0),
        metrics(10, math.inf),
        metrics(10, 1.0, math.nan),
        metrics(10, 0.0),
        metrics(10, -1.0),
        metrics(10, 1e9),
        metrics(0, 1.0),
        metrics(1e300, 1e300),
    ],
)
def test_figures_that_cannot_be_are_ignored_with_a_reason(counters: WorkerMetrics) -> None:
    assert isinstance(window_of(StepTime(), counters), str)


@pytest.mark.parametrize("variation", [0.05, 0.10, 0.15])
def test_noise_is_averaged_away_and_never_taken_for_a_jump(variation: float) -> None:
    jumps = 0
    for seed in range(20):
        known, jumped = followed(StepTime(), *windows(random.Random(seed), 25, 0.1, variation))
        jumps += jumped
        assert known.mean_seconds == pytest.approx(0.1, rel=5 * variation / math.sqrt(250))
    assert jumps == 0


@pytest.mark.parametrize("slow", [4, 6, 8])
def test_window_of_two_levels_shows_the_new_one_and_its_steps(slow: int) -> None:
    mixed = [0.1] * (10 - slow) + [0.2] * slow
    known, jumps = followed(
        StepTime(), Estimate(0.1, 1e-6, 100), Estimate(statistics.fmean(mixed), statistics.pvariance(mixed), 10)
    )
    assert jumps == 1
    assert known.mean_seconds == pytest.approx(0.2, rel=0.01)
    assert known.steps == pytest.approx(slow, rel=0.01)


def correlated_world(seed: int) -> World:
    """Eight workers whose steps are each correlated with the one before."""
    scales = {f"job-g{rank}-0": scale for rank, scale in enumerate((1, 1.2, 1.5, 2, 2.5, 3, 3.5, 4))}
    return World(hetero_job("Optimal", list(scales.values())), scales, noise=AR1(0.9, 0.1), seed=seed)


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 6), marks=pytest.mark.long)])
def test_noise_that_lasts_moves_no_batches_for_ever(seeds: range) -> None:
    """With errors of independent steps, such noise led to 25 to 40 plans in 100 intervals."""
    plans = []
    for seed in seeds:
        world = correlated_world(seed).start()
        world.run(25)
        plans.append(sum(decision.plan is not None for decision in world.run(100)))
        seconds = world.true_seconds()
        assert max(seconds) <= 1.15 * fmean(seconds)
    assert fmean(plans) <= 4
    assert max(plans) <= 10


def test_next_plan_begins_with_what_the_last_one_lets_expect_and_that_is_no_measurement() -> None:
    world = World(hetero_job(), {"job-g1-0": 2.0, "job-g2-0": 4.0}, noise=0.05).start()
    assert world.run(1)[0].plan is not None
    assert world.plan is not None
    plan = world.plan
    times = [worker.step_time for worker in world.memory.workers]
    assert all(time.estimate is None and time.before is not None for time in times)
    truth = world.true_seconds()
    assert [time.mean_seconds for time in times] == pytest.approx(truth, rel=0.15)
    assert balance(plan, world.memory)[0] is None
    assert Remembered.from_json(world.memory.to_json()) == world.memory
