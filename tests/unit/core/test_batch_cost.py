"""The shape of own times, told apart from speed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain_operator.core.prediction.batch_cost import GREATEST_SHARE, BatchCost, line_of, remember
from heterotrain_operator.core.prediction.step_time import Estimate


def at(fixed: float, per_sample: float, batch: int) -> Estimate:
    return Estimate(fixed + per_sample * batch, 1e-8, 100)


def learned(fixed: float, per_sample: float, *batches: int) -> BatchCost:
    known = BatchCost()
    for batch in batches:
        known = remember(known, batch, at(fixed, per_sample, batch))
    return known


def test_one_batch_size_tells_no_overhead() -> None:
    line = line_of(BatchCost(), 64, at(0.05, 0.001, 64))
    assert line is not None
    assert line.fixed_seconds == 0
    assert line.at(64) == pytest.approx(0.114)


@pytest.mark.parametrize("fixed", [0.0, 0.01, 0.05])
def test_two_batch_sizes_tell_overhead_from_time_per_sample(fixed: float) -> None:
    line = line_of(learned(fixed, 0.001, 64), 32, at(fixed, 0.001, 32))
    assert line is not None
    assert line.fixed_seconds == pytest.approx(fixed, abs=0.1 * (fixed + 0.001 * 32))
    assert line.at(32) == pytest.approx(fixed + 0.032)


def test_batches_that_span_less_than_four_per_cent_tell_nothing() -> None:
    line = line_of(learned(0.05, 0.001, 100), 102, at(0.05, 0.001, 102))
    assert line is not None
    assert line.fixed_seconds == 0


def test_line_passes_through_the_newest_estimate() -> None:
    known = learned(0.05, 0.001, 64, 32)
    slower = Estimate(0.3, 1e-8, 10)
    line = line_of(known, 32, slower)
    assert line is not None
    assert line.at(32) == pytest.approx(0.3)
    assert line.fixed_seconds > 0


def test_long_stay_at_one_batch_does_not_wash_the_shape_out() -> None:
    known = learned(0.05, 0.001, 64, 32, *[48] * 200)
    line = line_of(known, 48, at(0.05, 0.001, 48))
    assert line is not None
    assert line.fixed_seconds == pytest.approx(0.05, rel=0.1)


def test_change_of_speed_leaves_the_shape() -> None:
    known = learned(0.05, 0.001, 64, 32)
    twice_as_slow = replace(known, speed=known.speed * 2)
    line = line_of(twice_as_slow, 32, Estimate(2 * 0.082, 1e-8, 100))
    assert line is not None
    assert line.fixed_seconds == pytest.approx(0.1, rel=0.1)


def test_time_that_falls_with_the_batch_is_held_to_a_rising_line() -> None:
    known = remember(BatchCost(), 32, Estimate(0.2, 1e-8, 100))
    line = line_of(known, 64, Estimate(0.1, 1e-8, 100))
    assert line is not None
    assert line.seconds_per_sample > 0
    assert line.fixed_seconds <= GREATEST_SHARE * 0.1 + 1e-12


def test_worker_without_samples_keeps_what_was_known() -> None:
    known = learned(0.05, 0.001, 64, 32)
    assert remember(known, 0, Estimate(1.0, 0.1, 10)) == known
    line = line_of(known, 0, None)
    assert line is not None
    assert line.at(64) == pytest.approx(0.114, rel=0.05)


def test_worker_never_measured_has_no_line() -> None:
    assert line_of(BatchCost(), 0, None) is None
    assert remember(BatchCost(), 64, None) == BatchCost()
