"""How much of a difference between workers' own times noise alone could explain, and by how much each worker's vary.

Variations are remembered over plans. A variation is known far less exactly than a mean: of 100 steps to a tenth at
best. So workers count as unlike only where chance cannot explain it, and each one's figure is drawn towards that of all
by as much as chance explains (empirical Bayes).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Annotated, NamedTuple

from heterotrain_operator.core.columns import Column
from heterotrain_operator.core.prediction.step_time import Estimate, StepTime

FALSE_ALARM_CHANCE = 0.001
"""Chance per decision that noise alone would be taken for an imbalance, over all workers together."""

CAUTION = 0.9
"""Times what noise could explain that a difference must be: the chance of a false alarm is that of the largest of many
errors, and errors are honest. Tried in simulated traces, with independent and autoregressive noise: 0.8 to 2.5; more
left workers at unequal times for long, fewer made a third adjustment common."""

LARGE = 0.25
"""A difference that is worth a second correction, hence acted on as soon as it is no noise."""

DEVIATION_OF_MEDIAN = 1.4826
"""A normal distribution's standard deviation over its median distance from the median."""


def sure_deviations(workers: int) -> float:
    """Standard errors beyond which the largest of `workers` errors of noise practically never falls."""
    return NormalDist().inv_cdf(1 - FALSE_ALARM_CHANCE / max(workers, 1))


class Noise:
    """How much of a difference between workers noise alone could explain, by the standard errors of all
    estimates.
    """

    __slots__ = ("_deviations", "_shared")

    def __init__(self, estimates: Sequence[Estimate]) -> None:
        self._shared = math.fsum([estimate.relative_error**2 for estimate in estimates]) / len(estimates) ** 2
        self._deviations = sure_deviations(len(estimates))

    def explains(self, estimate: Estimate) -> float:
        """Relative difference between one worker and all others that must be exceeded to be worth acting on.

        It is what noise could explain, with caution: a move made on figures of some error leaves an imbalance of about
        that error, so a small gain waits for the error to shrink with more steps, and only a large one is taken at
        once.
        """
        noise = self._deviations * math.sqrt(estimate.relative_error**2 + self._shared)
        return min(CAUTION * noise, max(noise, LARGE))


REMEMBERED_STEPS = 50
"""Steps that a remembered variation counts as, so that it follows changes; only one of enough steps is remembered."""

LEAST_STEPS = 25
"""Steps that must stand behind everybody's before they are compared."""

LEAST_VARIATION = 0.01
"""Coefficient of variation below which workers count as equally steady."""

LOGARITHMS_VARIANCE = 1.25
"""Variance of the logarithm of a coefficient of variation, times the steps behind it: `(kurtosis - 1) / 4`, for times
of steps with a kurtosis of 6; of normal ones it is 0.5."""

SURE_DEVIATIONS = 4.0
"""Deviations by which the spread of variations must exceed what chance explains."""


class Variation(NamedTuple):
    """What is remembered of earlier plans: the coefficient of variation of a step, in thousandths; 0: nothing."""

    thousandths: Annotated[int, Column(38)] = 0

    def learned(self, time: StepTime) -> Variation:
        """With what was measured under the plan that ends."""
        square, steps = together(self, time)
        if steps < LEAST_STEPS:
            return self
        return Variation(round(1000 * max(math.sqrt(square), LEAST_VARIATION)))


def together(known: Variation, time: StepTime) -> tuple[float, float]:
    """The squared coefficient of variation of earlier plans and of the active one together, and the steps behind it.

    Steps that are not independent say as much less of it as they do of the mean.
    """
    thousandths = known.thousandths
    square, steps = ((thousandths / 1000) ** 2, float(REMEMBERED_STEPS)) if thousandths else (0.0, 0.0)
    estimate = time.estimate
    if estimate is None or estimate.steps < 2 or estimate.variance <= 0:
        return square, steps
    present = estimate.variance / estimate.mean_seconds**2
    weight = present / estimate.relative_error**2
    return (steps * square + weight * present) / (steps + weight), steps + weight


def variations_of(known: Sequence[tuple[float, float]]) -> tuple[list[float], bool]:
    """Everybody's coefficient of variation, from squares and steps as `together` gives them, and whether workers differ
    for sure. Each is drawn towards that of all, by as much as chance explains of their spread; one of no steps has it.
    """
    least = LEAST_VARIATION**2
    logarithms = [0.5 * math.log(square if square > least else least) for square, _ in known]
    weights = [steps / LOGARITHMS_VARIANCE for _, steps in known]
    total = math.fsum(weights)
    if total <= 0:
        return [LEAST_VARIATION] * len(known), False
    usual = math.fsum([w * x for w, x in zip(weights, logarithms, strict=True)]) / total
    compared = [steps for _, steps in known if steps > 0]
    by_chance = len(compared) - 1
    if by_chance < 1 or min(compared) < LEAST_STEPS:
        return [math.exp(usual)] * len(known), False
    spread = math.fsum([w * (x - usual) ** 2 for w, x in zip(weights, logarithms, strict=True)])
    differ = spread > by_chance + SURE_DEVIATIONS * math.sqrt(2 * by_chance)
    # The variance of true logarithms, by the method of moments (DerSimonian and Laird).
    scale = total - math.fsum([w * w for w in weights]) / total
    between = max(spread - by_chance, 0.0) / scale
    shares = [between * w / (between * w + 1) for w in weights]
    return [math.exp(usual + share * (x - usual)) for share, x in zip(shares, logarithms, strict=True)], differ
