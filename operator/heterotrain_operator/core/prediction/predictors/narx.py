"""Predict the next window's speed from the last ones and their use of CPU and memory by a small network that is trained
as windows end. Source: LB-BSP, section 3.2 and eq. 4; theirs is one for each worker, begun with another's weights.

Everything but the look ahead is `EMA`'s, and until a group has shown enough windows that is all there is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from operator import mul

from heterotrain_operator.core.prediction.learned import CLIPPED, INPUTS, Sample
from heterotrain_operator.core.prediction.predictor import LooksAhead
from heterotrain_operator.core.prediction.predictors import ema

UNITS = 6
"""Of the one hidden layer, each tanh."""

LEAST_SAMPLES = 500
"""Source: LB-BSP, section 4.2, which goes by EMA for as many iterations."""

RATE, STEPS = 0.03, 3
"""Of gradient descent, and how often it goes down on one window at most. LB-BSP stops within 10 steps; 3 did
better than 5 and 10 on synthetic traces, for more of them follow each window's noise."""

NEAR = 0.01
"""An error of log speed that is none: the descent ends there, so that noise is not learned by heart."""

WIDTH = INPUTS + 1
"""Numbers of a unit: its weights and that of its output."""


def _first(unit: int, place: int) -> float:
    """A weight before anything is learned: the same ones for every job, spread over -0.3 to 0.3."""
    return 0.3 * math.sin(12.9898 * (1 + unit) + 78.233 * (1 + place))


BEGINNING = (*(_first(unit, place) for unit in range(UNITS) for place in range(WIDTH)), 0.0)


STARTS = range(0, UNITS * WIDTH, WIDTH)
_OUTPUTS = slice(INPUTS, UNITS * WIDTH, WIDTH)
"""Where each unit begins, and where those of the output stand."""


def _hidden(numbers: Sequence[float], inputs: Sequence[float]) -> list[float]:
    return [math.tanh(sum(map(mul, numbers[start : start + INPUTS], inputs))) for start in STARTS]


def _output(numbers: Sequence[float], hidden: Sequence[float]) -> float:
    weighted: float = sum(map(mul, numbers[_OUTPUTS], hidden))
    return numbers[-1] + weighted


def expected(numbers: tuple[float, ...], sample: Sample) -> float:
    """The next window's log speed over the average."""
    return _output(numbers, _hidden(numbers, sample.inputs))


def taught(numbers: tuple[float, ...], sample: Sample, difference: float) -> tuple[float, ...]:
    """The numbers after a window whose log speed differed so much from the average: a few steps of gradient descent,
    which end early where the error is small, or does not fall.
    """
    inputs, after, before = sample.inputs, list(numbers), math.inf
    for _ in range(STEPS):
        hidden = _hidden(after, inputs)
        error = min(max(difference - _output(after, hidden), -CLIPPED), CLIPPED)
        if not NEAR < abs(error) < before:
            break
        before, step = abs(error), RATE * error
        for start, each in zip(STARTS, hidden, strict=True):
            end = start + INPUTS
            slope = step * after[end] * (1 - each * each)
            after[start:end] = [weight + slope * value for weight, value in zip(after[start:end], inputs, strict=True)]
            after[end] += step * each
        after[-1] += step
    return tuple(after)


PREDICTOR = replace(
    ema.PREDICTOR,
    summary="EMA, and a small network for the next window from the last ones and their use of CPU and memory",
    ahead=LooksAhead(BEGINNING, LEAST_SAMPLES, expected, taught),
)
