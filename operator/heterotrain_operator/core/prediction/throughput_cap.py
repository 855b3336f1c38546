"""The papers' learned bound of a batch: a worker whose throughput fell after a raise is not raised beyond the old one.

Only the papers' own arms use it. One spike of interference caps a worker for ever, and so does every law under which
throughput falls with the batch; see docs/life-of-a-decision.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from heterotrain_operator.core.columns import Column, cut
from heterotrain_operator.core.prediction.step_time import Estimate


@dataclass(frozen=True, slots=True)
class ThroughputCap:
    """What is remembered of a worker's raises: it was last raised from `raised_from` samples, at `raised_throughput`
    samples per second, and `cap` is the greatest batch that a fall has left. 0: none.
    """

    raised_from: Annotated[int, Column(13)] = 0
    raised_throughput: Annotated[float, Column(14)] = 0.0
    cap: Annotated[int, Column(16)] = 0

    def unwatched(self) -> ThroughputCap:
        """End the watch: the batch went down again, or the worker's speed changed for a reason of its own."""
        return ThroughputCap(cap=self.cap) if self.raised_from or self.raised_throughput else self

    def rounded(self) -> ThroughputCap:
        """With its numbers cut to the digits that are kept."""
        return replace(self, raised_throughput=cut(self.raised_throughput))


def raised(known: ThroughputCap, old_batch: int, new_batch: int, estimate: Estimate | None) -> ThroughputCap:
    """Note the throughput before a raise; a lowered batch ends the watch."""
    if new_batch == old_batch:
        return known
    if new_batch < old_batch or estimate is None or old_batch <= 0:
        return known.unwatched()
    return replace(known, raised_from=old_batch, raised_throughput=old_batch / estimate.mean_seconds)


def capped(known: ThroughputCap, batch: int, seconds: float) -> ThroughputCap:
    """With the old batch as the cap, if throughput is lower than before the raise. Source: Taming III-C1."""
    if not 0 < known.raised_from < batch or batch / seconds >= known.raised_throughput:
        return known
    return ThroughputCap(cap=known.raised_from)
