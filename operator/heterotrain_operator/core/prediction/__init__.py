"""What is known of a worker: how long a step takes it, what a sample costs it, and what its memory holds.

The predictors of own times stand one per file; `PREDICTORS` has them by name.
"""

from __future__ import annotations

from heterotrain_operator.core.model import Job
from heterotrain_operator.core.prediction import affine
from heterotrain_operator.core.prediction.predictor import Prediction, Predictor

PREDICTORS: dict[str, Predictor] = {
    "Affine": affine.PREDICTOR,
}

DEFAULT = "Affine"


def predictor_of(job: Job) -> Predictor:
    """The predictor of a job's own times: the default one, since a manifest cannot name another yet."""
    return PREDICTORS[DEFAULT]


__all__ = ["DEFAULT", "PREDICTORS", "Prediction", "Predictor", "predictor_of"]
