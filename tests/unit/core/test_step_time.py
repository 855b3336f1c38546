"""Own time from counters: steady under noise, quick after a change, and never fooled by figures that cannot be.

Errors are as large as windows really vary, so that noise which lasts moves no batches.
"""

from __future__ import annotations

import math
import random
import statistics
from statistics import fmean, variance

import pytest

from heterotrain_operator.clusters.simulated.noise import AR1
from heterotrain_operator.core.batching.words import balance
from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.core.prediction.jumps import follow, surprise_of
from heterotrain_operator.core.prediction.roughness import (
    FIRST,
    history_of,
    inflation_of,
    persistence_after,
    roughness_after,
)
from heterotrain_operator.core.prediction.step_time import (
    ABSURD_SECONDS,
    ASSUMED_VARIATION,
    LEAST_SECONDS,
    Estimate,
    StepTime,
    counted,
    factor_of_limits,
    feed_forward,
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


def test_single_long_step_is_no_jump_and_a_window_with_a_stall_counts_less() -> None:
    steps = [0.1] * 9 + [1.0]
    window = Estimate(statistics.fmean(steps), statistics.pvariance(steps), 10)
    known, jumps = followed(StepTime(), Estimate(0.1, 1e-6, 100), window)
    assert jumps == 0
    assert known.mean_seconds == pytest.approx(0.1, rel=0.01)
    calm, stalled = Estimate(0.1, 1e-6, 10), Estimate(0.2, 0.1, 10)
    for order in ([stalled, calm, calm], [calm, stalled, calm]):
        known, _ = followed(StepTime(), *order)
        assert known.mean_seconds == pytest.approx(0.1, rel=0.02)


def test_known_change_of_the_cpu_limit_is_expected_before_it_is_measured() -> None:
    known, _ = followed(StepTime(cpu_limit=1.0), *[Estimate(0.1, 1e-4, 10)] * 5)
    known, factor = feed_forward(known, 0.5, metrics(57, 5.7), 10, factor_of_limits)
    assert known.mean_seconds == pytest.approx(0.2)
    assert factor == 2, "which the speed of the fitted line is scaled by, too"
    assert known.counted_steps == 57, "steps before the change do not mix with those after it"
    assert known.steps == 10


@pytest.mark.parametrize("limit", [None, 0.0, -1.0, math.nan, math.inf])
def test_limit_that_is_none_changes_nothing(limit: float | None) -> None:
    known = StepTime(cpu_limit=1.0, mean_seconds=0.1, steps=10)
    assert feed_forward(known, limit, metrics(1, 1.0), 10, factor_of_limits) == (known, 1.0)


def test_limits_that_slide_on_and_on_let_expect_no_step_that_cannot_be() -> None:
    known, _ = followed(StepTime(cpu_limit=1.0), *[Estimate(0.1, 1e-4, 10)] * 5)
    for ratio in (0.1, 10.0):
        limit = 1.0
        for _ in range(60):
            known, _ = feed_forward(known, limit := limit * ratio, metrics(50, 5.0), 10, factor_of_limits)
            assert LEAST_SECONDS <= known.mean_seconds <= ABSURD_SECONDS


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


def learned_of_noise(correlation: float, seed: int) -> tuple[list[Estimate], float]:
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
    estimates = [each for seed in range(6) for each in learned_of_noise(correlation, seed)[0]]
    deviations = [abs(each.mean_seconds / 0.1 - 1) / each.relative_error for each in estimates]
    assert 0.4 <= fmean(deviations) <= 1.2, "0.8 where errors are normal and known exactly"


def test_what_one_worker_shows_is_shrunk_to_what_all_show_and_first_windows_are_not_trusted() -> None:
    calm, odd, *_ = roughness_after([0.8] * 8, 0.0, 100, [0.8, 8.0, *[0.8] * 6])
    assert 0.8 < calm < odd
    assert odd < 0.9 * 0.8 + 0.1 * 8.0
    assert inflation_of(0.0) == inflation_of(FIRST) > 2
    assert inflation_of(0.1) == 1, "nor is a mean ever surer than that of independent steps"


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
