"""Splits in multiples, as strategies: feasible by construction, of one multiple or several that divide each other."""

from __future__ import annotations

from hypothesis import strategies as st

from heterotrain_operator.core.split.multiples import Bounds

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


def holds(batches: tuple[int, ...], problem: Problem) -> bool:
    """Whether sum, bounds and multiples are kept; a worker whose bounds are one batch keeps that."""
    total, bounds, each = problem
    return sum(batches) == total and all(
        low <= batch <= high and (low == high or batch % multiple == 0)
        for batch, (low, high), multiple in zip(batches, bounds, each, strict=True)
    )
