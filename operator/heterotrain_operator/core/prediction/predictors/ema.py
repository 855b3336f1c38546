"""Predict by averages of past steps: each window of steps moves the average, and a line over the batch is fitted to it,
`t(b) = s * (alpha + beta*b)`.

The cost of a batch (alpha and beta) and the speed (s) are distinguished by when they show: what changes with the batch
is cost, what changes under an unchanged batch is speed. The fit is least squares with forgetting in its information
form (five sums), one point per plan, weighted by its certainty; that equals the recursive form and needs no initial
values. Before a new CPU limit is measured, a step is expected to take longer by the ratio of the limits.
"""

from __future__ import annotations

import math

from heterotrain.foreign import MAX_NUMBER
from heterotrain_operator.core.prediction.batch_cost import LEAST_SPAN, LEAST_SPEED, BatchCost
from heterotrain_operator.core.prediction.jumps import follow
from heterotrain_operator.core.prediction.predictor import Prediction, Predictor
from heterotrain_operator.core.prediction.step_time import LEAST_VARIATION, Estimate, factor_of_limits
from heterotrain_operator.core.split.allocation import Line

FORGETTING = 0.98
"""Weight of the past, per point taken in."""

MODEL_ERROR = 0.02
"""Relative error of a point beyond its noise: no machine is quite affine, and no speed quite constant."""

PRIOR_SHARE = 0.5
"""Standard deviation, before any evidence, of alpha's share of the time; it limits what two close batches can show."""

LEAST_SHARE_ERROR = 0.2
"""Standard deviation of alpha's share of the time that remains however well a line is known, for few times are lines.
Tried: 0.1 to 0.3."""

SPEED_ERROR = 0.005
"""Relative error that the least change of plans adds to what was measured before. Tried: 0.005 and 0.02; with the
latter, each plan made the next one likelier."""

GREATEST_SHARE = 0.9
"""Alpha's greatest share of the time at the present batch: a plateau is followed in several plans, not in one."""

LEAST_SHARE = -3.0
"""Alpha's least share: times may grow as the fourth power of the batch. Tried: 0, -1, -2 and -3, on squares, cubes,
cliffs and throttled workers; with 0, the step at squares stayed 5 % above the best, and with -1 that at cubes 15 %."""

MOST_OVERHEAD, LEAST_OVERHEAD = (share / (1 - share) for share in (GREATEST_SHARE, LEAST_SHARE))
"""Alpha over beta, as a part of the present batch, at these shares."""

PRIOR_WEIGHT = 1 / PRIOR_SHARE**2
"""What the prior adds to the sum of the weights."""


def learn(known: BatchCost, batch: int, estimate: Estimate | None) -> BatchCost:
    """Take the estimate under a plan that has ended as one point of the fit, and what that leaves unexplained as speed.

    A point at a batch that the fit has already (within the least span of its mean) adds nothing once the points span
    enough, and is left out, so that a long stay at one batch does not make the fit forget the others. A worker without
    samples says nothing about the cost of a batch.
    """
    if batch <= 0 or estimate is None:
        return known
    known = _at_measured_speed(known, batch, estimate)
    if known.speed <= 0:
        known = known._replace(speed=estimate.mean_seconds)
    elif (
        _spans(known.sum_w, known.sum_wb, known.sum_wbb)
        and abs(batch - known.sum_wb / known.sum_w) < LEAST_SPAN * batch
    ):
        return known
    return _at_newest_speed(_with_point(known, batch, estimate, FORGETTING), batch, estimate)


def predict(known: BatchCost, batch: int, estimate: Estimate | None) -> Prediction | None:
    """A line through the present estimate, so that speed follows every window.

    Where the batches seen do not span enough, alpha is taken as 0, and the prediction is not sure.
    """
    if batch <= 0 or estimate is None:
        if known.sum_w <= 0 or known.speed <= 0:
            return None
        spans = _spans(known.sum_w, known.sum_wb, known.sum_wbb)
        alpha, beta = _fit(known.sum_w, known.sum_wb, known.sum_wbb, known.sum_wy, known.sum_wby, spans=spans)
        return Prediction(Line(known.speed * alpha, known.speed * beta), spans)
    if known.predicted:
        known = _at_measured_speed(known, batch, estimate)
    if known.speed <= 0:
        return Prediction(Line(0.0, estimate.mean_seconds / batch), False)
    w, wb, wbb, wy, wby = _sums_with(known, batch, estimate, 1.0)
    spans = _spans(w, wb, wbb)
    alpha, beta = _fit(w, wb, wbb, wy, wby, spans=spans)
    return Prediction(_through(alpha / beta, batch, estimate), spans)


def with_share(share: float, at_batch: int, batch: int, estimate: Estimate) -> Line:
    """The line through the estimate, which is that of `batch`, of whose time at another batch this share is fixed."""
    return _through(share / (1 - share) * at_batch, batch, estimate)


def _through(overhead: float, batch: int, estimate: Estimate) -> Line:
    """The line through the estimate with this fixed part, in samples, as far as it may be one at the batch."""
    most, least = MOST_OVERHEAD * batch, LEAST_OVERHEAD * batch
    overhead = most if overhead > most else least if overhead < least else overhead
    per_sample = estimate.mean_seconds / (overhead + batch)
    return Line(per_sample * overhead, per_sample)


