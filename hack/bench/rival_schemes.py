"""What other schemes would have made of the same own times: from one matrix of them, the time of every step.

Each scheme is a function of `Times` and returns the seconds of each step, of shape (n,). Where a step has other than
the wanted samples, it returns the seconds in which it did as many useful ones, so that all can be compared: thrown
away work makes them longer. What slows a worker in a step slows all of its samples alike, so schemes that act within a
step can answer it whole; and only what is said to cost something does. Both favour them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]

CHECKS, BEHIND, FIRST_HELP, FURTHER_HELP = 100, 0.2, 0.025, 0.05
"""Of FlexRR: checks of progress in a step, how far behind a helper a worker must be to be helped, and the parts of its
batch that it gives away, first and then. Sources: LB-BSP, section 2.2.3, and Harlap et al. (SoCC '16)."""

CLAIM_COST = 0.02
"""Of a step without waiting, for each chunk that is claimed while it runs."""

MICRO_BATCHES = 8
"""Parts in which Hivemind's workers compute an equal batch."""


@dataclass(frozen=True, slots=True)
class Times:
    """Own times of the same workers at equal batches, seconds, of shape (n, K); `fixed` is the part of each, below 1,
    that does not depend on the batch. The rest is proportional to it.
    """

    own: Matrix
    fixed: float

    def of(self, batches: Matrix | float) -> Matrix:
        """Own times at so many times the equal batch."""
        found: Matrix = self.own * (self.fixed + (1 - self.fixed) * batches)
        return found

    def of_first(self, workers: int) -> Times:
        """Those of the first workers alone."""
        return Times(self.own[:, :workers], self.fixed)


def equal_batches(times: Times) -> Matrix:
    """BSP: a step ends with its slowest worker."""
    slowest: Matrix = times.own.max(axis=1)
    return slowest


def without_waiting(times: Times) -> Matrix:
    """A bound for all schemes: batches for which all workers take equally long, noise included.

    With `B` samples each, `b_k = B * (T / t_k - fixed) / (1 - fixed)` sum to `K * B` at the harmonic mean of the `t_k`.
    """
    mean: Matrix = times.own.shape[1] / (1 / times.own).sum(axis=1)
    return mean


def redundant(times: Times, backups: int, *, more: bool = False) -> Matrix:
    """A step ends when all workers but so many are done, and what these would have added is thrown away.

    `more`: the backups are machines besides, so that a step has all its samples; otherwise it lacks theirs, and others
    follow for them.
    """
    workers = times.own.shape[1]
    seconds: Matrix = np.partition(times.own, workers - backups - 1, axis=1)[:, workers - backups - 1]
    return seconds if more else seconds * workers / (workers - backups)


def flexrr(times: Times, seed: int) -> Matrix:
    """FlexRR's rapid reassignment in a step with a barrier, everybody a helper of everybody (LB-BSP, section 5.3).

    At each check, a hundredth of the mean own time, workers that are done find one each of those that lag behind them
    by a fifth of their batch, without coordination: at random. They take over 2.5 % of its batch, later 5 %.
    """
    random, shape = np.random.default_rng(seed), times.own.shape
    rate = times.own * (1 - times.fixed)
    ends, helps = times.own.copy(), np.zeros(shape, dtype=bool)
    amount = np.full(shape, FIRST_HELP)
    every = times.own.mean(axis=1, keepdims=True) / CHECKS
    now = np.zeros((shape[0], 1))
    while (now < ends.max(axis=1, keepdims=True)).any():
        now += every
        idle = ends <= now
        helps |= idle
        lags = ~helps & (ends - now > BEHIND * rate)
        rows, place = _pairs(idle, lags, random)
        helper, lagging = place
        given = amount[rows, helper]
        ends[rows, lagging] -= given * rate[rows, lagging]
        ends[rows, helper] = now[rows, 0] + given * rate[rows, helper]
        amount[rows, helper] = FURTHER_HELP
    slowest: Matrix = np.maximum(ends.max(axis=1), 0.0)
    return slowest


def _pairs(
    some: npt.NDArray[np.bool_], others: npt.NDArray[np.bool_], random: np.random.Generator
) -> tuple[npt.NDArray[np.intp], tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]]:
    """In each row at random as many pairs as there can be, nobody in two: their rows, and the columns of both."""
    rows = np.flatnonzero(some.any(axis=1) & others.any(axis=1))
    first, second = (
        np.argsort(np.where(each[rows], random.random((len(rows), each.shape[1])), 2.0), axis=1)
        for each in (some, others)
    )
    count = np.minimum(some[rows].sum(axis=1), others[rows].sum(axis=1))
    row, rank = np.nonzero(np.arange(some.shape[1]) < count[:, None])
    return rows[row], (first[row, rank], second[row, rank])


def hivemind(times: Times, matchmaking_seconds: float = 0.0) -> tuple[Matrix, npt.NDArray[np.int64]]:
    """Workers accumulate micro-batches at their own pace until all have the target together, finish those that they
    have begun, and average; the micro-batches of each, of shape (n, K), besides.

    None is thrown away: a step that has more than the target counts for as much more. `matchmaking_seconds` pass before
    each averaging; Hivemind waits at least 5 by default (`matchmaking_time`), and may do so while others compute.
    """
    micro = times.of(1 / MICRO_BATCHES)
    target = MICRO_BATCHES * times.own.shape[1]
    longest = np.max(target / (1 / micro).sum(axis=1) + micro.max(axis=1))
    most = math.ceil(longest / micro.min()) + 1
    counts = np.empty(micro.shape, dtype=np.int64)
    for row, each in enumerate(micro):
        ends = np.arange(1, min(most, target) + 1)[:, None] * each
        reached = np.partition(ends, target - 1, axis=None)[target - 1]
        counts[row] = np.ceil(reached / each * (1 - 1e-12))
    seconds: Matrix = (counts * micro).max(axis=1) + matchmaking_seconds
    return seconds * target / counts.sum(axis=1), counts


def stealing(times: Times, part: float, chunks: int, batches: Matrix | None = None, *, delayed: bool = False) -> Matrix:
    """Work stealing inside a step: each worker computes this part of its batch, and whoever is done first claims the
    next chunk of the rest, of which there are so many for each worker.

    `batches` are in equal batches, of shape (n, K); None: all are. A claim costs `CLAIM_COST`. `delayed`: by what a
    worker's own time exceeds its median is a delay that passes however much of its batch it computes.
    """
    steps, workers = times.own.shape
    own = np.ones((1, workers)) if batches is None else batches
    paced = Times(np.minimum(times.own, np.median(times.own, axis=0)), times.fixed) if delayed else times
    ends = times.of(own) * (1 - paced.own / times.own) + paced.of(part * own)
    claim = paced.of((1 - part) / chunks) - paced.of(0.0) + CLAIM_COST * without_waiting(times)[:, None]
    row = np.arange(steps)
    for _ in range(workers * chunks if part < 1 else 0):
        first = ends.argmin(axis=1)
        ends[row, first] += claim[row, first]
    slowest: Matrix = ends.max(axis=1)
    return slowest
