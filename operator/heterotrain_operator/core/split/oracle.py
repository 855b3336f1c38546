"""The best split in hindsight, from profiled own times: what policies are compared with."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence

from heterotrain_operator.core.split.allocation import split_min_max
from heterotrain_operator.core.split.levels import Bounds


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
