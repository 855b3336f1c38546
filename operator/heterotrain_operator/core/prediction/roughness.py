"""How far windows of steps vary beyond what independent steps would, learned from the windows of all workers.

Steps are not independent of each other: in recorded runs means of ten steps varied five to ten times as much as
independence predicts. So each window is compared with those before it, in standard errors of independent steps: its
surprise. Of as many independent steps surprises are 0.8 on average, and have nothing to do with each other. Where they
are larger, means are as much less certain. Where each is like the one before, averages are less certain still; but
where they stay alike for long, it is the speed that wanders, and a short average follows it. So it does where the
windows of one worker stay on one side of their average: its speed drifts.

Workers of a job run the same code, mostly on the same machines. What a worker's own windows say is shrunk to what all
of them say, for few windows of one worker say little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from typing import Annotated

from heterotrain_operator.core.columns import COARSE_DIGITS
from heterotrain_operator.core.fields import MEASURED, Kept

INDEPENDENT = 0.8
"""Mean size of the surprises of independent steps: that of a normal variable."""

FIRST = 1.4
"""Roughness before a second window was seen: as if errors were 1.75 times those of independent steps. Tried: 1.4 and
1.6; with the latter, four times the speed needs a fourth step to show."""

ROUGHEST = 12.0
"""Size of a surprise beyond which it says no more: autoregressive noise (0.98 per step) leaves ten."""

OWN = 0.5
"""Part of what is learned of a worker that is its own; the rest is the mean of all workers."""

WINDOWS = 16
"""Windows over which roughness and persistence are averaged; they are learned faster at first."""

PRIOR_WINDOWS = 6
"""Windows without persistence that are taken as seen before the first."""

MOST_CORRELATED = 0.5
"""Correlation of a window with the one before above which it shows a wandering speed, and no noise. Simulated
autoregressive noise leaves 0.4 at 0.9 per step, and 0.7 at 0.98, of which batches can follow the latter alone."""

WANDERING = 0.7
"""Correlation from which averages are as short as they get. Tried: 0.55 to 0.7; earlier, recorded noise is followed."""

WANDERING_ERROR = 0.4
"""Standard errors of a wandering speed's short average, as a part of its surprises': most of them were change."""

LONGEST_HISTORY = 30.0
"""Windows after which older ones fade out of an average, so that it follows drifts too slow to be seen as a jump."""

SHORTEST_HISTORY = 4.0
"""The same where speeds wander."""

DRIFT_HISTORY = 1.0
"""The same where one worker's drifts, besides the last one. Tried: 1, 2 and 4, with each of which a drift was
followed by as many plans, and later."""

TREND_WEIGHT = 0.25
"""Of the last window in a worker's trend."""

TREND = 1.6
"""Standard errors by which its last windows must be on one side of a worker's average to be taken for a drift, which a
short average follows: by chance 4.2 times their own error. Tried: 1.0 to 2.0; with less, autoregressive noise was
followed, and with more a drift to twice the time in 400 steps by 1 % later."""


@dataclass(frozen=True, slots=True)
class Roughness:
    """What the windows of all workers have in common, as it is remembered: so many of them, up to `WINDOWS`, were
    compared with those before, with which they correlate by `persistence`.
    """

    windows: Annotated[int, MEASURED] = 0
    persistence: Annotated[float, Kept(measured=True, least=-1.0, most=1.0, digits=COARSE_DIGITS)] = 0.0


def inflation_of(roughness: float) -> float:
    """By how many times the variance of a mean exceeds that of independent steps; a roughness of 0 is not known yet."""
    ratio = (roughness or FIRST) / INDEPENDENT
    return ratio * ratio if ratio > 1 else 1.0


def wandering(persistence: float) -> float:
    """How far the speeds themselves wander, from 0 to 1, by the correlation of windows with the ones before."""
    return min(max((persistence - MOST_CORRELATED) / (WANDERING - MOST_CORRELATED), 0.0), 1.0)


def error_of_averages(persistence: float) -> float:
    """Standard errors of an average over many windows, as a part of what they would be of windows that have nothing to
    do with each other: the mean of many that are correlated with those next to them by `c` is `sqrt((1 + c) / (1 - c))`
    times as uncertain.
    """
    correlation = min(max(persistence, 0.0), MOST_CORRELATED)
    share = wandering(persistence)
    return (1 - share) * math.sqrt((1 + correlation) / (1 - correlation)) + share * WANDERING_ERROR


def history_of(persistence: float) -> float:
    """Windows that an average is over."""
    share = wandering(persistence)
    return LONGEST_HISTORY * (1 - share) + SHORTEST_HISTORY * share


def trend_after(known: float, surprise: float) -> float:
    """By how many standard errors a worker's last windows are above their average, after one more; the `surprise` is in
    errors of windows as they vary.
    """
    known = -ROUGHEST if known < -ROUGHEST else ROUGHEST if known > ROUGHEST else known
    return known + TREND_WEIGHT * (surprise - known)


def persistence_after(known: float, windows: int, surprises: Sequence[float], before: Sequence[float]) -> float:
    """The correlation of windows with those `before`, after one more of each worker, and `windows` in all before it."""
    size = math.sqrt(sum(map(mul, surprises, surprises)) * sum(map(mul, before, before)))
    if size <= 0:
        return known
    found: float = sum(map(mul, surprises, before)) / size
    return known + max(1 / WINDOWS, 1 / (windows + PRIOR_WINDOWS)) * (found - known)


def roughness_after(
    known: Sequence[float], persistence: float, windows: int, surprises: Sequence[float]
) -> list[float]:
    """Each worker's roughness after one more window of each, and `windows` before it."""
    factor = error_of_averages(persistence)
    sizes = list(map(abs, surprises))
    common = (1 - OWN) * sum(sizes) / max(len(sizes), 1)
    newest = max(1 / WINDOWS, 1 / (windows + 2))
    return [
        (1 - newest) * (roughness or FIRST) + newest * factor * (OWN * size + common)
        for roughness, size in zip(known, sizes, strict=True)
    ]