def expect(known: BatchCost, batch: int, estimate: Estimate, next_batch: int) -> Estimate | None:
    """The line through the estimate at the next batch; the less certain, the farther that is, and the less is known of
    alpha.
    """
    prediction = predict(known, batch, estimate)
    if prediction is None or batch <= 0 or next_batch <= 0:
        return None
    share = PRIOR_SHARE
    if known.sum_w > 0:
        determinant = (known.sum_w + PRIOR_WEIGHT) * known.sum_wbb - known.sum_wb**2
        if determinant > 0:  # but for sums that no measurements leave
            share = math.sqrt(known.sum_wbb / determinant) * known.speed / estimate.mean_seconds
    distance = math.log(next_batch / batch)
    error = min(max(share, LEAST_SHARE_ERROR), PRIOR_SHARE) * distance
    variance = max(estimate.variance / estimate.mean_seconds**2, LEAST_VARIATION**2)
    squares = estimate.relative_error**2 + SPEED_ERROR**2 + error**2
    seconds = prediction.line.at(next_batch)
    return Estimate(seconds, variance * seconds**2, estimate.inflation * variance / squares, estimate.inflation)


def _at_measured_speed(known: BatchCost, batch: int, estimate: Estimate) -> BatchCost:
    """What is known of a worker whose speed was predicted, with the speed that is measured now, at another batch.

    A difference from the line is attributed to speed: attributed to cost, a CPU limit without effect would bend the
    line for good. Without points enough to distinguish the two, the cost is learned again.
    """
    if not known.predicted:
        return known
    if known.speed <= 0 or not _spans(known.sum_w, known.sum_wb, known.sum_wbb):
        return BatchCost()
    alpha, beta = _fit(known.sum_w, known.sum_wb, known.sum_wbb, known.sum_wy, known.sum_wby, spans=True)
    measured = known._replace(predicted=0, speed=estimate.mean_seconds / Line(alpha, beta).at(batch))
    return measured if measured.is_possible else BatchCost()


def _at_newest_speed(known: BatchCost, batch: int, estimate: Estimate) -> BatchCost:
    """What is known with the speed of the newest point, so that the next ones are compared with it.

    What the line leaves unexplained is the point's noise, or a speed that changed since the plan before; each has the
    part of its variance. Without that a drift that goes on from plan to plan adds up to a cost of the batch, of the
    wrong sign where batches are moved against it.
    """
    if not _spans(known.sum_w, known.sum_wb, known.sum_wbb):
        return known
    alpha, beta = _fit(known.sum_w, known.sum_wb, known.sum_wbb, known.sum_wy, known.sum_wby, spans=True)
    expected = known.speed * Line(alpha, beta).at(batch)
    if not LEAST_SPEED <= expected <= MAX_NUMBER:  # but for sums that no measurements leave
        return known
    part = MODEL_ERROR**2 / (MODEL_ERROR**2 + estimate.relative_error**2)
    return known.scaled((estimate.mean_seconds / expected) ** part)


def _with_point(known: BatchCost, batch: int, estimate: Estimate, keep: float) -> BatchCost:
    return BatchCost(known.speed, *_sums_with(known, batch, estimate, keep), known.predicted)


def _sums_with(
    known: BatchCost, batch: int, estimate: Estimate, keep: float
) -> tuple[float, float, float, float, float]:
    """The five sums with one point more, the past weighing `keep` of what it did."""
    speed, w, wb, wbb, wy, wby, _ = known
    y = estimate.mean_seconds / speed
    weight = 1 / ((estimate.relative_error**2 + MODEL_ERROR**2) * y**2)
    return (
        keep * w + weight,
        keep * wb + weight * batch,
        keep * wbb + weight * batch**2,
        keep * wy + weight * y,
        keep * wby + weight * batch * y,
    )


def _spans(w: float, wb: float, wbb: float) -> bool:
    """Two equally certain batches that span a fraction `f` have a standard deviation of `f/2`."""
    if w <= 0:
        return False
    mean = wb / w
    variance = wbb / w - mean**2
    return math.sqrt(variance if variance > 0 else 0.0) >= LEAST_SPAN / 2 * mean


def _fit(w: float, wb: float, wbb: float, wy: float, wby: float, *, spans: bool) -> tuple[float, float]:
    """Alpha and beta > 0 of least squares, alpha held back by its prior and bounded as a share of the mean time; of one
    batch size alone, alpha is 0. Where times grow faster than batches, alpha is below 0.
    """
    if not spans:
        return 0.0, wby / wbb
    with_prior = w + PRIOR_WEIGHT
    determinant = with_prior * wbb - wb**2
    alpha = (wy * wbb - wb * wby) / determinant
    beta = (with_prior * wby - wb * wy) / determinant
    mean_batch, mean_y = wb / w, wy / w
    least, most = (1 - GREATEST_SHARE) * mean_y / mean_batch, (1 - LEAST_SHARE) * mean_y / mean_batch
    if least <= beta <= most:
        return alpha, beta
    bounded = least if beta < least else most
    return mean_y - bounded * mean_batch, bounded


PREDICTOR = Predictor(
    "averages of own times, and a line over the batch that is fitted to them",
    follow=follow,
    factor_of_limits=factor_of_limits,
    predict=predict,
    learn=learn,
    expect=expect,
    with_share=with_share,
)
