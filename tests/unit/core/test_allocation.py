"""Splitting a global batch: sum and bounds are exact for every feasible input, and the rest is refused with figures."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_operator.core.split.allocation import split_min_max, split_proportionally
from heterotrain_operator.core.split.multiples import Bounds

BOUNDS = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 300)).map(lambda pair: (min(pair), max(pair))),
    min_size=1,
    max_size=12,
)
WEIGHTS = st.one_of(st.just(0.0), st.floats(0, 1e300), st.floats(0, 1), st.floats(0, 1e-300))


@st.composite
def feasible(draw: st.DrawFn) -> tuple[int, list[Bounds]]:
    bounds = draw(BOUNDS.filter(lambda pairs: any(high for _, high in pairs)))
    least, most = sum(low for low, _ in bounds), sum(high for _, high in bounds)
    return draw(st.integers(max(least, 1), most)), bounds


@given(feasible(), st.data())
def test_sum_and_bounds_are_exact_for_every_feasible_input(
    problem: tuple[int, list[Bounds]], data: st.DataObject
) -> None:
    total, bounds = problem
    weights = data.draw(st.lists(WEIGHTS, min_size=len(bounds), max_size=len(bounds)))
    batches = split_proportionally(weights, total, bounds)
    assert sum(batches) == total
    assert all(low <= batch <= high for batch, (low, high) in zip(batches, bounds, strict=True))


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=12), st.integers(1, 5000))
def test_unbounded_shares_are_within_one_sample_of_proportional(weights: list[float], total: int) -> None:
    batches = split_proportionally(weights, total, [(0, total)] * len(weights))
    for batch, weight in zip(batches, weights, strict=True):
        assert abs(batch - total * weight / sum(weights)) < 1 + 1e-6


@given(feasible(), st.data())
def test_more_weight_never_means_fewer_samples(problem: tuple[int, list[Bounds]], data: st.DataObject) -> None:
    _, bounds = problem
    weights = data.draw(st.lists(st.floats(0.01, 100), min_size=len(bounds), max_size=len(bounds)))
    low, high = 0, max(high for _, high in bounds) * len(bounds)
    batches = split_proportionally(weights, high, [(low, high)] * len(weights))
    assert [b for _, b in sorted(zip(weights, batches, strict=True))] == sorted(batches)


def test_ties_go_to_the_lower_rank() -> None:
    assert split_proportionally([1, 1, 1], 10, [(0, 10)] * 3) == (4, 3, 3)
    assert split_min_max([float] * 3, 10, [(0, 10)] * 3) == (4, 3, 3)


def test_workers_of_no_weight_take_only_what_nobody_else_can_hold() -> None:
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
