"""Splits of a global batch: exact sums, bounds and multiples, as good as brute force, and refusals with figures."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from heterotrain_operator.core.split.allocation import (
    Line,
    ProfiledTime,
    iteration_seconds,
    oracle_split,
    split_min_max,
    split_proportionally,
    waterfill,
)
from heterotrain_operator.core.split.multiples import Bounds, infeasible, unreachable
from heterotrain_operator.core.split.passes import in_passes

Problem = tuple[int, list[Bounds], list[int]]
"""A total, bounds and multiples by rank."""


@st.composite
def multiples(draw: st.DrawFn, workers: int, *, mixed: bool = True) -> list[int]:
    """Of so many workers; half of the time all take single samples."""
    base = draw(st.sampled_from([1, 2, 3, 16]))
    chain = [base, 2 * base, 8 * base] + [1] * (draw(st.booleans()) and mixed)
    if not mixed or draw(st.integers(0, 3)) == 0:
        return [base] * workers
    return draw(st.lists(st.sampled_from(chain), min_size=workers, max_size=workers))


@st.composite
def feasible(draw: st.DrawFn, *, workers: int = 12, units: int = 40, mixed: bool = True) -> Problem:
    """Bounds need be no multiples themselves, and one batch in ten may not move at all."""
    count = draw(st.integers(1, workers))
    each = draw(multiples(count, mixed=mixed))
    bounds, total = [], 0
    for multiple in each:
        low = draw(st.integers(0, units))
        high = draw(st.integers(low, units))
        got = draw(st.integers(low, high))
        slack = draw(st.integers(0, multiple - 1)), draw(st.integers(0, multiple - 1))
        pair = max(low * multiple - slack[0], 0), high * multiple + slack[1]
        if mixed and pair[0] != pair[1] and draw(st.integers(0, 9)) == 0:
            pair = (got * multiple + slack[1], got * multiple + slack[1])
            total += slack[1]
        bounds.append(pair)
        total += got * multiple
    if total < 1:
        bounds[0] = (bounds[0][0], bounds[0][1] + each[0])
        total = each[0] if bounds[0][0] <= each[0] else next(low for low, _ in bounds)
    return total, bounds, each


WEIGHTS = st.one_of(st.just(0.0), st.floats(0, 1e300), st.floats(0, 1), st.floats(0, 1e-300))


def test_ties_go_to_the_lower_rank_and_workers_of_no_weight_take_what_nobody_else_can_hold() -> None:
    assert split_proportionally([1, 1, 1], 10, [(0, 10)] * 3) == (4, 3, 3)
    assert split_min_max([float] * 3, 10, [(0, 10)] * 3) == (4, 3, 3)
    assert split_proportionally([0, 1, 1], 20, [(0, 20)] * 3) == (0, 10, 10)
    assert split_proportionally([0, 1, 0], 20, [(0, 20), (0, 8), (0, 20)]) == (6, 8, 6)


@pytest.mark.parametrize(
    ("total", "bounds", "figures"),
    [
        (5, [(2, 9), (4, 9)], "the global batch of 5 samples is below 6, the sum of the least batches of 2 workers"),
        (
            20,
            [(2, 9), (4, 9)],
            "the global batch of 20 samples exceeds 18, the sum of the greatest batches of 2",
        ),
        (5, [(4, 3)], "worker 0 is bounded to [4, 3] samples"),
        (5, [(-1, 3)], "worker 0 is bounded to [-1, 3] samples"),
        (5, [], "there is no worker"),
        (0, [(0, 3)], "the global batch of 0 samples is no batch"),
    ],
)
def test_infeasible_splits_say_why_with_figures(total: int, bounds: list[Bounds], figures: str) -> None:
    with pytest.raises(ValueError) as proportional:
        split_proportionally([1.0] * len(bounds), total, bounds)
    with pytest.raises(ValueError) as min_max:
        split_min_max([float] * len(bounds), total, bounds)
    assert figures in str(proportional.value)
    assert figures in str(min_max.value)


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -1.0])
def test_weights_that_are_no_weights_are_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="weight of worker 1"):
        split_proportionally([1.0, weight], 10, [(0, 10)] * 2)


@given(
    st.lists(
        st.lists(st.floats(0, 10), min_size=7, max_size=7).map(lambda steps: list(itertools.accumulate(steps))),
        min_size=1,
        max_size=4,
    ),
    st.data(),
)
def test_greedy_is_min_max_optimal_for_any_rising_times(tables: list[list[float]], data: st.DataObject) -> None:
    bounds = [data.draw(st.sampled_from([(0, 6), (1, 6), (2, 5), (0, 3)])) for _ in tables]
    total = data.draw(st.integers(max(sum(low for low, _ in bounds), 1), sum(high for _, high in bounds)))
    batches = split_min_max([table.__getitem__ for table in tables], total, bounds)
    best = min(
        max(table[b] for table, b in zip(tables, split, strict=True))
        for split in itertools.product(*(range(low, high + 1) for low, high in bounds))
        if sum(split) == total
    )
    assert max(table[b] for table, b in zip(tables, batches, strict=True)) == best
    assert sum(batches) == total


LINES = st.builds(Line, st.floats(-2, 2), st.floats(1e-3, 1))


@pytest.mark.parametrize("line", [Line(0.0, 0.0), Line(-math.inf, 1.0), Line(math.nan, 1.0), Line(0.0, math.inf)])
def test_time_that_does_not_rise_is_refused(line: Line) -> None:
    with pytest.raises(ValueError, match="worker 0"):
        waterfill([line], 10, [(0, 10)])


def choices(problem: Problem) -> list[tuple[int, ...]]:
    """What each worker may get."""
    _, bounds, each = problem
    return [
        (low,) if low == high else tuple(batch for batch in range(low, high + 1) if batch % multiple == 0)
        for (low, high), multiple in zip(bounds, each, strict=True)
    ]


@given(feasible(), st.data())
def test_every_split_keeps_sum_bounds_and_multiples(problem: Problem, data: st.DataObject) -> None:
    total, bounds, each = problem
    lines = data.draw(st.lists(LINES, min_size=len(bounds), max_size=len(bounds)))
    weights = data.draw(st.lists(WEIGHTS, min_size=len(bounds), max_size=len(bounds)))
    assert infeasible(total, bounds, each) is None
    for batches in (
        split_proportionally(weights, total, bounds, each),
        split_min_max([line.at for line in lines], total, bounds, multiples=each),
        waterfill(lines, total, bounds, each),
    ):
        assert sum(batches) == total
        for batch, (low, high), multiple in zip(batches, bounds, each, strict=True):
            assert low <= batch <= high
            assert low == high or batch % multiple == 0


@given(feasible(workers=4, units=4), st.data())
def test_waterfilling_in_multiples_is_near_the_best_of_all(problem: Problem, data: st.DataObject) -> None:
    total, bounds, each = problem
    lines = data.draw(st.lists(LINES, min_size=len(bounds), max_size=len(bounds)))
    assume(math.prod(map(len, choices(problem))) < 20_000)
    best = min(iteration_seconds(lines, split) for split in itertools.product(*choices(problem)) if sum(split) == total)
    found = iteration_seconds(lines, waterfill(lines, total, bounds, each))
    if len(set(each)) == 1:
        assert found == pytest.approx(best, rel=1e-9)
    else:  # what the coarse ones get is rounded, so one unit of one worker may be elsewhere
        assert found <= best + max(line.seconds_per_sample * unit for line, unit in zip(lines, each, strict=True))


@given(st.integers(1, 4).flatmap(multiples), st.integers(1, 60), st.data())
def test_what_is_called_unreachable_is_so_and_nothing_else(each: list[int], total: int, data: st.DataObject) -> None:
    pair = st.tuples(st.integers(0, 24), st.integers(0, 24)).map(lambda ends: (min(ends), max(ends)))
    bounds: list[Bounds] = data.draw(st.lists(pair, min_size=len(each), max_size=len(each)))
    possible = any(sum(split) == total for split in itertools.product(*choices((total, bounds, each))))
    assert (unreachable(total, bounds, each) == "") == possible


@pytest.mark.parametrize(
    ("total", "bounds", "each", "why"),
    [
        (100, [(16, 96), (16, 96)], [16, 16], "no batches in multiples of 16 within their bounds add up to 100"),
        (40, [(0, 40), (0, 40)], [6, 4], "of the multiples 4, 6 each must divide the next"),
        (40, [(17, 30), (0, 40)], [16, 1], "there is no multiple of 16 between 17 and 30"),
        (50, [(32, 64), (1, 10)], [32, 1], "no batches in multiples of 1, 32 within their bounds add up to 50"),
    ],
)
def test_what_cannot_be_reached_is_said(total: int, bounds: list[Bounds], each: list[int], why: str) -> None:
    assert unreachable(total, bounds, each) == why
    with pytest.raises(ValueError, match=r"multiple|global batch"):
        split_proportionally([1.0] * len(bounds), total, bounds, each)


@pytest.mark.parametrize(
    ("points", "batches", "seconds"),
    [
        ({10: 1.0, 20: 2.0, 40: 6.0}, (5, 10, 15, 30, 50), [0.5, 1.0, 1.5, 4.0, 8.0]),
        ({10: 1.0, 20: 3.0}, (1,), [0.0]),  # never negative
        ({10: 1.0, 20: 3.0, 30: 2.0, 40: 4.0}, (10, 20, 30, 40), [1.0, 2.5, 2.5, 4.0]),  # what falls is pooled
        ({10: 1.0}, (25,), [2.5]),  # in proportion
    ],
)
def test_profiled_time_is_linear_between_points_and_follows_the_end_slopes_beyond(
    points: dict[int, float], batches: tuple[int, ...], seconds: list[float]
) -> None:
    assert [ProfiledTime(points)(batch) for batch in batches] == pytest.approx(seconds)


def test_oracle_gives_the_best_split_within_bounds_and_its_seconds() -> None:
    profiles = [{64: 0.064, 128: 0.128}, {64: 0.128, 96: 0.192}, {64: 0.256}]
    batches, seconds = oracle_split(profiles, 192, [(1, 192)] * 3)
    assert batches == (110, 55, 27)
    assert seconds == pytest.approx(0.110)
    batches, seconds = oracle_split([{10: 0.1}, {10: 0.4}], 20, [(0, 12), (0, 20)])
    assert batches == (12, 8)
    assert seconds == pytest.approx(0.32)


@pytest.mark.parametrize("points", [{}, {0: 1.0}, {10: float("nan")}, {10: -1.0}])
def test_profile_without_a_usable_point_names_the_worker(points: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="worker 1: no point"):
        oracle_split([{10: 1.0}, points], 20, [(0, 20)] * 2)


HELD = st.lists(
    st.integers(0, 20).flatmap(lambda low: st.tuples(st.just(low), st.integers(max(low, 1), 60))), min_size=1
)


@given(held=HELD, total=st.integers(1, 5000))
def test_in_passes_any_global_batch_has_room_and_what_fits_at_once_is_left_alone(
    held: list[tuple[int, int]], total: int
) -> None:
    bounds = in_passes(total, held)
    assert sum(high for _, high in bounds) >= total
    assert [low for low, _ in bounds] == [low for low, _ in held]
    assert all(high >= before for (_, high), (_, before) in zip(bounds, held, strict=True))
    if sum(high for _, high in held) >= total:
        assert bounds == held
