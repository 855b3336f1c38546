"""Split a global batch into whole samples under bounds; sum and bounds are exact, so no plan is ever short.

Ties go to the lower rank, so the same figures always give the same plan.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

from heterotrain_operator.core.split.levels import Bounds, feasibility, fill_level
from heterotrain_operator.core.split.multiples import split_in_multiples

TimeOf = Callable[[int], float]
"""Own seconds of one worker at a batch of so many samples; must not fall as the batch grows."""

LEAST_WEIGHT = 1e-12
"""Smaller weights, relative to the greatest, are taken as this: no worker gets a sample for less, and no
overflow.
"""


def split_proportionally(
    weights: Sequence[float], total: int, bounds: Sequence[Bounds], multiples: Sequence[int] = ()
) -> tuple[int, ...]:
    """Whole samples per worker, proportional to `weights` as far as the bounds allow.

    The real-valued split is `clip(level * weight, lo, hi)` with the one level that gives the sum; what
    flooring leaves goes to the largest remainders. Workers of no weight keep their least batch, and share
    evenly what nobody else can hold. With `multiples` each batch is one of its worker's. Raises ValueError, with
    figures, if the bounds cannot hold `total` or a weight is no finite number >= 0.

    Source: Taming III-B and OmniLearn eq. 8, with bounds kept after rescaling (theirs are not).
    """
    for rank, weight in enumerate(weights):
        if not math.isfinite(weight) or weight < 0:
            raise ValueError(f"weight of worker {rank}: expected a finite number >= 0, found {weight}")
    _require_feasible(total, bounds)
    if any(multiple > 1 for multiple in multiples):
        return split_in_multiples(
            lambda ranks, units, pairs, _: (
                split_proportionally([weights[rank] for rank in ranks], units, pairs) if units else [0] * len(ranks)
            ),
            total,
            bounds,
            multiples,
        )
    weighted = [rank for rank, weight in enumerate(weights) if weight > 0]
    weightless = [rank for rank, weight in enumerate(weights) if weight <= 0]
    # Scaled to the greatest weight: tiny or huge weights would leave the range of floats below.
    greatest = max((weights[rank] for rank in weighted), default=1.0)
    for_weightless = sum(bounds[rank][0] for rank in weightless)
    for_weighted = min(total - for_weightless, sum(bounds[rank][1] for rank in weighted))
    shares = [0.0] * len(weights)
    for ranks, part, slopes in (
        (weighted, for_weighted, [1 / max(weights[rank] / greatest, LEAST_WEIGHT) for rank in weighted]),
        (weightless, total - for_weighted, [1.0] * len(weightless)),
    ):
        if ranks:
            pairs = [bounds[rank] for rank in ranks]
            level = fill_level([0.0] * len(ranks), slopes, pairs, part)
            for rank, slope, (low, high) in zip(ranks, slopes, pairs, strict=True):
                shares[rank] = min(max(level / slope, low), high)
    return _round_keeping_sum(shares, total, bounds)


def split_min_max(
    times: Sequence[TimeOf],
    total: int,
    bounds: Sequence[Bounds],
    start: Sequence[int] | None = None,
    multiples: Sequence[int] = (),
) -> tuple[int, ...]:
    """The split with the least greatest own time: each sample goes where the time after taking it is least.

    `start` (default: the least batches) must be within bounds and part of an optimal split; handing out from
    it costs O(log K) per sample. Greedy is optimal since every time rises with the batch. With `multiples` (and no
    `start`) each batch is one of its worker's. Raises ValueError, with figures, if infeasible.
    """
    _require_feasible(total, bounds)
    if any(multiple > 1 for multiple in multiples):

        def in_units(ranks: Sequence[int], units: int, pairs: Sequence[Bounds], unit: int) -> Sequence[int]:
            return _greedy([_in_units(times[rank], unit) for rank in ranks], units, pairs, None)

        def seconds(batches: Sequence[int]) -> float:
            return max(time_of(batch) for time_of, batch in zip(times, batches, strict=True))

        return split_in_multiples(in_units, total, bounds, multiples, seconds)
    return _greedy(times, total, bounds, start)


def _in_units(time_of: TimeOf, unit: int) -> TimeOf:
    return lambda units: time_of(units * unit)


def _greedy(
    times: Sequence[TimeOf], total: int, bounds: Sequence[Bounds], start: Sequence[int] | None
) -> tuple[int, ...]:
    batches = list(start) if start is not None else [low for low, _ in bounds]
    heap = [(times[rank](batch + 1), rank) for rank, batch in enumerate(batches) if batch < bounds[rank][1]]
    heapq.heapify(heap)
    for _ in range(total - sum(batches)):
        _, rank = heap[0]
        batches[rank] += 1
        if batches[rank] < bounds[rank][1]:
            heapq.heapreplace(heap, (times[rank](batches[rank] + 1), rank))
        else:
            heapq.heappop(heap)
    return tuple(batches)


def _require_feasible(total: int, bounds: Sequence[Bounds]) -> None:
    why_not = feasibility(total, bounds)
    if why_not is not None:
        raise ValueError(why_not)


def _round_keeping_sum(shares: Sequence[float], total: int, bounds: Sequence[Bounds]) -> tuple[int, ...]:
    """Largest remainders first; shares add up to `total` but for rounding, so each gets about one sample."""
    batches = [min(max(math.floor(share), low), high) for share, (low, high) in zip(shares, bounds, strict=True)]
    while (rest := total - sum(batches)) != 0:
        sign = 1 if rest > 0 else -1
        open_ranks = [rank for rank, (low, high) in enumerate(bounds) if low <= batches[rank] + sign <= high]
        open_ranks.sort(key=lambda rank: (-sign * (shares[rank] - batches[rank]), rank))
        for rank in open_ranks[: abs(rest)]:
            batches[rank] += sign
    return tuple(batches)
