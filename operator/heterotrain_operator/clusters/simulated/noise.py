"""Noise of own times: factors of mean 1, drawn for every worker and step whether or not anybody needs them.

A worker's factor at a step depends on the seed, the worker and the step alone, never on batches. So two policies, or a
policy and the oracle, can be compared under the very same noise (common random numbers).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import Field

from heterotrain_operator.clusters.simulated.described import (
    Choice,
    Count,
    Described,
    PositiveStepSeconds,
    Written,
    kind,
    said,
)

Matrix = npt.NDArray[np.float64]
"""Numbers by step (rows) and worker (columns), or by one of them."""

Rows = Callable[[int], Matrix]
"""The next so many rows of factors; how many are asked for at once changes none of them."""

AHEAD_NUMBERS = 4096
"""So many factors are drawn at once at least: a call costs as much as some hundred of them."""

OWN, SHARED = 1, 8
"""Streams of a seed's draws: for what each worker has of its own, and for what all have in common."""

MAX_RECORDED = 64
MAX_SERIES = 10_000

KEPT_RESIDUALS = (0.01, 100.0)
"""What lies beyond in a recorded series is a fault of measurement."""

_VARIATION = "Coefficient of variation of one step's time: standard deviation over mean."
Variation = Annotated[float, said(_VARIATION, gt=0, le=2)]
Series = Annotated[tuple[PositiveStepSeconds, ...], Field(min_length=2, max_length=MAX_SERIES)]


class Noise(Protocol):
    """A kind of noise; workers of equal noise share a generator, each with draws of its own."""

    def rows(self, workers: int, random: np.random.Generator, /) -> Rows:
        """Where the factors of so many workers come from."""
        ...


@dataclass(frozen=True, slots=True)
class NoNoise:
    """Every step takes exactly its mean."""

    def rows(self, workers: int, _: np.random.Generator, /) -> Rows:
        return lambda count: np.ones((count, workers))


@dataclass(frozen=True, slots=True)
class Independent(Described):
    """Each step by itself.

    Gamma distributed with so great a coefficient of variation: positive and skewed to the right, as times are.
    """

    variation: Variation

    def rows(self, workers: int, random: np.random.Generator, /) -> Rows:
        if not self.variation:
            return NoNoise().rows(workers, random)
        shape = 1 / self.variation**2
        return lambda count: random.standard_gamma(shape, (count, workers)) / shape


@dataclass(frozen=True, slots=True)
class AR1(Described):
    """Slow steps come in a row.

    Log-normal with so great a coefficient of variation, its logarithm autoregressive: what delays one step lasts.
    """

    correlation: Annotated[float, said("Correlation of the logarithms of two steps in a row.", ge=-0.999, le=0.999)]
    variation: Variation

    def rows(self, workers: int, random: np.random.Generator, /) -> Rows:
        if not self.variation:
            return NoNoise().rows(workers, random)
        deviation = math.sqrt(math.log1p(self.variation**2))
        state = random.standard_normal(workers)

        def rows(count: int) -> Matrix:
            nonlocal state
            news = random.standard_normal((count, workers)) * math.sqrt(1 - self.correlation**2)
            for step in range(count):
                news[step] += self.correlation * state
                state = news[step]
            state = state.copy()
            factors: Matrix = np.exp(deviation * news - deviation**2 / 2)
            return factors

        return rows


@dataclass(frozen=True, slots=True)
class HeavyTailed(Described):
    """Rare steps of many times the length.

    A shifted Pareto distribution (Lomax). With a greater variation its smallest factor could be below 0.
    """

    variation: Annotated[float, said(_VARIATION, gt=0, le=1)]
    index: Annotated[
        float, said("Moments of the distribution from this one on are infinite; the lower, the wilder.", gt=2, le=100)
    ] = 3.0

    def __post_init__(self) -> None:
        Described.__post_init__(self)
        if self.index <= 2:
            raise ValueError(f"index: expected a number above 2, found {self.index}")

    def rows(self, workers: int, random: np.random.Generator, /) -> Rows:
        if not self.variation:
            return NoNoise().rows(workers, random)
        index, mean = self.index, 1 / (self.index - 1)
        scale = self.variation / math.sqrt(index / ((index - 1) ** 2 * (index - 2)))
        return lambda count: 1 + scale * (random.pareto(index, (count, workers)) - mean)


