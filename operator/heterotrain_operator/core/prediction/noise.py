"""How much of a difference between workers' own times noise alone could explain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from heterotrain_operator.core.prediction.step_time import Estimate

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
