"""Draws of the noise: a matrix of factors by step and worker, the same however it is cut and whatever is decided."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from heterotrain_operator.clusters.simulated.noise import AR1, HeavyTailed, Independent, Noise, NoNoise, Replayed

Matrix = npt.NDArray[np.float64]
"""Numbers by step (rows) and worker (columns), or by one of them."""

AHEAD_NUMBERS = 4096
"""So many factors are drawn at once at least: a call costs as much as some hundred of them."""

OWN, SHARED = 1, 8
"""Streams of a seed's draws: for what each worker has of its own, and for what all have in common."""

KEPT_RESIDUALS = (0.01, 100.0)
"""What lies beyond in a recorded series is a fault of measurement."""


class _Source(Protocol):
    """The factors of some workers, row by row; how many rows are asked for at once changes none of them."""

    def rows(self, count: int) -> Matrix: ...


class _Ones:
    def __init__(self, workers: int) -> None:
        self._workers = workers

    def rows(self, count: int) -> Matrix:
        return np.ones((count, self._workers))


class _Gamma:
    def __init__(self, noise: Independent, workers: int, random: np.random.Generator) -> None:
        self._shape, self._workers, self._random = 1 / noise.variation**2, workers, random

    def rows(self, count: int) -> Matrix:
        return self._random.standard_gamma(self._shape, (count, self._workers)) / self._shape


class _AR1:
    def __init__(self, noise: AR1, workers: int, random: np.random.Generator) -> None:
        self._correlation, self._random = noise.correlation, random
        self._deviation = math.sqrt(math.log1p(noise.variation**2))
        self._state = random.standard_normal(workers)

    def rows(self, count: int) -> Matrix:
        news = self._random.standard_normal((count, len(self._state))) * math.sqrt(1 - self._correlation**2)
        state = self._state
        for step in range(count):
            news[step] += self._correlation * state
            state = news[step]
        self._state = state.copy()
        factors: Matrix = np.exp(self._deviation * news - self._deviation**2 / 2)
        return factors


class _Lomax:
    def __init__(self, noise: HeavyTailed, workers: int, random: np.random.Generator) -> None:
        index = noise.index
        self._index, self._workers, self._random = index, workers, random
        self._mean = 1 / (index - 1)
        self._scale = noise.variation / math.sqrt(index / ((index - 1) ** 2 * (index - 2)))

    def rows(self, count: int) -> Matrix:
        return 1 + self._scale * (self._random.pareto(self._index, (count, self._workers)) - self._mean)


class _Replay:
    def __init__(self, noise: Replayed, workers: int, random: np.random.Generator) -> None:
        self._residuals = [residuals(series, noise.window) for series in noise.series]
        which = random.integers(len(self._residuals), size=workers)
        self._which = [int(index) for index in which]
        self._places = [int(random.integers(len(self._residuals[index]))) for index in self._which]

    def rows(self, count: int) -> Matrix:
        factors = np.empty((count, len(self._which)))
        for worker, (index, place) in enumerate(zip(self._which, self._places, strict=True)):
            series = self._residuals[index]
            factors[:, worker] = series[(place + np.arange(count)) % len(series)]
            self._places[worker] = (place + count) % len(series)
        return factors


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


def _source(noise: Noise, workers: int, random: np.random.Generator) -> _Source:
    match noise:
        case Independent(variation) if variation > 0:
            return _Gamma(noise, workers, random)
        case AR1(_, variation) if variation > 0:
            return _AR1(noise, workers, random)
        case HeavyTailed(variation) if variation > 0:
            return _Lomax(noise, workers, random)
        case Replayed():
            return _Replay(noise, workers, random)
        case NoNoise() | Independent() | AR1() | HeavyTailed():
            return _Ones(workers)


class Draws:
    """Factors of all workers' noise, by executed step. Workers are columns, in the order in which they were added."""

    def __init__(self, seed: int, stream: int = OWN) -> None:
        self._seed, self._stream = seed, stream
        self._sources: list[tuple[npt.NDArray[np.intp], _Source]] = []
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
            source = _source(noise, len(each), random)
            places = np.array(each, dtype=np.intp)
            self._sources.append((places, source))
            more[:, places - self._workers] = source.rows(known)
        self._ahead = np.hstack([self._ahead.reshape(known, self._workers), more])
        self._workers += len(noises)

    def peek(self, steps: int) -> Matrix:
        """Factors of the next steps, of shape (steps, workers); not to be changed."""
        lacking = steps - len(self._ahead)
        if lacking > 0:
            lacking = max(lacking, AHEAD_NUMBERS // max(self._workers, 1))
            drawn = np.empty((lacking, self._workers))
            for places, source in self._sources:
                drawn[:, places] = source.rows(lacking)
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
