"""Own time from counters: steady under noise, quick after a change; what all workers share moves nobody."""

from __future__ import annotations

import math
import random
import statistics
from statistics import fmean

import pytest

from heterotrain_operator.clusters.simulated.noise import AR1, Noise
from heterotrain_operator.core.batching.words import balance
from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.core.prediction import predictor_of
from heterotrain_operator.core.prediction.jumps import (
    Moved,
    Pair,
    expected_at,
    follow,
    is_another_speed,
    moved,
    shared_by_moved,
    shared_change,
)
from heterotrain_operator.core.prediction.step_time import (
    MEASURED,
    SLOWER,
    Estimate,
    StepTime,
    counted,
    steps_since,
    window_of,
)
from heterotrain_operator.core.state import Remembered
from unit.core.traces import World, hetero_job, hetero_world


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
        assert world.imbalance() <= 1.15
    assert fmean(plans) <= 4
    assert max(plans) <= 10


def test_next_plan_begins_with_what_the_last_one_lets_expect_and_that_is_no_measurement() -> None:
    world = World(hetero_job(), {"job-g1-0": 2.0, "job-g2-0": 4.0}, noise=0.05).start()
    assert world.run(1)[0].plan is not None
    plan = world.plan
    times = [worker.step_time for worker in world.memory.workers]
    assert all(time.estimate is None and time.before is not None for time in times)
    truth = world.true_seconds()
    assert [time.mean_seconds for time in times] == pytest.approx(truth, rel=0.15)
    assert balance(plan, world.memory)[0] is None
    assert Remembered.from_json(world.memory.to_json()) == world.memory


LONG = pytest.mark.long
SLOWED = "job-g0-0"
FIXED, PER_SAMPLE = 0.02, 0.002


def jump_world(noise: float | Noise = 0.03, seed: int = 0) -> World:
    scales = {"job-g1-0": 1.5, "job-g2-0": 2.0, "job-g3-0": 4.0}
    job = hetero_job("Optimal", (1, 1.5, 2, 4))
    return World(job, scales, fixed=FIXED, per_sample=PER_SAMPLE, noise=noise, seed=seed).start()


def jump(made: World, scale: float, after: int) -> None:
    """In the midst of a window."""
    made.train(after)
    made.workers[SLOWED].scale = scale
    made.train(made.job.interval - after)
    made.tick()


@pytest.mark.parametrize("after", [2, 5, 7])
def test_plan_after_a_window_of_two_speeds_is_right_and_bends_no_line(after: int) -> None:
    made = jump_world()
    made.run(10)
    for scale in (2.0, 1.0):
        jump(made, scale, after)
        made.run(1)
        assert made.imbalance() <= 1.06
        made.run(7)
    for member, known in zip(made.plan.members, made.memory.workers, strict=True):
        prediction = predictor_of(made.job).predict(known.batch_cost, member.batch_size, known.step_time.before)
        line = prediction.line
        assert line.fixed_seconds / line.seconds_per_sample == pytest.approx(FIXED / PER_SAMPLE, abs=6)


def test_single_window_that_differs_moves_nothing() -> None:
    made = jump_world(noise=0.1)
    made.run(20)
    known = made.memory.workers[0].step_time
    made.workers[SLOWED].scale = 1.12
    made.run(1)
    aside = made.memory.workers[0].step_time
    assert aside.basis == SLOWER
    assert aside.mean_seconds == known.mean_seconds
    made.workers[SLOWED].scale = 1.0
    made.run(1)
    after = made.memory.workers[0].step_time
    assert after.basis == MEASURED
    assert after.mean_seconds == pytest.approx(known.mean_seconds, rel=0.02)


@pytest.mark.parametrize(
    ("batch", "seconds", "speed"),
    [
        (45, 0.4, True),  # twice the time for a sample fewer
        (46, 0.4, True),
        (46, 0.1, True),
        (47, 0.1, True),
        (47, 0.4, False),  # it may be the cliff of memory, or of a quota
        (45, 0.1, False),
        (46, 0.23, False),  # a quota makes so much of a little waiting
        (40, 0.4, False),
    ],
)
def test_first_window_at_nearly_the_batch_before_is_a_change_of_speed_where_the_batch_cannot_be_why(
    batch: int, seconds: float, speed: bool
) -> None:
    known = StepTime().unmeasured(Estimate(0.2, 1e-4, 50), expected_at(batch, 46))
    assert known.estimate is None, "no window has ended"
    assert known.before is not None
    assert is_another_speed(known.basis, known.before, Estimate(seconds, 1e-4, 10)) is speed


ERROR = 0.03
"""Of a window; ten steps that vary by a tenth."""


def window(seconds: float, steps: float = 10) -> Estimate:
    return Estimate(seconds, 10 * (ERROR * seconds) ** 2, steps)


def found(*ratios: float) -> float:
    """The shared change where each worker's window is so many times as long as its estimate before."""
    befores = [window(0.1 * (1 + rank), steps=100) for rank, _ in enumerate(ratios)]
    windows = [window(before.mean_seconds * ratio) for before, ratio in zip(befores, ratios, strict=True)]
    return shared_change(list(zip(befores, windows, strict=True)))


