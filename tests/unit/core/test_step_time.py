"""Own time from counters: steady under noise, quick after a change, and never fooled by figures that cannot be."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.core.prediction.elasticity import factor_of_limits, feed_forward
from heterotrain_operator.core.prediction.jumps import follow
from heterotrain_operator.core.prediction.step_time import (
    ABSURD_SECONDS,
    ASSUMED_VARIATION,
    LEAST_SECONDS,
    Estimate,
    StepTime,
    counted,
    steps_since,
    window_of,
)


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


def test_window_is_what_was_counted_since_the_last_one() -> None:
    known = counted(StepTime(), metrics(10, 1.0, 0.1))
    window = window_of(known, metrics(12, 1.4, 0.1 + 0.01 + 0.09))
    assert isinstance(window, Estimate)
    assert window.mean_seconds == pytest.approx(0.2)
    assert window.variance == pytest.approx(0.02, rel=1e-3)
    assert window.steps == 2


def test_counters_that_began_again_count_from_zero() -> None:
    known = counted(StepTime(), metrics(100, 10.0, 1.0))
    fresh = metrics(10, 2.0, 0.4)
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


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_changed_speed_shows_in_the_next_window(factor: float) -> None:
    source = random.Random(1)
    known, _ = followed(StepTime(), *windows(source, 10, 0.1, 0.12))
    known, jumps = followed(known, *windows(source, 1, 0.1 * factor, 0.12))
    assert jumps == 1
    assert known.mean_seconds == pytest.approx(0.1 * factor, rel=0.25)


def test_change_inside_a_window_is_followed_within_two() -> None:
    mixed = [0.1] * 5 + [0.2] * 5
    known, _ = followed(StepTime(), *windows(random.Random(2), 10, 0.1, 0.12))
    known, jumps = followed(
        known,
        Estimate(statistics.fmean(mixed), statistics.variance(mixed), 10),
        *windows(random.Random(3), 1, 0.2, 0.12),
    )
    assert jumps >= 1
    assert known.mean_seconds == pytest.approx(0.2, rel=0.15)


def test_after_a_jump_the_past_says_nothing() -> None:
    known, jumps = followed(StepTime(), Estimate(0.1, 1e-6, 10), Estimate(0.2, 1e-6, 10))
    assert jumps == 1
    assert known.mean_seconds == pytest.approx(0.2, rel=1e-3)


@pytest.mark.parametrize("slow", [4, 6, 8])
def test_window_of_two_levels_shows_the_new_one_and_its_steps(slow: int) -> None:
    mixed = [0.1] * (10 - slow) + [0.2] * slow
    known, jumps = followed(
        StepTime(), Estimate(0.1, 1e-6, 100), Estimate(statistics.fmean(mixed), statistics.pvariance(mixed), 10)
    )
    assert jumps == 1
    assert known.mean_seconds == pytest.approx(0.2, rel=0.01)
    assert known.steps == pytest.approx(slow, rel=0.01)


def test_single_long_step_is_no_jump() -> None:
    stalled = [0.1] * 9 + [1.0]
    known, jumps = followed(
        StepTime(), Estimate(0.1, 1e-6, 100), Estimate(statistics.fmean(stalled), statistics.pvariance(stalled), 10)
    )
    assert jumps == 0
    assert known.mean_seconds == pytest.approx(0.1, rel=0.01)


def test_window_with_a_stall_counts_less() -> None:
    calm = Estimate(0.1, 1e-6, 10)
    stalled = Estimate(0.2, 0.1, 10)
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


def test_limit_that_does_not_bind_is_corrected_by_the_next_window() -> None:
    known, _ = followed(StepTime(cpu_limit=2.0), *[Estimate(0.1, 1e-6, 10)] * 5)
    known, _ = feed_forward(known, 4.0, metrics(50, 5.0), 10, factor_of_limits)
    known, jumps = followed(known, Estimate(0.1, 1e-6, 10))
    assert jumps == 1
    assert known.mean_seconds == pytest.approx(0.1, rel=0.06)


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


def test_nothing_measured_is_no_estimate() -> None:
    assert StepTime().estimate is None
