"""The course of a job: when its workers began, how far they have come, how often they started again, how it ended."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from heterotrain_operator.core.fields import MEASURED, Kept


@dataclass(frozen=True, slots=True)
class Start:
    """The job was seen first at `created_at`, and its active time began at `started_at`. Since `starting_at` its
    workers have been due to start, and pods were created last at `pods_created_at`. The present workers took
    `start_seconds` from nothing to their first plan.
    """

    created_at: float | None = None
    started_at: float | None = None
    starting_at: float | None = None
    pods_created_at: float | None = None
    start_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Placing:
    """So many tries to place all workers (`placements`) were given up. Since `half_placed_at` only some have places, at
    most `most_placed`.
    """

    placements: int = 0
    half_placed_at: Annotated[float | None, MEASURED] = None
    most_placed: Annotated[int, MEASURED] = 0

    def watched(self, held: int, wanted: int, now: float) -> Placing:
        """With since when some of the workers wanted hold places, or a quota, and others find none; the time starts
        again with each one more that finds one.
        """
        if not 0 < held < wanted:
            return Placing(self.placements)
        if self.half_placed_at is None or held > self.most_placed:
            return Placing(self.placements, now, held)
        return self


@dataclass(frozen=True, slots=True)
class Progress:
    """The newest committed step that was seen is `progress_step`. Progress is due since `progress_at`, which pauses
    move (`between_steps`: there is one), and no step was committed since `advanced_at`. `stepped`: this generation of
    workers has committed a step. A slow step takes `slow_step_seconds`.
    """

    progress_step: Annotated[int, MEASURED] = -1
    progress_at: Annotated[float | None, MEASURED] = None
    advanced_at: Annotated[float | None, MEASURED] = None
    between_steps: Annotated[bool, MEASURED] = False
    stepped: Annotated[bool, MEASURED] = False
    slow_step_seconds: Annotated[float, Kept(measured=True, digits=None)] = 0.0


@dataclass(frozen=True, slots=True)
class Resumed:
    """Training went on from an earlier job's checkpoint, of step `resumed_step` (-1: it did not); that job's UID was
    `resumed_from`, if it is known.
    """

    resumed_step: int = -1
    resumed_from: str = ""


@dataclass(frozen=True, slots=True)
class RestartBudget:
    """So many `restarts` count against the job's limit; `interruptions` are those that did not, one soon after the
    other. The present workers got their first plan at `generation_at`. Since `unexplained_at` workers have ended who
    say that they were asked to stop, and nobody else does. `draining`: all pods are being deleted. None is created
    before `restart_at`. The script raised when training had come to `script_error_step` (-1: it has not, or training
    has got past it since).
    """

    restarts: int = 0
    interruptions: int = 0
    generation_at: float | None = None
    unexplained_at: float | None = None
    draining: bool = False
    restart_at: float | None = None
    script_error_step: int = -1

    def raised_at(self, step: int) -> RestartBudget:
        """Once the script has raised when training had come so far; -1: training has got past it."""
        return replace(self, script_error_step=step)


@dataclass(frozen=True, slots=True)
class Finish:
    """Since `finished_at` it is known that the job's last step, `last_step`, is committed. `ending`: whoever led has
    ended well, so that the job's end waits for the others alone.
    """

    finished_at: float | None = None
    last_step: int = 0
    ending: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """`outcome`, once set, is final, and the job ended at `ended_at`; `reason` and `message` say why, or why its
    workers start again, or have not started yet.
    """

    outcome: str = ""
    ended_at: float | None = None
    reason: str = ""
    message: str = ""

    @property
    def is_final(self) -> bool:
        """Whether the job is over, for good."""
        return bool(self.outcome)
