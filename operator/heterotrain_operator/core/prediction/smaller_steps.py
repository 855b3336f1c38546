"""What steps of fewer samples show of a batch's cost before any other batch was tried: a first line with a fixed part.

Epochs end with such a step where their samples do not fill it. Under the first plan there is nothing else that could
tell the fixed part of a step from a slow worker. As soon as batches have moved, the plans' own times say more, for they
are measured over many steps and near the batches that come next: so nothing of this is remembered.
"""

from __future__ import annotations

from collections.abc import Iterable

from heterotrain_operator.core.prediction.batch_cost import BatchCost
from heterotrain_operator.core.prediction.predictor import Prediction, Predictor
from heterotrain_operator.core.prediction.step_time import (
    ABSURD_SECONDS,
    ASSUMED_VARIATION,
    LEAST_SECONDS,
    Estimate,
)

GREATEST_PART = 0.75
"""Of the batch: with more samples a step differs from the others by hardly more than its noise. Steps of 0.9 of it
helped little, and at noise of 15 % sometimes harmed; other bounds were not tried."""


def predict_with(
    smaller: Iterable[tuple[int, float]], predictor: Predictor, known: BatchCost, batch: int, estimate: Estimate
) -> Prediction | None:
    """The predictor's word, with `smaller` steps (samples, own seconds) as points beside the present one. It is a first
    guess: each point is as certain as a single step, and the prediction is not sure.
    """
    for samples, seconds in smaller:
        if samples <= GREATEST_PART * batch and LEAST_SECONDS <= seconds <= ABSURD_SECONDS:
            known = predictor.learn(known, samples, Estimate(seconds, (ASSUMED_VARIATION * seconds) ** 2, 1))
    prediction = predictor.predict(known, batch, estimate)
    return None if prediction is None else prediction._replace(is_sure=False)
