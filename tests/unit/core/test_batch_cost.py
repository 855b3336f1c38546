"""The cost of a batch, told apart from speed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain_operator.core.prediction.batch_cost import BatchCost
from heterotrain_operator.core.prediction.predictors.ema import GREATEST_SHARE, expect, learn, predict
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.worker_memory import WorkerMemory
from unit.core.traces import hetero_world


def at(fixed: float, per_sample: float, batch: int) -> Estimate:
    return Estimate(fixed + per_sample * batch, 1e-8, 100)


def learned(fixed: float, per_sample: float, *batches: int) -> BatchCost:
    known = BatchCost()
    for batch in batches:
        known = learn(known, batch, at(fixed, per_sample, batch))
    return known


def test_one_batch_size_tells_no_overhead() -> None:
    prediction = predict(BatchCost(), 64, at(0.05, 0.001, 64))
    assert prediction is not None
    line = prediction.line
    assert line.fixed_seconds == 0
    assert line.at(64) == pytest.approx(0.114)


@pytest.mark.parametrize("fixed", [0.0, 0.01, 0.05])
def test_two_batch_sizes_tell_overhead_from_time_per_sample(fixed: float) -> None:
    prediction = predict(learned(fixed, 0.001, 64), 32, at(fixed, 0.001, 32))
    assert prediction is not None
    line = prediction.line
    assert line.fixed_seconds == pytest.approx(fixed, abs=0.1 * (fixed + 0.001 * 32))
    assert line.at(32) == pytest.approx(fixed + 0.032)


def test_batches_that_span_less_than_four_per_cent_tell_nothing() -> None:
    prediction = predict(learned(0.05, 0.001, 100), 102, at(0.05, 0.001, 102))
    assert prediction is not None
    line = prediction.line
    assert line.fixed_seconds == 0


def test_line_passes_through_the_newest_estimate() -> None:
    known = learned(0.05, 0.001, 64, 32)
    slower = Estimate(0.3, 1e-8, 10)
    prediction = predict(known, 32, slower)
    assert prediction is not None
    line = prediction.line
    assert line.at(32) == pytest.approx(0.3)
    assert line.fixed_seconds > 0


def test_long_stay_at_one_batch_does_not_wash_the_cost_out() -> None:
    known = learned(0.05, 0.001, 64, 32, *[48] * 200)
    prediction = predict(known, 48, at(0.05, 0.001, 48))
    assert prediction is not None
    line = prediction.line
    assert line.fixed_seconds == pytest.approx(0.05, rel=0.1)


def test_change_of_speed_leaves_the_cost() -> None:
    known = learned(0.05, 0.001, 64, 32)
    twice_as_slow = known.scaled(2)
    prediction = predict(twice_as_slow, 32, Estimate(2 * 0.082, 1e-8, 100))
    assert prediction is not None
    line = prediction.line
    assert line.fixed_seconds == pytest.approx(0.1, rel=0.1)


def test_time_that_falls_with_the_batch_is_held_to_a_rising_line() -> None:
    known = learn(BatchCost(), 32, Estimate(0.2, 1e-8, 100))
    prediction = predict(known, 64, Estimate(0.1, 1e-8, 100))
    assert prediction is not None
    line = prediction.line
    assert line.seconds_per_sample > 0
    assert line.fixed_seconds <= GREATEST_SHARE * 0.1 + 1e-12


def test_worker_without_samples_keeps_what_was_known() -> None:
    known = learned(0.05, 0.001, 64, 32)
    assert learn(known, 0, Estimate(1.0, 0.1, 10)) == known
    prediction = predict(known, 0, None)
    assert prediction is not None
    line = prediction.line
    assert line.at(64) == pytest.approx(0.114, rel=0.05)


@pytest.mark.parametrize("ratio", [1e-12, 1e12])
def test_speed_that_no_step_can_have_makes_the_cost_be_learned_again(ratio: float) -> None:
    """As of a worker that reports steps of a day and of a millisecond in turn, under each plan again."""
    known = learned(0.01, 0.001, 32, 64)
    for _ in range(30):
        known = known.scaled(ratio).rounded(BatchCost())
        known = learn(known, 64, at(0.01, 0.001, 64))
        assert expect(known, 64, at(0.01, 0.001, 64), 32) is not None
        rounded = known.rounded(BatchCost())
        assert WorkerMemory.from_row(WorkerMemory(batch_cost=rounded).row()).batch_cost == rounded


def test_sums_that_no_measurements_leave_make_the_cost_be_learned_again() -> None:
    """As a memory may hold that somebody else has written: times per sample beyond what numbers can hold."""
    foreign = BatchCost(1e21, 1e27, 1e21, 1e25, 1e-60, 1e-44, predicted=1)
    assert foreign.is_possible
    known = learn(foreign, 1, at(0.0, 0.001, 1))
    assert expect(known, 1, at(0.0, 0.001, 1), 30) is not None


def test_worker_never_measured_has_no_line() -> None:
    assert predict(BatchCost(), 0, None) is None
    assert learn(BatchCost(), 64, None) == BatchCost()


def test_speed_that_creeps_while_the_batches_stay_does_not_bend_the_cost() -> None:
    """By a quarter in all, by less per window than is taken for a jump; then another worker's jump moves the
    batches."""
    world = hetero_world(scales=(1, 2, 4), fixed=0.03, noise=0.01)
    world.run(12)
    slow, fast = world.workers["job-g2-0"], world.workers["job-g0-0"]
    share = fixed_share(world.memory.workers[2].batch_cost)
    world.job = replace(world.job, policy="Uniform", dry_run=True)
    for _ in range(40):
        slow.scale *= 1.006
        world.run(1)
    world.job = replace(world.job, policy="Optimal", dry_run=False)
    fast.scale *= 1.5
    world.run(8)
    assert fixed_share(world.memory.workers[2].batch_cost) == pytest.approx(share, abs=0.04)


def test_speed_that_drifts_while_the_batches_stay_is_followed_and_bends_no_cost() -> None:
    """To twice the time, by as much per window as a short average follows."""
    world = hetero_world(scales=(1, 2, 4), fixed=0.03, noise=0.05)
    world.run(12)
    share = fixed_share(world.memory.workers[0].batch_cost)
    world.job = replace(world.job, policy="Uniform", dry_run=True)
    for _ in range(35):
        world.workers["job-g0-0"].scale *= 1.02
        world.run(1)
    assert world.plan is not None
    worker = world.memory.workers[0]
    prediction = predict(worker.batch_cost, 0, None)
    assert prediction is not None
    assert prediction.line.at(world.plan.batch_sizes[0]) == pytest.approx(worker.step_time.mean_seconds, rel=0.05)
    assert fixed_share(worker.batch_cost) == pytest.approx(share, abs=1e-6)


def test_speed_that_drifts_from_plan_to_plan_bends_the_cost_little() -> None:
    """Steps that take longer each time that the batch has shrunk do not show that a smaller batch takes longer."""
    known, slower = learned(0.02, 0.001, 32, 64), 1.0
    for batch in (60, 56, 52, 48, 44):
        slower *= 1.06
        known = learn(known, batch, Estimate(slower * (0.02 + 0.001 * batch), 1e-8, 100))
    assert fixed_share(known) == pytest.approx(0.02 / 0.084, abs=0.2)
    prediction = predict(known, 0, None)
    assert prediction is not None
    assert prediction.line.at(44) == pytest.approx(slower * 0.064, rel=0.05)


def test_difference_that_noise_explains_leaves_the_speed() -> None:
    known = learned(0.02, 0.001, 32, 64)
    noisy = learn(known, 48, Estimate(1.2 * 0.068, (0.2 * 1.2 * 0.068) ** 2 * 4, 4))
    assert noisy.speed == pytest.approx(known.speed, rel=0.01)


def fixed_share(known: BatchCost) -> float:
    """Of a worker's time at 64 samples."""
    prediction = predict(known, 0, None)
    assert prediction is not None
    return prediction.line.fixed_seconds / prediction.line.at(64)
