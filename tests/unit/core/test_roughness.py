"""Errors of own times are as large as windows really vary, so that noise which lasts moves no batches."""

from __future__ import annotations

import math
import random
from statistics import fmean, variance

import pytest

from heterotrain_operator.clusters.simulated.cluster import SimulatedCluster
from heterotrain_operator.clusters.simulated.noise import AR1
from heterotrain_operator.clusters.simulated.scenario import AT_ONCE, Scenario, WorkerModel
from heterotrain_operator.core.batching.words import balance
from heterotrain_operator.core.prediction.jumps import follow, surprise_of
from heterotrain_operator.core.prediction.roughness import (
    FIRST,
    LONGEST_HISTORY,
    SHORTEST_HISTORY,
    history_of,
    inflation_of,
    persistence_after,
    roughness_after,
)
from heterotrain_operator.core.prediction.step_time import Estimate, StepTime
from heterotrain_operator.core.state import Memory
from unit.core.traces import World, hetero_job

WORKERS, WINDOWS, STEPS = 8, 40, 10


class Correlated:
    """Own times of one worker around 0.1 s, each correlated with the one before."""

    def __init__(self, seed: int, correlation: float, variation: float) -> None:
        self.random, self.correlation, self.variation = random.Random(seed), correlation, variation
        self.state = self.random.gauss(0, 1)

    def factor(self) -> float:
        fresh = math.sqrt(1 - self.correlation**2) * self.random.gauss(0, 1)
        self.state = self.correlation * self.state + fresh
        return math.exp(self.variation * self.state - self.variation**2 / 2)

    def window(self) -> Estimate:
        times = [0.1 * self.factor() for _ in range(STEPS)]
        return Estimate(fmean(times), variance(times), STEPS)


def learned(correlation: float, seed: int) -> tuple[list[Estimate], float]:
    """The estimates of workers whose steps are so correlated, and the persistence, after many windows."""
    sources = [Correlated(100 * seed + rank, correlation, 0.1) for rank in range(WORKERS)]
    estimates = [source.window() for source in sources]
    roughness, persistence, before = [0.0] * WORKERS, 0.0, [0.0] * WORKERS
    for number in range(WINDOWS):
        windows = [source.window() for source in sources]
        surprises = [surprise_of(*pair) for pair in zip(estimates, windows, strict=True)]
        persistence = persistence_after(persistence, number, surprises, before)
        roughness, before = roughness_after(roughness, persistence, number, surprises), surprises
        honest = [
            window._replace(inflation=inflation_of(each)) for window, each in zip(windows, roughness, strict=True)
        ]
        pairs = zip(estimates, honest, strict=True)
        estimates = [follow(known, window, history_of(persistence))[0] for known, window in pairs]
    return estimates, persistence


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_errors_are_as_large_as_they_are_said_to_be(correlation: float) -> None:
    estimates = [each for seed in range(6) for each in learned(correlation, seed)[0]]
    deviations = [abs(each.mean_seconds / 0.1 - 1) / each.relative_error for each in estimates]
    assert 0.4 <= fmean(deviations) <= 1.2, "0.8 where errors are normal and known exactly"


def test_averages_are_long_unless_speeds_wander() -> None:
    assert history_of(learned(0.0, 1)[1]) == LONGEST_HISTORY
    assert history_of(learned(0.9, 1)[1]) > LONGEST_HISTORY / 2
    assert history_of(learned(0.98, 1)[1]) < LONGEST_HISTORY / 2
    assert history_of(1.0) == SHORTEST_HISTORY


def test_what_one_worker_shows_is_shrunk_to_what_all_show() -> None:
    calm, odd, *_ = roughness_after([0.8] * 8, 0.0, 100, [0.8, 8.0, *[0.8] * 6])
    assert 0.8 < calm < odd
    assert odd < 0.9 * 0.8 + 0.1 * 8.0


def test_first_windows_are_not_trusted_like_independent_steps() -> None:
    assert inflation_of(0.0) == inflation_of(FIRST) > 2
    assert inflation_of(0.1) == 1, "nor is a mean ever surer than that of independent steps"


def correlated_world(seed: int) -> World:
    """Eight workers whose steps are each correlated with the one before."""
    scales = (1, 1.2, 1.5, 2, 2.5, 3, 3.5, 4)
    world = World(hetero_job("Optimal", scales), {f"job-g{rank}-0": float(each) for rank, each in enumerate(scales)})
    workers = WorkerModel(noise=AR1(0.9, 0.1))
    world.cluster = SimulatedCluster(Scenario(world.job, {}, other_workers=workers, timing=AT_ONCE, seed=seed))
    world.memory = Memory.initial()
    return world


def test_noise_that_lasts_moves_no_batches_for_ever() -> None:
    """With errors of independent steps, such noise led to 25 to 40 plans in 100 intervals."""
    plans = []
    for seed in range(6):
        world = correlated_world(seed)
        world.start()
        world.run(25)
        plans.append(sum(decision.plan is not None for decision in world.run(100)))
        seconds = world.true_seconds()
        assert max(seconds) <= 1.15 * fmean(seconds)
    assert fmean(plans) <= 3
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
    assert Memory.from_json(world.memory.to_json()) == world.memory


def test_worker_keeps_its_roughness_from_plan_to_plan() -> None:
    known = StepTime(roughness=150.0, mean_seconds=1.0, variance=0.1, steps=10)
    assert known.unmeasured().roughness == 150.0
    assert known.unmeasured().before is None
