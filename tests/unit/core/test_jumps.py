"""A jump of speed within a window is followed by one plan, and bends nobody's line; a drift is followed, too."""

from __future__ import annotations

import random
from statistics import NormalDist

import pytest

from heterotrain_operator.clusters.simulated.noise import AR1, Noise
from heterotrain_operator.core.lifecycle.publishing import carried_on
from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.core.prediction import predictor_of
from heterotrain_operator.core.prediction.causes import window_closed
from heterotrain_operator.core.prediction.jumps import IN_DOUBT, caution_of, expected_at, follow, is_another_speed
from heterotrain_operator.core.prediction.resource_use import Cause, ResourceUse
from heterotrain_operator.core.prediction.roughness import TREND, trend_after
from heterotrain_operator.core.prediction.step_time import JUMPED, MEASURED, SLOWER, Estimate, StepTime
from unit.core.traces import World, hetero_job

SLOWED = "job-g0-0"
FIXED, PER_SAMPLE = 0.02, 0.002


def world(noise: float | Noise = 0.03, seed: int = 0) -> World:
    scales = {"job-g1-0": 1.5, "job-g2-0": 2.0, "job-g3-0": 4.0}
    job = hetero_job("Optimal", (1, 1.5, 2, 4))
    return World(job, scales, fixed=FIXED, per_sample=PER_SAMPLE, noise=noise, seed=seed).start()


def imbalance(made: World) -> float:
    """The slowest worker's true time over the mean of all."""
    seconds = made.true_seconds()
    return max(seconds) * len(seconds) / sum(seconds)


def batch_of(made: World, name: str) -> int:
    assert made.plan is not None
    return next(member.batch_size for member in made.plan.members if member.name == name)


def jump(made: World, scale: float, after: int) -> None:
    """In the midst of a window."""
    made.train(after)
    made.workers[SLOWED].scale = scale
    made.train(made.job.interval - after)
    made.tick()


@pytest.mark.parametrize("after", [2, 5, 7])
def test_plan_after_a_window_of_two_speeds_is_right(after: int) -> None:
    made = world()
    made.run(10)
    jump(made, 2.0, after)
    made.run(1)
    assert imbalance(made) <= 1.06


@pytest.mark.parametrize("after", [2, 5, 7])
def test_jump_under_noise_that_lasts_is_followed_within_three_windows(after: int) -> None:
    """The window of the jump was averaged, made the noise look three times as large, and hid those after it."""
    found = 0
    for seed in range(20):
        made = world(AR1(0.9, 0.10), seed)
        made.run(20)
        before = batch_of(made, SLOWED)
        jump(made, 2.0, after)
        made.run(2)
        found += batch_of(made, SLOWED) < 0.8 * before
    assert found >= 14


@pytest.mark.parametrize("ratio", [0.2, 5.0])
def test_window_of_another_speed_shows_it_whichever_way_it_went(ratio: float) -> None:
    """Slower ones were compared with an error that grew with them, so that 1 - 1/ratio had to exceed it."""
    before = Estimate(0.1, 10 * (0.2 * 0.1) ** 2, 100)
    window = Estimate(0.1 * ratio, 10 * (0.2 * 0.1 * ratio) ** 2, 10)
    after, jumped = follow(before, window)
    assert jumped
    assert after.mean_seconds == pytest.approx(window.mean_seconds, rel=0.5)


def test_windows_of_many_workers_must_differ_more_for_by_chance_some_always_do() -> None:
    assert caution_of(3) == caution_of(32) == 1
    assert 1 < caution_of(100) < caution_of(512) < caution_of(10_000) < 2
    for workers in (64, 512, 10_000):
        chance = workers * NormalDist().cdf(-IN_DOUBT * caution_of(workers))
        assert chance == pytest.approx(32 * NormalDist().cdf(-IN_DOUBT))


def test_single_window_that_differs_moves_nothing() -> None:
    made = world(noise=0.1)
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


