"""How a worker's own time depends on its batch, `t(b) = s * (alpha + beta*b)`, learned from the plans it ran
under.

Shape and speed are told apart by when they show: what changes with the batch is shape, what changes under an
unchanged batch is speed. The fit is least squares with forgetting in its information form (five sums), one
point per plan, weighted by its certainty; that equals the recursive form and has nothing to initialise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

from heterotrain_operator.core.columns import Column, cut
from heterotrain_operator.core.prediction.step_time import ASSUMED_VARIATION, Estimate
from heterotrain_operator.core.split.waterfill import Line

FORGETTING = 0.98
"""Weight of the past, per point taken in. Source: mechanisms, affine water-filling."""

LEAST_SPAN = 0.04
"""Batches must span this much, relative to their mean, to tell alpha from beta. Source: as above."""

MODEL_ERROR = 0.02
"""Relative error of a point beyond its noise: no machine is quite affine, and no speed quite constant."""

PRIOR_SHARE = 0.5
"""Standard deviation, before any evidence, of alpha's share of the time; keeps two close batches from telling
tales.
"""

GREATEST_SHARE = 0.9
"""Alpha's greatest share of the time at the present batch: a plateau is followed in steps, not in one leap.
"""


@dataclass(frozen=True, slots=True)
class BatchCost:
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

    def scaled(self, ratio: float) -> BatchCost:
        """Of a worker whose steps take so many times as long at every batch."""
        return replace(self, speed=self.speed * ratio)

    def with_predicted(self, predicted: int) -> BatchCost:
        """The same, predicted or not."""
        return self if predicted == self.predicted else replace(self, predicted=predicted)

    def rounded(self) -> BatchCost:
        """With its numbers cut to the digits that are kept."""
        return BatchCost(
            cut(self.speed),
            cut(self.sum_w),
            cut(self.sum_wb),
            cut(self.sum_wbb),
            cut(self.sum_wy),
            cut(self.sum_wby),
            self.predicted,
        )


def remember(known: BatchCost, batch: int, estimate: Estimate | None) -> BatchCost:
    """Take the estimate under a plan that ends as one point of the fit.

    A point at a batch that the fit knows already (within the least span of its mean) adds nothing once the
    fit spans enough, and is left out, so that a long stay at one batch never washes the shape out. A worker
    without samples says nothing of its shape.
    """
    if batch <= 0 or estimate is None:
        return known
    known = _at_measured_speed(known, batch, estimate)
    if known.speed <= 0:
        known = replace(known, speed=estimate.mean_seconds)
    elif (
        _spans(known.sum_w, known.sum_wb, known.sum_wbb)
        and abs(batch - known.sum_wb / known.sum_w) < LEAST_SPAN * batch
    ):
        return known
    return _with_point(known, batch, estimate, FORGETTING)


def line_of(known: BatchCost, batch: int, estimate: Estimate | None) -> Line | None:
    """Own seconds by batch, through the present estimate, so that speed follows every window.

    With batches that do not span enough to tell, alpha is taken as 0. Without samples or estimate the line is
    what was last known; None if nothing is.
    """
    return fitted(known, batch, estimate)[0]


def fitted(known: BatchCost, batch: int, estimate: Estimate | None) -> tuple[Line | None, bool]:
    """The same line, and whether the batches seen, the present one included, span enough to tell alpha from beta."""
    if batch <= 0 or estimate is None:
        spans = _spans(known.sum_w, known.sum_wb, known.sum_wbb)
        if known.sum_w <= 0 or known.speed <= 0:
            return None, spans
        alpha, beta = _fit(known.sum_w, known.sum_wb, known.sum_wbb, known.sum_wy, known.sum_wby, spans=spans)
        return Line(known.speed * alpha, known.speed * beta), spans
    if known.predicted:
        known = _at_measured_speed(known, batch, estimate)
    if known.speed <= 0:
        return Line(0.0, estimate.mean_seconds / batch), False
    w, wb, wbb, wy, wby = _sums_with(known, batch, estimate, 1.0)
    spans = _spans(w, wb, wbb)
    alpha, beta = _fit(w, wb, wbb, wy, wby, spans=spans)
    overhead_samples = min(alpha / beta, GREATEST_SHARE / (1 - GREATEST_SHARE) * batch)
    per_sample = estimate.mean_seconds / (overhead_samples + batch)
    return Line(per_sample * overhead_samples, per_sample), spans


def expected_of(known: BatchCost, batch: int, steps: float) -> Estimate | None:
    """Own time at a batch that is not measured yet, by the line known, as sure as so many steps; None without one."""
    line = line_of(known, 0, None)
    if line is None or batch <= 0:
        return None
    seconds = line.at(batch)
    return Estimate(seconds, (ASSUMED_VARIATION * seconds) ** 2, steps)


def _at_measured_speed(known: BatchCost, batch: int, estimate: Estimate) -> BatchCost:
    """What is known of a worker whose speed was predicted, with the speed that it is measured at, at another batch.

    What differs from the line is taken for speed: taken for shape, a limit that does not bind would bend the line for
    good. Without points enough to tell the two apart, the shape is learned anew.
    """
    if not known.predicted:
        return known
    if known.speed <= 0 or not _spans(known.sum_w, known.sum_wb, known.sum_wbb):
        return BatchCost()
    alpha, beta = _fit(known.sum_w, known.sum_wb, known.sum_wbb, known.sum_wy, known.sum_wby, spans=True)
    return replace(known, predicted=0, speed=estimate.mean_seconds / (alpha + beta * batch))


def _with_point(known: BatchCost, batch: int, estimate: Estimate, keep: float) -> BatchCost:
    return BatchCost(known.speed, *_sums_with(known, batch, estimate, keep), known.predicted)


def _sums_with(
    known: BatchCost, batch: int, estimate: Estimate, keep: float
) -> tuple[float, float, float, float, float]:
    """The five sums with one point more, the past weighing `keep` of what it did."""
    y = estimate.mean_seconds / known.speed
    weight = 1 / ((estimate.relative_error**2 + MODEL_ERROR**2) * y**2)
    return (
        keep * known.sum_w + weight,
        keep * known.sum_wb + weight * batch,
        keep * known.sum_wbb + weight * batch**2,
        keep * known.sum_wy + weight * y,
        keep * known.sum_wby + weight * batch * y,
    )


def _spans(w: float, wb: float, wbb: float) -> bool:
    """Two equally certain batches that span a fraction `f` have a standard deviation of `f/2`."""
    if w <= 0:
        return False
    mean = wb / w
    return math.sqrt(max(wbb / w - mean**2, 0.0)) >= LEAST_SPAN / 2 * mean


def _fit(w: float, wb: float, wbb: float, wy: float, wby: float, *, spans: bool) -> tuple[float, float]:
    """Alpha >= 0 and beta > 0 of least squares, alpha held back by its prior; of one batch size alone, alpha
    is 0.
    """
    if spans:
        with_prior = w + 1 / PRIOR_SHARE**2
        determinant = with_prior * wbb - wb**2
        alpha = (wy * wbb - wb * wby) / determinant
        beta = (with_prior * wby - wb * wy) / determinant
        if alpha > 0:
            mean_batch, mean_y = wb / w, wy / w
            least = (1 - GREATEST_SHARE) * mean_y / mean_batch
            return (alpha, beta) if beta >= least else (mean_y - least * mean_batch, least)
    return 0.0, wby / wbb
