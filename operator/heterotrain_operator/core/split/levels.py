"""The level to which unequal vessels fill; the one solver behind proportional splits and water-filling."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence

Bounds = tuple[int, int]
"""Least and greatest batch of one worker, both inclusive, in samples."""

NEWTON_STEPS = 3
"""Guesses of a level before it is looked for among the breakpoints near the last one."""


def feasibility(total: int, bounds: Sequence[Bounds], names: Sequence[str] = ()) -> str | None:
    """Why no split of `total` samples keeps all bounds, with figures; None if one does.

    `names` are the workers', for the message; without them they are numbered.
    """
    if not bounds:
        return f"there is no worker to take the global batch of {total} samples"
    if total < 1:
        return f"the global batch of {total} samples is no batch"
    least = most = 0
    for rank, (low, high) in enumerate(bounds):
        if low < 0 or high < low:
            name = names[rank] if names else f"worker {rank}"
            return f"{name} is bounded to [{low}, {high}] samples, which holds no batch"
        least += low
        most += high
    batch = f"the global batch of {total} samples"
    if total < least:
        return f"{batch} is below {least}, the sum of the least batches of {len(bounds)} workers"
    if total > most:
        return f"{batch} exceeds {most}, the sum of the greatest batches of {len(bounds)} workers"
    return None


def fill_level(intercepts: Sequence[float], slopes: Sequence[float], bounds: Sequence[Bounds], total: float) -> float:
    """Solve `sum_k clip((T - intercepts[k]) / slopes[k], lo_k, hi_k) = total` for T, in O(K log K).

    Slopes must be positive and finite, `total` within the sums of the bounds. The sum rises piecewise
    linearly in T with two breakpoints per worker: find the piece among them sorted, by Newton's steps and then by
    bisection of what these leave, and solve on it in closed form (no running sums, so no cancellation). A worker whose
    intercept exceeds T gets its least batch. See docs/design.md, `Optimal`.
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
