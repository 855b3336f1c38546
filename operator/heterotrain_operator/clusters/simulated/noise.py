"""Noise of own times: factors of mean 1, drawn for every worker and step whether or not anybody needs them.

A worker's factor at a step depends on the seed, the worker and the step alone, never on batches. So two policies, or a
policy and the oracle, can be compared under the very same noise (common random numbers). `draws.py` draws it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from heterotrain_operator.clusters.simulated.valid import above, at_least, within


@dataclass(frozen=True, slots=True)
class NoNoise:
    """Every step takes exactly its mean."""


@dataclass(frozen=True, slots=True)
class Independent:
    """Gamma distributed with so great a coefficient of variation: positive and skewed to the right, as times are."""

    variation: float

    def __post_init__(self) -> None:
        within(0, 2, variation=self.variation)


@dataclass(frozen=True, slots=True)
class AR1:
    """Log-normal with so great a coefficient of variation, its logarithm autoregressive: what delays one step lasts.

    `correlation` is that of the logarithms of two steps in a row.
    """

    correlation: float
    variation: float

    def __post_init__(self) -> None:
        within(-0.999, 0.999, correlation=self.correlation)
        within(0, 2, variation=self.variation)


@dataclass(frozen=True, slots=True)
class HeavyTailed:
    """Shifted Pareto (Lomax): now and then a step takes many times as long. Moments from `index` on are infinite."""

    variation: float
    index: float = 3.0

    def __post_init__(self) -> None:
        above(2, index=self.index)
        # Beyond it, the smallest factor would be below 0.
        within(0, math.sqrt(self.index / (self.index - 2)), variation=self.variation)


@dataclass(frozen=True, slots=True)
class Replayed:
    """Recorded own seconds, each over the mean of its neighbourhood: real correlation and real tails.

    `series` holds the own seconds of one recorded worker each, step by step, at least two steps of each. A simulated
    worker plays one of them from a seeded place on, round and round. The neighbourhood is the `window` steps around a
    step; 0: the whole series, which keeps its slow waves. What is kept of a series lies between 1/100 and 100 times
    its mean.
    """

    series: tuple[tuple[float, ...], ...]
    window: int = 0

    def __post_init__(self) -> None:
        at_least(0, window=self.window)
        if not self.series:
            raise ValueError("series: expected at least one recorded worker")
        for index, one in enumerate(self.series):
            if len(one) < 2:
                raise ValueError(f"series[{index}]: expected at least two steps, found {len(one)}")
            for seconds in one:
                above(0, **{f"series[{index}]": seconds})


Noise = NoNoise | Independent | AR1 | HeavyTailed | Replayed
