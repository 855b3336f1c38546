"""The cap of a batch: a worker whose throughput fell after a raise is not raised beyond the old
batch.

As the papers have it one spike of interference would cap a worker for ever (Taming III-C1: `b_max <- b0`), so
the fall must show in two intervals, beyond noise, and the cap expires.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

from heterotrain_operator.core.columns import Column, cut
from heterotrain_operator.core.prediction.step_time import Estimate

FALLS = 2
"""Intervals in a row that must show the fall."""

EXPIRES_INTERVALS = 50
"""Decisions for which a cap holds; then the worker may show again what it can do."""

FALL_DEVIATIONS = 4.0
"""Standard errors by which a window's throughput must be lower to count as a fall; both windows of a false alarm are
compared with one and the same throughput before the raise, so they are not independent."""

LEAST_FALL = 0.02
"""Relative fall below which a throughput counts as unchanged."""


@dataclass(frozen=True, slots=True)
class ThroughputCap:
    """What is remembered of a worker's raises: since the last one it is watched whether its throughput falls.

    `raised_from` (samples) at `raised_throughput` (samples per second), and in how many intervals a fall showed since;
    `cap` is the greatest batch that such a fall has left, for so many `intervals` more. 0: none.
    """

    raised_from: Annotated[int, Column(13)] = 0
    raised_throughput: Annotated[float, Column(14)] = 0.0
    falls: Annotated[int, Column(15)] = 0
    cap: Annotated[int, Column(16)] = 0
    intervals: Annotated[int, Column(17)] = 0

    def unwatched(self) -> ThroughputCap:
        """End the watch: the batch went down again, or the worker's speed changed for a reason of its own."""
        if not (self.raised_from or self.raised_throughput or self.falls):
            return self
        return ThroughputCap(cap=self.cap, intervals=self.intervals)

    def rounded(self) -> ThroughputCap:
        """With its numbers cut to the digits that are kept."""
        return replace(self, raised_throughput=cut(self.raised_throughput))


def raised(known: ThroughputCap, old_batch: int, new_batch: int, estimate: Estimate | None) -> ThroughputCap:
    """Note the throughput before a raise; a lowered batch ends the watch."""
    if new_batch == old_batch:
        return known
    if new_batch < old_batch or estimate is None or old_batch <= 0:
        return known.unwatched()
    throughput = old_batch / estimate.mean_seconds
    return replace(known, raised_from=old_batch, raised_throughput=throughput, falls=0)


def watched(known: ThroughputCap, batch: int, window: Estimate | None) -> ThroughputCap:
    """One interval later: count a fall, set the cap after enough of them, let an old cap expire.

    Source: Taming III-C1; the two intervals and the expiry are ours.
    """
    left = max(known.intervals - 1, 0)
    if left != known.intervals or (known.cap and not left):
        known = replace(known, intervals=left, cap=known.cap if left else 0)
    if known.raised_from <= 0 or window is None or batch <= known.raised_from:
        return known
    # The throughput before the raise was measured about as well as this window: hence the root of two.
    noise = max(FALL_DEVIATIONS * math.sqrt(2) * window.relative_error, LEAST_FALL)
    if batch / window.mean_seconds >= known.raised_throughput * (1 - noise):
        return replace(known, falls=0)
    if known.falls + 1 < FALLS:
        return replace(known, falls=known.falls + 1)
    return ThroughputCap(cap=known.raised_from, intervals=EXPIRES_INTERVALS)
