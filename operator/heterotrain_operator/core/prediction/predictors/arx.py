"""Predict the next window's speed from the last ones and their use of CPU and memory by a linear regression, which is
fitted by recursive least squares with forgetting as windows end.

Everything but the look ahead is `EMA`'s. Inputs are those of LB-BSP, eq. 4, as differences from an average, so that
workers of unlike speed can teach one regression.
"""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter, mul

from heterotrain_operator.core.prediction.learned import CLIPPED, INPUTS, Sample
from heterotrain_operator.core.prediction.predictor import LooksAhead
from heterotrain_operator.core.prediction.predictors import ema

FORGETTING = 0.995
"""Weight of the past, per sample."""

FIRST_VARIANCE = 100.0
"""Of each weight before anything is known of it, in the error's variance."""

GREATEST_TRACE = 1e4
"""Of the weights' covariance, which forgetting lets grow without bound where inputs do not change."""

LEAST_SAMPLES = 50
"""Before the regression is asked."""

_PAIRS = [(row, column) for row in range(INPUTS) for column in range(row, INPUTS)]
_AT = {pair: index for index, pair in enumerate(_PAIRS)}
_ROWS = [itemgetter(*(_AT[min(row, column), max(row, column)] for column in range(INPUTS))) for row in range(INPUTS)]
"""The covariance's rows, of its upper triangle."""

_ROW_OF, _COLUMN_OF = (itemgetter(*side) for side in zip(*_PAIRS, strict=True))
"""Of the upper triangle's elements."""

BEGINNING = (
    *([0.0] * INPUTS),
    *(FIRST_VARIANCE if row == column else 0.0 for row, column in _PAIRS),
)


def expected(numbers: tuple[float, ...], sample: Sample) -> float:
    """The next window's log speed over the average."""
    difference: float = sum(map(mul, numbers, sample.inputs))
    return difference


def taught(numbers: tuple[float, ...], sample: Sample, difference: float) -> tuple[float, ...]:
    """The numbers after a window whose log speed differed so much from the average. Source of the recursion: Ljung,
    System Identification, 2nd ed., eq. 11.9.
    """
    inputs, covariance = sample.inputs, numbers[INPUTS:]
    error = min(max(difference - expected(numbers, sample), -CLIPPED), CLIPPED)
    gains = [sum(map(mul, row(covariance), inputs)) for row in _ROWS]
    scale = 1 / (FORGETTING + sum(map(mul, inputs, gains)))
    weights = [weight + gain * scale * error for weight, gain in zip(numbers, gains, strict=False)]
    products = map(mul, _ROW_OF(gains), _COLUMN_OF(gains))
    after = [(value - each * scale) / FORGETTING for value, each in zip(covariance, products, strict=True)]
    trace = sum(after[_AT[each, each]] for each in range(INPUTS))
    if trace > GREATEST_TRACE:
        after = [value * GREATEST_TRACE / trace for value in after]
    return (*weights, *after)


PREDICTOR = replace(
    ema.PREDICTOR,
    summary="EMA, and a regression of the next window on the last ones and their use of CPU and memory",
    ahead=LooksAhead(BEGINNING, LEAST_SAMPLES, expected, taught),
)
