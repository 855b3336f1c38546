"""What a predictor is given and what it gives back: a worker's own time by batch, from what is remembered of it.

Policies read predictions only, so that another way to predict is another file in `predictors/`.

Steps of fewer samples show a batch's cost before any other batch was tried. Epochs end with such a step where their
samples do not fill it. Under the first plan there is nothing else that could tell the fixed part of a step from a slow
worker. As soon as batches have moved, the plans' own times say more, for they are measured over many steps and near the
batches that come next: so nothing of this is remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from heterotrain_operator.core.prediction.batch_cost import BatchCost
from heterotrain_operator.core.prediction.learned import Sample
from heterotrain_operator.core.prediction.step_time import ABSURD_SECONDS, ASSUMED_VARIATION, LEAST_SECONDS, Estimate
from heterotrain_operator.core.split.allocation import Line


class Prediction(NamedTuple):
    """A worker's own seconds by batch, as a line around the batches that it may be given next.

    `is_sure`: enough is known to promise the time of a step that rests on it.
    """

    line: Line
    is_sure: bool


@dataclass(frozen=True, slots=True)
class LooksAhead:
    """A model of the next window's log speed over the average of the last ones, for the workers of a group together.

    It starts from the numbers of its `beginning`, and is trusted after `least_samples`. `expected(numbers, sample)` is
    the difference; `taught(numbers, sample, difference)` are the numbers after a window that differed so much.
    """

    beginning: tuple[float, ...]
    least_samples: int
    expected: Callable[[tuple[float, ...], Sample], float]
    taught: Callable[[tuple[float, ...], Sample, float], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Predictor:
    """A way to predict own times.

    `follow(before, window, history, deviations)` takes a window of steps into the estimate of a worker's own time (None
    before the first window), which averages about `history` windows, and says whether its speed jumped, as it did if
    the window differs by more than so many standard errors.
    `factor_of_limits(old, new)` is by how much longer a step is expected to take under the new CPU limit (cores) than
    under the old one.

    `predict(known, batch, estimate)` is asked for a worker with a batch (samples per step) and its own time under the
    active plan; without samples (0) or estimate (None) it predicts by what is remembered alone. It gives None where
    nothing is known. `learn(known, batch, estimate)` gives what is remembered once a plan has ended under which the
    worker had that batch and that own time. `expect(known, batch, estimate, next_batch)` is the own time at the next
    plan's batch that this one's lets expect, as certain as that is; None if nothing does.
    `with_share(share, at_batch, batch, estimate)` is the line through the own time at `batch` of which this share does
    not depend on the batch, at another one (`at_batch`), as far as a line may be so. One that looks `ahead` is
    asked besides by what the next window's own time is likely to differ.
    """

    summary: str
    follow: Callable[[Estimate | None, Estimate, float, float], tuple[Estimate, bool]]
    factor_of_limits: Callable[[float, float], float]
    predict: Callable[[BatchCost, int, Estimate | None], Prediction | None]
    learn: Callable[[BatchCost, int, Estimate | None], BatchCost]
    expect: Callable[[BatchCost, int, Estimate, int], Estimate | None]
    with_share: Callable[[float, int, int, Estimate], Line]
    ahead: LooksAhead | None = None

    def expected(self, known: BatchCost, batch: int, steps: float) -> Estimate | None:
        """Own time at a batch that is not measured yet, as certain as so many steps; None if nothing is known."""
        prediction = self.predict(known, 0, None)
        if prediction is None or batch <= 0:
            return None
        seconds = prediction.line.at(batch)
        return Estimate(seconds, (ASSUMED_VARIATION * seconds) ** 2, steps)


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
