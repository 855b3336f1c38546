"""Split a global batch into whole samples under bounds; sum and bounds are exact, so no plan is ever short.

Samples are split in proportion to weights, or so that the greatest own time is least: greedily for any rising times, by
water-filling for times affine in the batch, and in hindsight for profiled ones. All rest on one solver, the level to
which unequal vessels fill. Ties go to the lower rank, so the same figures always give the same plan.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from heterotrain_operator.core.split.multiples import (
    Bounds,
    feasibility,
    in_multiples,
    nearest_multiple,
    split_in_multiples,
)

NEWTON_STEPS = 3
"""Guesses of a level before it is looked for among the breakpoints near the last one."""


def fill_level(intercepts: Sequence[float], slopes: Sequence[float], bounds: Sequence[Bounds], total: float) -> float:
    """Solve `sum_k clip((T - intercepts[k]) / slopes[k], lo_k, hi_k) = total` for T, in O(K log K).

    Slopes must be positive and finite, `total` within the sums of the bounds. The sum rises piecewise
    linearly in T with two breakpoints per worker: find the piece among them sorted, by Newton's steps and then by
    bisection of what these leave, and solve on it in closed form (no running sums, so no cancellation). A worker whose
    intercept exceeds T gets its least batch. See docs/life-of-a-decision.md.
    """
    breakpoints = sorted(
        {
            intercept + slope * bound
            for intercept, slope, pair in zip(intercepts, slopes, bounds, strict=True)
            for bound in pair
        }
    )

    workers = [(a, s, low, high) for a, s, (low, high) in zip(intercepts, slopes, bounds, strict=True)]

    def filled(level: float) -> float:
        shares = [((level - a) / s, low, high) for a, s, low, high in workers]
        return math.fsum([low if share < low else high if share > high else share for share, low, high in shares])

    below, above = 0, len(breakpoints) - 1
    middle = _guess(workers, breakpoints, total)
    width = 1
    while above - below > 1:
        if filled(breakpoints[middle]) <= total:
            below, middle = middle, middle + width
        else:
            above, middle = middle, middle - width
        if not below < middle < above:
            middle = (below + above) // 2
        width *= 2
    floor, ceiling = breakpoints[below], breakpoints[above]
    fixed: list[float] = []
    rising: list[float] = []
    for a, s, (low, high) in zip(intercepts, slopes, bounds, strict=True):
        if a + s * low <= floor and a + s * high >= ceiling and low < high:
            rising.append(1 / s)
            fixed.append(-a / s)
        else:
            fixed.append(low if a + s * low >= ceiling else high)
    if not rising:
        return floor
    return min(max((total - math.fsum(fixed)) / math.fsum(rising), floor), ceiling)


def _guess(workers: Sequence[tuple[float, float, int, int]], breakpoints: Sequence[float], total: float) -> int:
    """The breakpoint, of those between the first and the last, near which the level should be: found as if the workers
    that are within their bounds at one guess were so at the next.
    """
    level = breakpoints[len(breakpoints) // 2]
    for _ in range(NEWTON_STEPS):
        rest, rising = total, 0.0
        for a, s, low, high in workers:
            share = (level - a) / s
            if share < low:
                rest -= low
            elif share > high:
                rest -= high
            else:
                rest += a / s
                rising += 1 / s
        if rising <= 0:
            break
        level = rest / rising
    return min(max(bisect.bisect_right(breakpoints, level) - 1, 1), max(len(breakpoints) - 2, 0))


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


def rounded_within(wanted: Sequence[float], bounds: Sequence[Bounds], multiples: Sequence[int] = ()) -> tuple[int, ...]:
    """The nearest whole samples per worker within its bounds, whatever their sum; where that is 0, the least batch that
    some worker may have. With `multiples` each batch is one of its worker's.
    """
    units = multiples or (1,) * len(wanted)
    within = [in_multiples(pair, unit) for pair, unit in zip(bounds, units, strict=True)]
    batches = tuple(
        min(max(nearest_multiple(want, unit), low), high)
        for want, unit, (low, high) in zip(wanted, units, within, strict=True)
    )
    if sum(batches) > 0:
        return batches
    least = min(units)
    return split_proportionally(wanted, least, [(low, max(high, least)) for low, high in bounds], multiples)


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


ROUNDING = 1e-9
"""Relative slack when a real-valued share is floored, so that rounding errors never hand out a sample too
many.
"""


LEAST_PART = 0.05
"""Of the time in proportion to the batch, whatever the line says."""


class Line(NamedTuple):
    """Own seconds of one worker: `fixed_seconds + seconds_per_sample * batch`, `s*alpha` and `s*beta`."""

    fixed_seconds: float
    seconds_per_sample: float

    def at(self, batch: float) -> float:
        """Own seconds at a batch of so many samples; far below the batches that a falling start was fitted to, they are
        at least `LEAST_PART` of what the samples alone would take.
        """
        fixed, slope = self
        proportional = slope * batch
        seconds, least = fixed + proportional, LEAST_PART * proportional
        return seconds if seconds > least else least


def waterfill(
    lines: Sequence[Line], total: int, bounds: Sequence[Bounds], multiples: Sequence[int] = ()
) -> tuple[int, ...]:
    """The min-max optimal whole split of `total` samples.

    Fill to the real-valued level, floor, and hand the rest out one by one to the least time after taking it
    (largest-remainder rounding is not optimal). With `multiples` each batch is one of its worker's. O(K log K).
    Raises ValueError, with figures, if the bounds cannot hold `total`, or if a line does not rise.
    """
    for rank, (fixed, slope) in enumerate(lines):
        if not (0 < slope < math.inf and -math.inf < fixed < math.inf):
            line = lines[rank]
            raise ValueError(f"worker {rank}: {line} is not a rising time")
    _require_feasible(total, bounds)
    if any(multiple > 1 for multiple in multiples):

        def in_units(ranks: Sequence[int], units: int, pairs: Sequence[Bounds], unit: int) -> Sequence[int]:
            return _filled([Line(lines[rank][0], lines[rank][1] * unit) for rank in ranks], units, pairs)

        return split_in_multiples(in_units, total, bounds, multiples, lambda batches: iteration_seconds(lines, batches))
    return _filled(lines, total, bounds)


def _filled(lines: Sequence[Line], total: int, bounds: Sequence[Bounds]) -> tuple[int, ...]:
    if total == 0:
        return (0,) * len(lines)
    level = fill_level(
        [line.fixed_seconds for line in lines], [line.seconds_per_sample for line in lines], bounds, total
    )
    floors = []
    for (fixed, slope), (low, high) in zip(lines, bounds, strict=True):
        # Far below its batches a line that begins below 0 is replaced by the least time (`Line.at`).
        share = (level - fixed) / slope if fixed >= 0 else min(level - fixed, level / LEAST_PART) / slope
        floor = math.floor(share - ROUNDING * (1 + abs(share)))
        floors.append(low if floor < low else high if floor > high else floor)
    return split_min_max([line.at for line in lines], total, bounds, floors)


def iteration_seconds(lines: Sequence[Line], batches: Sequence[int]) -> float:
    """Own seconds of the slowest worker that has samples; one without runs no user code and keeps nobody
    waiting.
    """
    return max((line.at(batch) for line, batch in zip(lines, batches, strict=True) if batch > 0), default=0.0)


class ProfiledTime:
    """Own seconds of one worker at any batch: linear between profiled points, beyond them by the end slopes.

    Points that fall against the batch (noise) are pooled into their mean, so that time never falls as the
    batch grows; one point alone is taken as proportional to the batch. Raises ValueError if there is no
    usable point.
    """

    __slots__ = ("_batches", "_seconds")

    def __init__(self, points: Mapping[int, float]) -> None:
        usable = sorted((batch, seconds) for batch, seconds in points.items() if batch > 0 and 0 < seconds < math.inf)
        if not usable:
            raise ValueError(f"no point of positive batch and seconds in the profile {dict(points)}")
        batches = [batch for batch, _ in usable]
        seconds = _never_falling([seconds for _, seconds in usable])
        if len(usable) == 1:
            batches, seconds = [0, *batches], [0.0, *seconds]
        self._batches, self._seconds = batches, seconds

    def __call__(self, batch: float) -> float:
        """Own seconds at a batch, never negative."""
        right = min(max(bisect.bisect_left(self._batches, batch), 1), len(self._batches) - 1)
        left_batch, right_batch = self._batches[right - 1], self._batches[right]
        left, slope = self._seconds[right - 1], self._seconds[right] - self._seconds[right - 1]
        return max(left + slope * (batch - left_batch) / (right_batch - left_batch), 0.0)


def oracle_split(
    profiles: Sequence[Mapping[int, float]], global_batch: int, bounds: Sequence[Bounds]
) -> tuple[tuple[int, ...], float]:
    """The min-max split of `global_batch` samples, and its iteration's own seconds (without all-reduce).

    `profiles` holds per worker its own seconds by batch size. Raises ValueError, with figures, if a profile
    is empty or the bounds cannot hold the batch. It is the greedy optimum on profiled times.
    """
    times = []
    for rank, points in enumerate(profiles):
        try:
            times.append(ProfiledTime(points))
        except ValueError as error:
            raise ValueError(f"worker {rank}: {error}") from error
    batches = split_min_max(times, global_batch, bounds)
    return batches, max(
        (time_of(batch) for time_of, batch in zip(times, batches, strict=True) if batch > 0), default=0.0
    )


def _never_falling(values: Sequence[float]) -> list[float]:
    """The closest non-decreasing values in least squares (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, size = value, 1
        while pools and pools[-1][0] > mean:
            before, count = pools.pop()
            mean, size = (before * count + mean * size) / (count + size), count + size
        pools.append((mean, size))
    return [mean for mean, size in pools for _ in range(size)]
