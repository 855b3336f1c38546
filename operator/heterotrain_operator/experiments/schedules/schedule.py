"""Schedules of CPU limits and busy neighbours: which of them hold from when on; pure.

Machines that others use change while a job trains. A schedule makes that happen on purpose, at the same steps or
seconds in every trial, so that policies can be compared on it (OmniLearn, section IV-F).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from heterotrain_operator.experiments.figures.limits import DECLARED, Level, Limits

Unit = Literal["step", "seconds"]


@dataclass(frozen=True, slots=True)
class Change:
    """From here on limits and neighbours are those of `Schedule.levels[level]`; `at` counts committed steps, or seconds
    since the first one.
    """

    at: float
    level: int
    label: str


@dataclass(frozen=True, slots=True)
class Schedule:
    """Changes in ascending order, and the different levels that workers have during the job, `levels[0]` at its start.

    Without changes the limits stay.
    """

    levels: tuple[Level, ...]
    changes: tuple[Change, ...] = ()
    unit: Unit = "step"

    def due(self, done: int, step: int, seconds: float | None) -> int:
        """How many changes are due after `step` committed steps, `seconds` after the first of them (None: there is
        none yet); never fewer than the `done` ones, since a restart that goes back in steps takes no change back.
        """
        reached = step if self.unit == "step" else seconds
        while done < len(self.changes) and reached is not None and reached >= self.changes[done].at:
            done += 1
        return done


def unchanging(limits: Limits) -> Schedule:
    """The schedule of a job whose limits stay as its manifest declares them."""
    return Schedule((Level(DECLARED, limits),))