def test_neighbour_that_comes_and_goes_bends_no_line() -> None:
    made = world()
    made.run(10)
    for _ in range(6):
        for scale in (2.0, 1.0):
            jump(made, scale, 4)
            made.run(8)
            assert imbalance(made) <= 1.06
    assert made.plan is not None
    for member, known in zip(made.plan.members, made.memory.workers, strict=True):
        prediction = predictor_of(made.job).predict(known.batch_cost, member.batch_size, known.step_time.before)
        assert prediction is not None
        line = prediction.line
        assert line.fixed_seconds / line.seconds_per_sample == pytest.approx(FIXED / PER_SAMPLE, abs=6)


def test_window_of_a_jump_is_no_point_of_the_fit() -> None:
    made = world(noise=0.0)
    made.run(6)
    before = made.memory.workers[0].batch_cost
    made.train(5)
    made.workers[SLOWED].scale = 3.0
    made.train(5)
    assert made.tick().plan is not None
    after = made.memory.workers[0].batch_cost
    assert (after.sum_w, after.sum_wb, after.sum_wy) == (before.sum_w, before.sum_wb, before.sum_wy)
    assert after.predicted == 1
    assert made.memory.workers[0].step_time.basis != JUMPED, "a new plan's estimate is an expectation"


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


@pytest.mark.parametrize("seed", range(3))
def test_drift_of_one_worker_is_followed(seed: int) -> None:
    """A long average, and what drifts taken for noise, left it 17 to 23 % slower than the others in the mean."""
    made = world(noise=0.05, seed=seed)
    made.run(20)
    over = []
    for _ in range(40):
        made.workers[SLOWED].scale *= 2 ** (1 / 40)
        made.run(1)
        over.append(imbalance(made))
    assert sum(over) / len(over) <= 1.08


def test_independent_windows_make_no_trend_and_windows_on_one_side_do() -> None:
    source = random.Random(1)
    trends = [0.0]
    for _ in range(2000):
        trends.append(trend_after(trends[-1], source.gauss(0, 1)))
    assert sum(abs(trend) > TREND for trend in trends) <= 10
    trend = 0.0
    for _ in range(6):
        trend = trend_after(trend, 2.0)
    assert trend > TREND


def test_speed_that_changes_together_with_the_members_is_found_though_the_plan_before_was_never_measured() -> None:
    """Else a worker that became slow in the very step in which another joined was taken for one whose batches cost
    more, and its batches went up and down for long."""
    made = world(noise=0.0)
    made.run(6)
    jump(made, 2.0, 4)
    assert made.plan is not None
    rows = made.memory.workers
    kept = carried_on(made.job, made.memory, made.plan)
    others = [(member, row) for member, row in zip(made.plan.members, rows, strict=True) if member.name != SLOWED]
    assert all(row.step_time.is_expected for _, row in others), "no window of this plan has ended"
    for member, row in others:
        expected = kept[member.name].step_time
        assert expected.is_expected
        assert expected.mean_seconds == pytest.approx(row.step_time.mean_seconds)
        assert expected.before is not None
        assert is_another_speed(expected.basis, expected.before, Estimate(2 * expected.mean_seconds, 1e-6, 3))


def first_window(waited: float | None) -> WorkerMetrics:
    return WorkerMetrics(2, steps=10.0, own_seconds=3.0, observed_seconds=3.0, cpu_seconds=1.5, cpu_wait_seconds=waited)


@pytest.mark.parametrize(
    ("waited", "cause", "says"), [(1.4, Cause.NEIGHBOUR, True), (0.1, Cause.NONE, False), (None, Cause.NONE, False)]
)
def test_first_window_of_a_plan_is_a_change_of_speed_only_where_its_worker_waits(
    waited: float | None, cause: Cause, says: bool
) -> None:
    use, why = window_closed(
        ResourceUse(),
        first_window(waited),
        Estimate(0.3, 1e-6, 10),
        before=Estimate(0.15, 1e-6, 10),
        jumped=True,
        at_new_batch=True,
        on_cpu=True,
    )
    assert (use.cause, bool(why)) == (cause, says)


def test_first_window_after_a_neighbour_left_is_a_change_of_speed() -> None:
    use, why = window_closed(
        ResourceUse(cause=Cause.NEIGHBOUR),
        first_window(0.1),
        Estimate(0.3, 1e-6, 10),
        before=Estimate(0.6, 1e-6, 10),
        jumped=True,
        at_new_batch=True,
        on_cpu=True,
    )
    assert use.cause == Cause.NONE
    assert "waits for a CPU" in why