@pytest.mark.parametrize(
    ("ratios", "shared"),
    [
        ((1.2, 1.2, 1.2), 1.2),
        ((0.8, 0.8, 0.8, 0.8), 0.8),
        ((1.2, 1.3), 1.2),
        ((1.1, 1.12, 1.15, 1.1, 1.2, 1.3, 2.0, 1.0), 1.1),  # three quarters of the workers show it
        *((fewer, 1) for fewer in ((2.0,), (3.0, 1.0), (1.0, 1.0, 2.0), (0.5, 1.0, 2.0), (2.0, 2.0, 1.0, 1.0))),
        *((noise, 1) for noise in ((1.01, 1.01), (50.0, 1.02, 1.01, 1.01), (0.02, 0.98, 0.99, 0.99))),
        *((beyond_belief, 1) for beyond_belief in ((1000.0,) * 3, (0.001,) * 3)),
    ],
)
def test_what_three_quarters_of_the_workers_show_at_least_is_shared_if_noise_does_not_explain_it(
    ratios: tuple[float, ...], shared: float
) -> None:
    assert found(*ratios) == pytest.approx(shared)


def moves(batch: int, *ratios: float) -> list[Moved]:
    """Workers at that batch instead of 100, whose windows are so many times as long as expected."""
    return [moved(batch / 100, window(0.1, steps=2), window(0.1 * ratio)) for ratio in ratios]


def stayed(*ratios: float) -> list[Pair]:
    """Workers at the same batch as before, whose windows are so many times as long."""
    return [(window(0.1), window(0.1 * ratio)) for ratio in ratios]


@pytest.mark.parametrize("change", [0.75, 1.3])
@pytest.mark.parametrize("overhead", [-0.4, 0, 0.5])
def test_change_that_is_left_beside_the_cost_of_samples_is_shared(change: float, overhead: float) -> None:
    """Times with an overhead differ the more from what is expected in proportion, the farther a batch is moved."""
    others = [
        each for batch in (50, 60, 70, 120, 130, 150) for each in moves(batch, change * (100 / batch) ** overhead)
    ]
    assert shared_by_moved(others, []) == pytest.approx(change)
    assert shared_by_moved(others, stayed(0.9 * change, 0.9 * change)) == pytest.approx(0.9 * change)


PADDED = [moves(batch, ratio)[0] for batch in (60, 140) for ratio in 4 * [1.02, 1.1, 1.3, 1.5]]


@pytest.mark.parametrize(
    ("others", "alike"),
    [
        (moves(150, 0.67, 0.67) + moves(60, 1.66, 1.66), []),  # samples cost nothing
        (moves(150, 1.5, 1.5) + moves(60, 0.6, 0.6), []),  # or more, the more there are
        (moves(150, 0.7, 0.7) + moves(60, 0.7, 0.7), stayed(1.0, 1.0)),
        (moves(150, 0.7) + moves(60, 0.7, 0.7, 0.7), []),  # too few with more
        (moves(150, 0.96, 0.95) + moves(60, 0.95, 0.94), []),  # too little
        (moves(150, 0.5, 0.99, 1.0) + moves(60, 0.9, 0.6, 1.3), []),  # each of its own
        (moves(150, 0.5, 0.9, 1.4, 1.3, 0.7) + moves(60, 0.6, 0.65, 0.7, 0.75, 0.8), []),
        (PADDED, []),  # by another factor each
        (moves(120, 3, 3) + moves(50, 1, 1), []),  # of one group of workers alone
    ],
)
def test_steps_that_the_cost_of_samples_or_noise_explains_show_none(others: list[Moved], alike: list[Pair]) -> None:
    assert shared_by_moved(others, alike) == 1


@pytest.mark.parametrize(
    ("scales", "slower", "noise"),
    [
        (2 * (1, 1.5, 2, 4), (4, 3, 2.2, 1.6, 1.3, 1.1, 1), 0.03),
        pytest.param(4 * (1, 4), (4, 3, 2.2, 1.6, 1.3, 1.1, 1), 0.003, marks=LONG),
        pytest.param(4 * (1, 1, 1, 3), (1, 1.5, 2, 1.5, 1, 1, 1), 0.08, marks=LONG),
    ],
)
def test_first_plans_are_right_though_all_workers_speeds_change_meanwhile(
    scales: tuple[float, ...], slower: tuple[float, ...], noise: float
) -> None:
    """As of a script that warms up; the samples that plans move then would else seem to cost nothing, or all."""
    world = hetero_world("Optimal", scales, noise=noise)
    usual = {name: worker.scale for name, worker in world.workers.items()}
    for factor in slower:
        for name, worker in world.workers.items():
            worker.scale = factor * usual[name]
        world.run(1)
    assert world.imbalance() < 1.12


def test_estimates_and_costs_follow_a_shared_change_at_once_and_no_promise_is_missed_by_it() -> None:
    world = hetero_world("Optimal", (1, 2, 4), noise=0.02)
    world.run(6)
    version, before = world.plan.version, [worker.batch_cost.speed for worker in world.memory.workers]
    for worker in world.workers.values():
        worker.scale *= 1.5
    world.run(1)
    for known, seconds, speed in zip(world.memory.workers, world.true_seconds(), before, strict=True):
        assert known.step_time.mean_seconds == pytest.approx(seconds, rel=0.05)
        assert known.batch_cost.speed == pytest.approx(1.5 * speed, rel=0.05)
        assert known.step_time.steps > world.job.interval  # what is known of differences is kept
    world.run(5)
    assert world.plan.version == version
    assert world.memory.promises.doubt == 0
