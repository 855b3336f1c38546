"""Water-filling: the split that ends all workers' own times together, for times affine in the batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from heterotrain_operator.core.split.allocation import split_min_max
from heterotrain_operator.core.split.levels import Bounds, feasibility, fill_level
from heterotrain_operator.core.split.multiples import split_in_multiples

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
    Raises ValueError, with figures, if the bounds cannot hold `total`, or if a line does not rise. See docs/design.md,
    `Optimal`.
    """
    for rank, (fixed, slope) in enumerate(lines):
        if not (0 < slope < math.inf and -math.inf < fixed < math.inf):
            line = lines[rank]
            raise ValueError(f"worker {rank}: {line} is not a rising time")
    why_not = feasibility(total, bounds)
    if why_not is not None:
        raise ValueError(why_not)
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
