"""Predict by averages of past steps: each window of steps moves the average, and a line over the batch is fitted to it.

Before a new CPU limit is measured, a step is expected to take longer by the ratio of the limits.
"""

from __future__ import annotations

from heterotrain_operator.core.prediction import affine, elasticity, jumps
from heterotrain_operator.core.prediction.predictor import Predictor

PREDICTOR = Predictor(
    "averages of own times, and a line over the batch that is fitted to them",
    follow=jumps.follow,
    factor_of_limits=elasticity.factor_of_limits,
    predict=affine.predict,
    learn=affine.learn,
    expect=affine.expect,
    with_share=affine.with_share,
)
