"""The oracle on profiled points."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_operator.core.split.allocation import ProfiledTime, oracle_split


def test_time_is_linear_between_points_and_follows_the_end_slopes_beyond() -> None:
    time_of = ProfiledTime({10: 1.0, 20: 2.0, 40: 6.0})
    assert [time_of(batch) for batch in (5, 10, 15, 30, 50)] == pytest.approx([0.5, 1.0, 1.5, 4.0, 8.0])


def test_extrapolated_time_is_never_negative() -> None:
    assert ProfiledTime({10: 1.0, 20: 3.0})(1) == 0.0


def test_points_that_fall_are_pooled() -> None:
    time_of = ProfiledTime({10: 1.0, 20: 3.0, 30: 2.0, 40: 4.0})
    assert [time_of(batch) for batch in (10, 20, 30, 40)] == pytest.approx([1.0, 2.5, 2.5, 4.0])


def test_one_point_is_proportional() -> None:
    assert ProfiledTime({10: 1.0})(25) == pytest.approx(2.5)


@given(st.dictionaries(st.integers(1, 500), st.floats(1e-4, 10), min_size=1, max_size=6))
def test_time_never_falls_as_the_batch_grows(points: dict[int, float]) -> None:
    times = [ProfiledTime(points)(batch) for batch in range(0, 600, 7)]
    assert all(after >= before - 1e-9 for before, after in itertools.pairwise(times))


def test_oracle_gives_the_best_split_and_its_seconds() -> None:
    profiles = [{64: 0.064, 128: 0.128}, {64: 0.128, 96: 0.192}, {64: 0.256}]
    batches, seconds = oracle_split(profiles, 192, [(1, 192)] * 3)
    assert batches == (110, 55, 27)
    assert seconds == pytest.approx(0.110)


def test_oracle_keeps_bounds() -> None:
    batches, seconds = oracle_split([{10: 0.1}, {10: 0.4}], 20, [(0, 12), (0, 20)])
    assert batches == (12, 8)
    assert seconds == pytest.approx(0.32)


@pytest.mark.parametrize("points", [{}, {0: 1.0}, {10: float("nan")}, {10: -1.0}])
def test_profile_without_a_usable_point_names_the_worker(points: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="worker 1: no point"):
        oracle_split([{10: 1.0}, points], 20, [(0, 20)] * 2)


def test_infeasible_bounds_are_refused_with_figures() -> None:
    with pytest.raises(ValueError, match="exceeds 20"):
        oracle_split([{10: 1.0}] * 2, 21, [(0, 10)] * 2)
