"""The expected step of workers whose own times vary: it ends with the slowest draw, and not with the slowest mean.

Own times are taken as independent and lognormal: positive and skewed to the right, as times of steps are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

REACH = 4.0
"""Deviations beyond which a draw is left out: with 1,000 workers one in 30 steps has one."""

NODES = 48
"""Of the trapezium rule: with 24 its error is 1 % for deviations of 2 and 30 % mixed, with these below 0.3 %."""

SEARCHED_NODES = 24
"""Of the trapezium rule where a caution is sought: its error is much the same at every one."""

MEAN_CLASSES, DEVIATION_CLASSES = 200, 4
"""Many workers are counted in classes of half a per cent of the longest mean, and four of deviations in each octave."""

FEW = 32
"""So many workers are not counted in classes of means."""

LEAST_VARIATION = 0.005
"""Coefficient of variation that every worker has at least."""

GREATEST_CAUTION = 4.0
"""Deviations by which workers are held back at most."""

GOLDEN = (math.sqrt(5) - 1) / 2
SEARCHES = 6
"""Steps of the golden section, which leave 0.2 deviations: expected steps are flat around the best."""

_ROOT = math.sqrt(0.5)

Classes = Mapping[tuple[float, float], int]
"""How many workers have the same mean (seconds) and coefficient of variation."""


def alike(variations: Sequence[float]) -> list[float]:
    """Coefficients of variation rounded to a few classes, so that many workers are reckoned as fast as a few."""
    known: dict[float, float] = {}
    classes = []
    for variation in variations:
        rounded = known.get(variation)
        if rounded is None:
            exponent = round(math.log2(max(variation, LEAST_VARIATION)) * DEVIATION_CLASSES)
            rounded = known[variation] = 2 ** (exponent / DEVIATION_CLASSES)
        classes.append(rounded)
    return classes


def expected_step(means: Sequence[float], variations: Sequence[float]) -> float:
    """Expected seconds of a step that ends with the slowest of independent own times; `means` in seconds, 0 of workers
    without samples, and `variations` as `alike` gives them.
    """
    unit = max(means, default=0.0) / MEAN_CLASSES
    if unit <= 0:
        return 0.0
    if len(means) <= FEW:
        return _expected_greatest(Counter(zip(means, variations, strict=True)))
    counts = Counter([(round(mean / unit), each) for mean, each in zip(means, variations, strict=True)])
    return _expected_greatest({(mean * unit, each): count for (mean, each), count in counts.items()})


def best_caution(samples_per_second: Sequence[float], variations: Sequence[float]) -> float:
    """The `z` for which own times filled to one level of `mean * (1 + z * variation)` make the expected step shortest.

    Bounds are left out: a worker that is held by one has a shorter mean, and seldom ends a step.
    """
    rates: dict[float, float] = {}
    for rate, variation in zip(samples_per_second, variations, strict=True):
        rates[variation] = rates.get(variation, 0.0) + rate
    if not 0 < math.fsum(rates.values()) < math.inf:
        return 0.0
    counts = Counter(variations)

    def expected(caution: float) -> float:
        level = 1 / math.fsum(rate / (1 + caution * variation) for variation, rate in rates.items())
        classes = {(level / (1 + caution * each), each): count for each, count in counts.items()}
        return _expected_greatest(classes, SEARCHED_NODES)

    return _least_of(expected, 0.0, GREATEST_CAUTION)


def _expected_greatest(classes: Classes, nodes: int = NODES) -> float:
    """The integral of `1 - prod F_k`, from where at least one worker is sure to take longer."""
    workers = []
    for (mean, variation), count in classes.items():
        if mean > 0:
            square = math.log1p(variation * variation)
            workers.append((math.log(mean) - square / 2, math.sqrt(square), count))
    low = max(center - REACH / 2 * deviation for center, deviation, _ in workers)
    high = max(center + REACH * deviation for center, deviation, _ in workers)
    scaled = [
        (_ROOT / deviation, center * _ROOT / deviation, count)
        for center, deviation, count in workers
        if center + REACH * deviation > low
    ]
    first = math.exp(low)
    width = (math.exp(high) - first) / nodes
    total = 0.0
    for node in range(nodes):
        place = math.log(first + node * width)
        below = 1.0
        for slope, offset, count in scaled:
            below *= (0.5 * math.erfc(offset - place * slope)) ** count
            if below < 1e-4:
                break
        total += (1 - below) * (0.5 if node == 0 else 1.0)
    return first + total * width


def _least_of(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function of one valley is least, by the golden section."""
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(SEARCHES):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - GOLDEN * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + GOLDEN * (high - low)
            at_right = function(right)
    return (low + high) / 2
