"""Predict the next window's speed from the last ones and their use of CPU and memory by a small network that is trained
as windows end. Source: LB-BSP, section 3.2 and eq. 4; theirs is one for each worker, begun with another's weights.

Everything but the look ahead is `EMA`'s, and until a group has shown enough windows that is all there is.
"""

from __future__ import annotations

import math
from dataclasses import replace

from heterotrain_operator.core.prediction.learned import CLIPPED, INPUTS, Sample
from heterotrain_operator.core.prediction.predictor import LooksAhead
from heterotrain_operator.core.prediction.predictors import ema

UNITS = 6
"""Of the one hidden layer, each tanh."""

LEAST_SAMPLES = 500
"""Source: LB-BSP, section 4.2, which goes by EMA for as many iterations."""

RATE, STEPS = 0.03, 10
"""Of gradient descent, and how often it goes down on one window at most."""

NEAR = 0.01
"""An error of log speed that is none: the descent ends there, so that noise is not learned by heart."""

WIDTH = INPUTS + 1
"""Numbers of a unit: its weights and that of its output."""


def _first(unit: int, place: int) -> float:
    """A weight before anything is learned: the same ones for every job, spread over -0.3 to 0.3."""
    return 0.3 * math.sin(12.9898 * (1 + unit) + 78.233 * (1 + place))


BEGINNING = (*(_first(unit, place) for unit in range(UNITS) for place in range(WIDTH)), 0.0)


def _hidden(numbers: tuple[float, ...] | list[float], sample: Sample) -> list[float]:
    return [
        math.tanh(sum(numbers[start + place] * each for place, each in enumerate(sample.inputs)))
        for start in range(0, UNITS * WIDTH, WIDTH)
    ]


def expected(numbers: tuple[float, ...], sample: Sample) -> float:
    """The next window's log speed over the average."""
    hidden = _hidden(numbers, sample)
    return numbers[-1] + sum(numbers[unit * WIDTH + INPUTS] * each for unit, each in enumerate(hidden))


def taught(numbers: tuple[float, ...], sample: Sample, difference: float) -> tuple[float, ...]:
    """The numbers after a window whose log speed differed so much from the average: a few steps of gradient descent,
    which end early where the error is small, or does not fall.
    """
    after, before = list(numbers), math.inf
    for _ in range(STEPS):
        hidden = _hidden(after, sample)
        output = after[-1] + sum(after[unit * WIDTH + INPUTS] * each for unit, each in enumerate(hidden))
        error = min(max(difference - output, -CLIPPED), CLIPPED)
        if not NEAR < abs(error) < before:
            break
        before, step = abs(error), RATE * error
        for unit, each in enumerate(hidden):
            start = unit * WIDTH
            slope = step * after[start + INPUTS] * (1 - each * each)
            after[start + INPUTS] += step * each
            for place, value in enumerate(sample.inputs):
                after[start + place] += slope * value
        after[-1] += step
    return tuple(after)


PREDICTOR = replace(
    ema.PREDICTOR,
    summary="EMA, and a small network for the next window from the last ones and their use of CPU and memory",
    ahead=LooksAhead(BEGINNING, LEAST_SAMPLES, expected, taught),
)
