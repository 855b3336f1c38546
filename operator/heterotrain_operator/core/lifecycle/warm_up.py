"""What a warm-up says of a worker before it is measured: that it is slower than its like.

A few steps alone say little: the optimizer's step is not in them, nobody else's traffic disturbs them, and on one
machine they run before the CPU limit is set. All of that makes them shorter. So a worker that warmed up faster than was
expected begins as expected, and one that was clearly slower at every batch begins with as much less.
"""

from __future__ import annotations

from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.core.prediction import Predictor
from heterotrain_operator.core.prediction.batch_cost import BatchCost
from heterotrain_operator.core.worker_memory import WorkerMemory

NOTICED = 1.25
"""Times the expected seconds from which a difference is no noise of so few steps."""

MOST = 16.0
"""Times the expected seconds that are believed at most: what is measured later says more."""


def slowed(known: WorkerMemory, metrics: WorkerMetrics | None, predictor: Predictor) -> WorkerMemory:
    """What is known of a worker that is no member yet, with what its warm-up has shown: an expectation, until it is
    measured.
    """
    ratio = slowness(known.batch_cost, metrics, predictor)
    return known if ratio == 1 else known._replace(batch_cost=known.batch_cost.scaled(ratio).with_predicted(1))


def slowness(cost: BatchCost, metrics: WorkerMetrics | None, predictor: Predictor) -> float:
    """By how many times a worker's steps take longer than is expected of it, as its warm-up has shown; 1 where that has
    shown nothing.
    """
    if metrics is None or metrics.plan_version > 0 or not metrics.warm_up:
        return 1.0
    prediction = predictor.predict(cost, 0, None)
    if prediction is None:
        return 1.0
    expected = [(seconds, prediction.line.at(batch)) for batch, seconds in metrics.warm_up]
    ratio = min((seconds / each for seconds, each in expected if each > 0), default=1.0)
    return min(ratio, MOST) if ratio >= NOTICED else 1.0
