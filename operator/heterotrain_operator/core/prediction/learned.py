"""What predictors that look ahead have learned of the workers of a group together, and of what: the last windows.

One regression or network per group, not per worker: in trials each worker's own was 2 to 8 % worse, for it sees a small
part of the windows, and takes as many numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from heterotrain.foreign import is_number, is_text
from heterotrain_operator.core.columns import cut
from heterotrain_operator.core.fields import MAX_COUNT, Rows
from heterotrain_operator.core.prediction.series import UNKNOWN, Window
from heterotrain_operator.core.split.allocation import Line

LOOKS_BACK = 8
"""Windows of a worker that are remembered: those with any weight in the average below."""

KEEP = 0.8
"""Weight of each window in the average, relative to the one after it: LB-BSP's EMA(0.2)."""

WEIGHTS = tuple(KEEP**age for age in reversed(range(LOOKS_BACK)))

LAGS = 3
"""Windows whose use of CPU and memory counts. Source: LB-BSP, eq. 4 (k to k-2)."""

INPUTS = 3 + 2 * LAGS
"""One that is always 1, two past speeds, and the uses."""

CLIPPED = 0.5
"""Greatest error, in logarithms, that teaches anything: more is no noise but another speed."""

GREATEST_FACTOR = 2.0
"""By which a window is expected to differ from the average at most."""


class Sample(NamedTuple):
    """What a worker's last windows say: the average log speed, and what differs from it."""

    average: float
    inputs: tuple[float, ...]


def log_speed(window: Window, line: Line | None) -> float:
    """The logarithm of how fast the worker was: beside the line for its batch, or else in samples per own second."""
    return math.log((window.batch if line is None else line.at(window.batch)) / window.seconds)


def sample_of(windows: tuple[Window, ...], line: Line | None) -> Sample | None:
    """The last windows, oldest first, as inputs; None if they are too few, or the use of the CPU is not known of all.

    `line` is the worker's own time by batch, as far as that is sure; without it windows at other batches than the last
    one tell of the batch, not of speed. Use of memory that is not known counts as none: it has no limit. Of more
    windows than count, which a policy may keep, the last ones are read.
    """
    windows = windows[-LOOKS_BACK:]
    if line is None:
        windows = tuple([window for window in windows if window.batch == windows[-1].batch])
    newest = windows[-LAGS:]
    cpu = [window.cpu_share - 0.5 for window in newest]
    if len(newest) < LAGS or min(cpu) < -0.5 or max(cpu) > 0.5:
        return None
    memory = [0.0 if window.memory_share == UNKNOWN else window.memory_share - 0.5 for window in newest]
    if line is None:
        speeds = [math.log(batch / seconds) for seconds, batch, _, _ in windows]
    else:
        speeds = [math.log(line.at(batch) / seconds) for seconds, batch, _, _ in windows]
    weights = WEIGHTS[-len(speeds) :]
    average = sum([weight * speed for weight, speed in zip(weights, speeds, strict=True)]) / sum(weights)
    return Sample(average, (1.0, speeds[-1] - average, speeds[-2] - average, *cpu, *memory))


@dataclass(frozen=True, slots=True)
class Learned:
    """Of a group, after so many `samples`: mean squared errors of log speeds, the model's own and those of the average
    that it starts from, and the model's `numbers`.
    """

    group: str
    samples: int = 0
    error: float = 0.0
    average_error: float = 0.0
    numbers: tuple[float, ...] = ()

    def is_trusted(self, least_samples: int) -> bool:
        """Whether it has seen enough, and was better than the average lately."""
        return self.samples >= least_samples and self.error < self.average_error

    def rounded(self) -> Learned:
        """As it reads back."""
        numbers = tuple(cut(number, DIGITS) for number in self.numbers)
        return Learned(self.group, self.samples, cut(self.error), cut(self.average_error), numbers)


DIGITS = 8
"""Kept of a model's numbers: fewer would let a covariance lose its shape."""

MOST_GROUPS, MOST_NUMBERS = 128, 128


def _row(learned: Learned) -> list[Any]:
    return [learned.group, learned.samples, learned.error, learned.average_error, *learned.numbers]


def _from_row(row: list[Any]) -> Learned | None:
    """Without numbers where they are malformed, so that a model begins again; None where no group is named."""
    if not row or not is_text(row[0], 63):
        return None
    if not (4 < len(row) <= 4 + MOST_NUMBERS and all(is_number(each) for each in row[1:])):
        return Learned(row[0])
    samples, error, average_error, *numbers = row[1:]
    if not 0 <= samples <= MAX_COUNT or error < 0 or average_error < 0:
        return Learned(row[0])
    return Learned(row[0], int(samples), float(error), float(average_error), tuple(float(each) for each in numbers))


LEARNED = Rows(_row, _from_row, MOST_GROUPS, rounded=Learned.rounded, measured=True)
