"""What is known of a worker: how long a step takes it, what a sample costs it, and what its memory holds.

Predictors of own times stand one per file in `predictors/`; `PREDICTORS` has them by the names of
`batching.prediction` in a manifest.
"""

from __future__ import annotations

from heterotrain_operator.core.model import Job
from heterotrain_operator.core.prediction.predictor import Prediction, Predictor
from heterotrain_operator.core.prediction.predictors import arx, ema, narx

PREDICTORS: dict[str, Predictor] = {
    "EMA": ema.PREDICTOR,
    "ARX": arx.PREDICTOR,
    "NARX": narx.PREDICTOR,
}


def predictor_of(job: Job) -> Predictor:
    """The predictor that a job names; a manifest that names an unknown one is not admitted."""
    return PREDICTORS[job.prediction]


__all__ = ["PREDICTORS", "Prediction", "Predictor", "predictor_of"]
