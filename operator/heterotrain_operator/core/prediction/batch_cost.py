"""How a worker's own time depends on its batch, `t(b) = s * (alpha + beta*b)`, learned from the plans it ran
under.

Shape and speed are told apart by when they show: what changes with the batch is shape, what changes under an
unchanged batch is speed. The fit is least squares with forgetting in its information form (five sums), one
point per plan, weighted by its certainty; that equals the recursive form and has nothing to initialise.
"""

from __future__ import annotations

import math
from dataclasses import replace

from heterotrain_operator.core.prediction.step_time import ASSUMED_VARIATION, Estimate
from heterotrain_operator.core.split.waterfill import Line
from heterotrain_operator.core.state import WorkerMemory

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


def remember(memory: WorkerMemory, batch: int, estimate: Estimate | None) -> WorkerMemory:
    """Take the estimate under a plan that ends as one point of the fit.

    A point at a batch that the fit knows already (within the least span of its mean) adds nothing once the
    fit spans enough, and is left out, so that a long stay at one batch never washes the shape out. A worker
    without samples says nothing of its shape.
    """
    if batch <= 0 or estimate is None:
        return memory
    memory = _at_measured_speed(memory, batch, estimate)
    if memory.speed <= 0:
        memory = replace(memory, speed=estimate.mean_seconds)
    elif _spans(memory) and abs(batch - memory.sum_wb / memory.sum_w) < LEAST_SPAN * batch:
        return memory
    return _with_point(memory, batch, estimate, FORGETTING)


def line_of(memory: WorkerMemory, batch: int, estimate: Estimate | None) -> Line | None:
    """Own seconds by batch, through the present estimate, so that speed follows every window.

    With batches that do not span enough to tell, alpha is taken as 0. Without samples or estimate the line is
    what was last known; None if nothing is.
    """
    if batch <= 0 or estimate is None:
        if memory.sum_w <= 0 or memory.speed <= 0:
            return None
        alpha, beta = _fit(memory)
        return Line(memory.speed * alpha, memory.speed * beta)
    memory = _at_measured_speed(memory, batch, estimate)
    if memory.speed <= 0:
        return Line(0.0, estimate.mean_seconds / batch)
    alpha, beta = _fit(_with_point(memory, batch, estimate, 1.0))
    overhead_samples = min(alpha / beta, GREATEST_SHARE / (1 - GREATEST_SHARE) * batch)
    per_sample = estimate.mean_seconds / (overhead_samples + batch)
    return Line(per_sample * overhead_samples, per_sample)


def expected_of(memory: WorkerMemory, batch: int, steps: float) -> Estimate | None:
    """Own time at a batch that is not measured yet, by the line known, as sure as so many steps; None without one."""
    line = line_of(memory, 0, None)
    if line is None or batch <= 0:
        return None
    seconds = line.at(batch)
    return Estimate(seconds, (ASSUMED_VARIATION * seconds) ** 2, steps)


def is_known(memory: WorkerMemory, batch: int, estimate: Estimate | None) -> bool:
    """Whether the batches seen, the present one included, span enough to tell alpha from beta."""
    if batch <= 0 or estimate is None:
        return _spans(memory)
    memory = _at_measured_speed(memory, batch, estimate)
    return memory.speed > 0 and _spans(_with_point(memory, batch, estimate, 1.0))


def _at_measured_speed(memory: WorkerMemory, batch: int, estimate: Estimate) -> WorkerMemory:
    """The memory of a worker whose speed was foretold, with the speed that it is measured at, at another batch.

    What differs from the line is taken for speed: taken for shape, a limit that does not bind would bend the line for
    good. Without points enough to tell the two apart, the shape is learned anew.
    """
    if not memory.foretold:
        return memory
    memory = replace(memory, foretold=0)
    if memory.speed <= 0 or not _spans(memory):
        return replace(memory, speed=0.0, sum_w=0.0, sum_wb=0.0, sum_wbb=0.0, sum_wy=0.0, sum_wby=0.0)
    alpha, beta = _fit(memory)
    return replace(memory, speed=estimate.mean_seconds / (alpha + beta * batch))


def _with_point(memory: WorkerMemory, batch: int, estimate: Estimate, keep: float) -> WorkerMemory:
    y = estimate.mean_seconds / memory.speed
    weight = 1 / ((estimate.relative_error**2 + MODEL_ERROR**2) * y**2)
    return replace(
        memory,
        sum_w=keep * memory.sum_w + weight,
        sum_wb=keep * memory.sum_wb + weight * batch,
        sum_wbb=keep * memory.sum_wbb + weight * batch**2,
        sum_wy=keep * memory.sum_wy + weight * y,
        sum_wby=keep * memory.sum_wby + weight * batch * y,
    )


def _spans(memory: WorkerMemory) -> bool:
    """Two equally certain batches that span a fraction `f` have a standard deviation of `f/2`."""
    if memory.sum_w <= 0:
        return False
    mean = memory.sum_wb / memory.sum_w
    return math.sqrt(max(memory.sum_wbb / memory.sum_w - mean**2, 0.0)) >= LEAST_SPAN / 2 * mean


def _fit(memory: WorkerMemory) -> tuple[float, float]:
    """Alpha >= 0 and beta > 0 of least squares, alpha held back by its prior; of one batch size alone, alpha
    is 0.
    """
    if _spans(memory):
        prior = 1 / PRIOR_SHARE**2
        w = memory.sum_w + prior
        determinant = w * memory.sum_wbb - memory.sum_wb**2
        alpha = (memory.sum_wy * memory.sum_wbb - memory.sum_wb * memory.sum_wby) / determinant
        beta = (w * memory.sum_wby - memory.sum_wb * memory.sum_wy) / determinant
        if alpha > 0:
            mean_batch, mean_y = memory.sum_wb / memory.sum_w, memory.sum_wy / memory.sum_w
            least = (1 - GREATEST_SHARE) * mean_y / mean_batch
            return (alpha, beta) if beta >= least else (mean_y - least * mean_batch, least)
    return 0.0, memory.sum_wby / memory.sum_wbb
