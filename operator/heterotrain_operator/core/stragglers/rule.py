"""What a rule about stragglers is given and what it gives back; a rule sees windows and evidence, and no plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from heterotrain_operator.core.model import Stragglers
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.split.waterfill import Line
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
