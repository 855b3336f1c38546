"""The cost of a batch, told apart from speed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain_operator.core.prediction.affine import GREATEST_SHARE, expect, learn, predict
from heterotrain_operator.core.prediction.batch_cost import BatchCost
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


def fixed_share(known: BatchCost) -> float:
    """Of a worker's time at 64 samples."""
    prediction = predict(known, 0, None)
    assert prediction is not None
    return prediction.line.fixed_seconds / prediction.line.at(64)