@dataclass(frozen=True, slots=True)
class Replayed(Described):
    """As recorded.

    Recorded own seconds, each over the mean of its neighbourhood: real correlation and real tails. `series` holds those
    of one recorded worker each, step by step. A simulated worker plays one of them from a seeded place on, round and
    round. What is kept of a series lies between 1/100 and 100 times its mean.
    """

    series: Annotated[
        tuple[Series, ...],
        said("Recorded own seconds of one worker each, step by step.", min_length=1, max_length=MAX_RECORDED),
    ]
    window: Annotated[
        Count, said("How many steps around it a step is compared with. 0: the whole series, which keeps slow waves.")
    ] = 0

    def rows(self, workers: int, random: np.random.Generator, /) -> Rows:
        played = [residuals(series, self.window) for series in self.series]
        which = [int(index) for index in random.integers(len(played), size=workers)]
        places = [int(random.integers(len(played[index]))) for index in which]

        def rows(count: int) -> Matrix:
            factors = np.empty((count, workers))
            for worker, (index, place) in enumerate(zip(which, places, strict=True)):
                series = played[index]
                factors[:, worker] = series[(place + np.arange(count)) % len(series)]
                places[worker] = (place + count) % len(series)
            return factors

        return rows


def residuals(series: Sequence[float], window: int) -> Matrix:
    """Recorded seconds over the mean of the `window` steps around each (0: over that of all), of mean 1."""
    seconds = np.asarray(series, dtype=float)
    if 0 < window < len(seconds):
        sums = np.concatenate([[0.0], np.cumsum(seconds)])
        places = np.arange(len(seconds))
        low = np.clip(places - window // 2, 0, len(seconds) - window)
        local: Matrix = (sums[low + window] - sums[low]) / window
    else:
        local = np.full(len(seconds), seconds.mean())
    found: Matrix = np.clip(seconds / local, *KEPT_RESIDUALS)
    found /= found.mean()
    return found


class NoiseChoice(Choice):
    """How the times of a worker's steps vary around its law."""

    independent: Written[Independent] | None = kind(Independent)
    autoregressive: Written[AR1] | None = kind(AR1)
    heavy_tailed: Written[HeavyTailed] | None = kind(HeavyTailed)
    replayed: Written[Replayed] | None = kind(Replayed)


class Draws:
    """Factors of all workers' noise, by executed step. Workers are columns, in the order in which they were added."""

    def __init__(self, seed: int, stream: int = OWN) -> None:
        self._seed, self._stream = seed, stream
        self._sources: list[tuple[npt.NDArray[np.intp], Rows]] = []
        self._workers = 0
        self._ahead = np.empty((0, 0))

    def add(self, noises: Sequence[Noise]) -> None:
        """More workers; those of equal noise share a generator, each with draws of its own."""
        columns: dict[Noise, list[int]] = {}
        for column, noise in enumerate(noises, start=self._workers):
            columns.setdefault(noise, []).append(column)
        known = len(self._ahead)
        more = np.ones((known, len(noises)))
        for noise, each in columns.items():
            random = np.random.default_rng([self._seed, self._stream, each[0]])
            rows = noise.rows(len(each), random)
            places = np.array(each, dtype=np.intp)
            self._sources.append((places, rows))
            more[:, places - self._workers] = rows(known)
        self._ahead = np.hstack([self._ahead.reshape(known, self._workers), more])
        self._workers += len(noises)

    def peek(self, steps: int) -> Matrix:
        """Factors of the next steps, of shape (steps, workers); not to be changed."""
        lacking = steps - len(self._ahead)
        if lacking > 0:
            lacking = max(lacking, AHEAD_NUMBERS // max(self._workers, 1))
            drawn = np.empty((lacking, self._workers))
            for places, rows in self._sources:
                drawn[:, places] = rows(lacking)
            self._ahead = np.vstack([self._ahead, drawn]) if len(self._ahead) else drawn
        return self._ahead[:steps]

    def skip(self, steps: int) -> None:
        """So many steps were executed."""
        self._ahead = self._ahead[steps:]


def natures(seed: Sequence[int], spreads: Sequence[float]) -> Matrix:
    """Fixed factors by which workers differ: log-normal, of mean 1 and these coefficients of variation."""
    deviations = np.sqrt(np.log1p(np.square(np.asarray(spreads, dtype=float))))
    drawn = np.random.default_rng(seed).standard_normal(len(spreads))
    factors: Matrix = np.exp(deviations * drawn - deviations**2 / 2)
    return factors
