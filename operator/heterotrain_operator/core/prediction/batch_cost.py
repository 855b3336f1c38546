"""What is remembered of how a worker's own time depends on its batch; predictors read it, and learn into it."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from heterotrain.foreign import MAX_NUMBER
from heterotrain_operator.core.columns import Column, cut, maker

LEAST_SPEED, LEAST_SUM = 1e-15, 1e-60
"""Below what measurements leave of a speed, and of the sums of a fit, if it is not 0."""

LEAST_SPAN = 0.04
"""Batches must differ by this much, relative to their mean, to distinguish what a batch costs from a worker's speed."""


class BatchCost(NamedTuple):
    """What is remembered of how a worker's own time depends on its batch: its speed (seconds) and the sums of the fit.

    `predicted` is 1 while the speed is an expectation (of a new CPU limit, or of another worker at this place) that was
    not measured yet.
    """

    speed: Annotated[float, Column(7)] = 0.0
    sum_w: Annotated[float, Column(8)] = 0.0
    sum_wb: Annotated[float, Column(9)] = 0.0
    sum_wbb: Annotated[float, Column(10)] = 0.0
    sum_wy: Annotated[float, Column(11)] = 0.0
    sum_wby: Annotated[float, Column(12)] = 0.0
    predicted: Annotated[int, Column(28)] = 0

    @property
    def is_possible(self) -> bool:
        """Whether measurements can leave it; with anything else decisions could not do arithmetic."""
        if self.speed and not LEAST_SPEED <= self.speed <= MAX_NUMBER:
            return False
        sums = (self.sum_w, self.sum_wb, self.sum_wbb, self.sum_wy, self.sum_wby)
        return not any(sums) or all(LEAST_SUM <= each <= MAX_NUMBER for each in sums)

    def scaled(self, ratio: float) -> BatchCost:
        """Of a worker whose steps take so many times as long at every batch."""
        return _cost((self.speed * ratio, *self[1:]))

    def with_predicted(self, predicted: int) -> BatchCost:
        """The same, predicted or not."""
        return self if predicted == self.predicted else self._replace(predicted=predicted)

    def rounded(self, before: BatchCost) -> BatchCost:
        """With its numbers cut to the digits that are kept; nothing where a worker's speeds, scaled again and again,
        have left what numbers can hold. Those of the rounded cost `before` are left alone: windows move the speed only.
        """
        if self[1:] == before[1:] and LEAST_SPEED <= self.speed <= MAX_NUMBER:
            return _cost((cut(self.speed), *self[1:]))
        if not self.is_possible:
            return BatchCost()
        numbers = zip(self[:6], before[:6], strict=True)
        return BatchCost._make([*(now if now == was else cut(now) for now, was in numbers), self.predicted])


_cost = maker(BatchCost)
