"""The level to which unequal vessels fill; the one solver behind proportional splits and water-filling."""

from __future__ import annotations

import math
from collections.abc import Sequence

Bounds = tuple[int, int]
"""Least and greatest batch of one worker, both inclusive, in samples."""


def feasibility(total: int, bounds: Sequence[Bounds], names: Sequence[str] = ()) -> str | None:
    """Why no split of `total` samples keeps all bounds, with figures; None if one does.

    `names` are the workers', for the message; without them they are numbered.
    """
    if not bounds:
        return f"there is no worker to take the global batch of {total} samples"
    if total < 1:
        return f"the global batch of {total} samples is no batch"
    for rank, (low, high) in enumerate(bounds):
        if low < 0 or high < low:
            name = names[rank] if names else f"worker {rank}"
            return f"{name} is bounded to [{low}, {high}] samples, which holds no batch"
    least, most = sum(low for low, _ in bounds), sum(high for _, high in bounds)
    batch = f"the global batch of {total} samples"
    if total < least:
        return f"{batch} is below {least}, the sum of the least batches of {len(bounds)} workers"
    if total > most:
        return f"{batch} exceeds {most}, the sum of the greatest batches of {len(bounds)} workers"
    return None


def fill_level(intercepts: Sequence[float], slopes: Sequence[float], bounds: Sequence[Bounds], total: float) -> float:
    """Solve `sum_k clip((T - intercepts[k]) / slopes[k], lo_k, hi_k) = total` for T, in O(K log K).

    Slopes must be positive and finite, `total` within the sums of the bounds. The sum rises piecewise
    linearly in T with two breakpoints per worker: bisect them sorted, then solve on the piece in closed form
    (no running sums, so no cancellation). A worker whose intercept exceeds T gets its least batch. Source:
    mechanisms, affine water-filling.
    """
    breakpoints = sorted(
        {
            intercept + slope * bound
            for intercept, slope, pair in zip(intercepts, slopes, bounds, strict=True)
            for bound in pair
        }
    )

    def filled(level: float) -> float:
        return math.fsum(
            min(max((level - a) / s, low), high) for a, s, (low, high) in zip(intercepts, slopes, bounds, strict=True)
        )

    below, above = 0, len(breakpoints) - 1
    while above - below > 1:
        middle = (below + above) // 2
        if filled(breakpoints[middle]) <= total:
            below = middle
        else:
            above = middle
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
