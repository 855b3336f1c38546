"""What a rule about stragglers is given and what it gives back; a rule sees windows and evidence, and no plans.

`MEDIAN_THROUGHPUT` is the rule of the paper on elasticity (Algorithm 1), to be compared with: a moving average of a
worker's throughput over the median of all, below a threshold. It takes machines for equal: on a cluster that is unequal
by design it names those that are slow by design.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from heterotrain_operator.core.model import Stragglers
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.split.allocation import Line
from heterotrain_operator.core.stragglers.evidence import Evidence
from heterotrain_operator.core.stragglers.verdict import Grounds


class Reading(NamedTuple):
    """One worker in the newest interval: its group and device, its batch and window of steps (None: it was not
    measured), its own time by batch as a function that gives a line (None: nothing is known), and whether it is
    `pinned`: it has the fewest samples that it may have, and could have more.
    """

    group: str
    device: str
    batch: int
    window: Estimate | None
    line: Callable[[], Line | None]
    pinned: bool
    evidence: Evidence


class Interval(NamedTuple):
    """The interval that has ended: how many steps it should have, the committed step at its end, and the number of
    intervals that were judged before it in this job.
    """

    steps: int
    step: int
    judged: int


class Finding(NamedTuple):
    """By how many times a worker's own time exceeds what was expected of it, and what that is compared with."""

    slowdown: float
    grounds: Grounds


@dataclass(frozen=True, slots=True)
class Rule:
    """A way to tell stragglers.

    `judge(settings, interval, readings)` gives the workers' evidence after an interval, by rank, with `named` set for
    stragglers. `find(readings)` says how slow each is now, by rank, None where it is not known.
    """

    summary: str
    judge: Callable[[Stragglers, Interval, Sequence[Reading]], list[Evidence]]
    find: Callable[[Sequence[Reading]], list[Finding | None]]


def _judge(settings: Stragglers, interval: Interval, readings: Sequence[Reading]) -> list[Evidence]:
    """Take the interval's throughputs into the moving averages; `level` of the evidence holds them, in thousandths."""
    after = []
    for reading, relative in zip(readings, _relative(readings), strict=True):
        known = reading.evidence
        if relative is None:
            after.append(known)
            continue
        before = known.level / 1000 if known.healthy_windows else relative
        level = before + settings.smoothing * (relative - before)
        named = level < settings.threshold
        since = (known.since_step or interval.step + 1) if named else 0
        after.append(known._replace(level=round(1000 * level), healthy_windows=1, named=int(named), since_step=since))
    return after


def _find(readings: Sequence[Reading]) -> list[Finding | None]:
    """How slow each worker is now, against the median throughput."""
    return [
        None if relative is None or relative <= 0 else Finding(1 / relative, Grounds.GROUP)
        for relative in _relative(readings)
    ]


def _relative(readings: Sequence[Reading]) -> list[float | None]:
    throughputs = [None if each.window is None else each.batch / each.window.mean_seconds for each in readings]
    known = [throughput for throughput in throughputs if throughput is not None]
    if not known:
        return [None] * len(readings)
    middle = median(known)
    return [None if each is None else each / middle for each in throughputs]


MEDIAN_THROUGHPUT = Rule("moving average of throughput over the median (the paper's)", _judge, _find)
