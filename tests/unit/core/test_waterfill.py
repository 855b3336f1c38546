"""Water-filling against brute force, the greedy oracle and the closed form."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_operator.core.split.allocation import Line, fill_level, iteration_seconds, split_min_max, waterfill
from heterotrain_operator.core.split.multiples import Bounds

LINES = st.builds(Line, st.floats(-2, 2), st.floats(1e-3, 1))


@st.composite
def problems(draw: st.DrawFn, workers: int = 8, size: int = 200) -> tuple[list[Line], int, list[Bounds]]:
    lines = draw(st.lists(LINES, min_size=1, max_size=workers))
    pair = st.tuples(st.integers(0, size), st.integers(0, size)).map(lambda p: (min(p), max(p)))
    bounds = draw(st.lists(pair, min_size=len(lines), max_size=len(lines)).filter(lambda b: any(high for _, high in b)))
    total = draw(st.integers(max(sum(low for low, _ in bounds), 1), sum(high for _, high in bounds)))
    return lines, total, bounds


@given(problems(workers=4, size=6))
def test_waterfilling_is_min_max_optimal(problem: tuple[list[Line], int, list[Bounds]]) -> None:
    lines, total, bounds = problem
    batches = waterfill(lines, total, bounds)
    best = min(
        max(line.at(batch) for line, batch in zip(lines, split, strict=True))
        for split in itertools.product(*(range(low, high + 1) for low, high in bounds))
        if sum(split) == total
    )
    assert max(line.at(batch) for line, batch in zip(lines, batches, strict=True)) == pytest.approx(best, rel=1e-9)


@given(problems())
def test_waterfilling_is_as_good_as_the_greedy_oracle_and_keeps_sum_and_bounds(
    problem: tuple[list[Line], int, list[Bounds]],
) -> None:
    lines, total, bounds = problem
    batches = waterfill(lines, total, bounds)
    greedy = split_min_max([line.at for line in lines], total, bounds)
    assert iteration_seconds(lines, batches) == pytest.approx(iteration_seconds(lines, greedy), rel=1e-9)
    assert sum(batches) == total
    assert all(low <= batch <= high for batch, (low, high) in zip(batches, bounds, strict=True))


@given(st.lists(LINES, min_size=1, max_size=8), st.integers(1, 10_000))
def test_level_without_bounds_is_the_closed_form(lines: list[Line], extra: int) -> None:
    # Enough samples that every worker gets some: the level exceeds every worker's fixed time.
    total = extra + math.ceil(sum(4 / line.seconds_per_sample for line in lines))
    level = fill_level(
        [line.fixed_seconds for line in lines],
        [line.seconds_per_sample for line in lines],
        [(0, total)] * len(lines),
        total,
    )
    offsets = math.fsum(line.fixed_seconds / line.seconds_per_sample for line in lines)
    assert level == pytest.approx(
        (total + offsets) / math.fsum(1 / line.seconds_per_sample for line in lines), rel=1e-9
    )


@given(problems())
def test_level_fills_exactly_the_total(problem: tuple[list[Line], int, list[Bounds]]) -> None:
    lines, total, bounds = problem
    level = fill_level([x.fixed_seconds for x in lines], [x.seconds_per_sample for x in lines], bounds, total)
    filled = sum(
        min(max((level - x.fixed_seconds) / x.seconds_per_sample, low), high)
        for x, (low, high) in zip(lines, bounds, strict=True)
    )
    assert filled == pytest.approx(total, rel=1e-6, abs=1e-6)


def test_worker_whose_overhead_exceeds_the_level_gets_its_least_batch() -> None:
    lines = [Line(0.0, 0.001), Line(0.0, 0.001), Line(10.0, 0.001)]
    assert waterfill(lines, 100, [(0, 100), (0, 100), (0, 100)]) == (50, 50, 0)
    assert waterfill(lines, 100, [(0, 100), (0, 100), (3, 100)]) == (49, 48, 3)


def test_slower_worker_gets_fewer_samples() -> None:
    lines = [Line(0.02, 0.01), Line(0.02, 0.02), Line(0.02, 0.04)]
    assert waterfill(lines, 192, [(1, 192)] * 3) == (110, 55, 27)


def test_worker_without_samples_keeps_nobody_waiting() -> None:
    assert iteration_seconds([Line(9.0, 1.0), Line(0.0, 1.0)], (0, 3)) == 3.0


def test_ten_thousand_workers_are_filled_exactly() -> None:
    lines = [Line(0.01 * (rank % 3), 0.001 * (1 + rank % 7)) for rank in range(10_000)]
    assert sum(waterfill(lines, 640_000, [(1, 512)] * 10_000)) == 640_000


@pytest.mark.parametrize("line", [Line(0.0, 0.0), Line(-math.inf, 1.0), Line(math.nan, 1.0), Line(0.0, math.inf)])
def test_time_that_does_not_rise_is_refused(line: Line) -> None:
    with pytest.raises(ValueError, match="worker 0"):
        waterfill([line], 10, [(0, 10)])
