"""Schedules of CPU limits and busy neighbours: which of them hold from when on, and how they are carried out.

Machines that others use change while a job trains. A schedule makes that happen on purpose, at the same steps or
seconds in every trial, so that policies can be compared on it (OmniLearn, section IV-F).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from heterotrain_operator.core.model import Event, Seen
from heterotrain_operator.experiments import wording
from heterotrain_operator.experiments.figures.history import DECLARED, Level, LimitChange, Limits
from heterotrain_operator.experiments.progress import Pace, committed_steps

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


EVENT = "LimitsChanged"


LEAST_SECONDS = 0.1
"""The shortest pause before a step that is about to be reached: each observation costs the workers CPU time."""


class Limited(Protocol):
    """A backend in which workers' limits can be changed from outside."""

    def set_cpu_limit(self, name: str, cores: float | None) -> None:
        """Change a worker's CPU limit, in cores."""
        ...

    def set_neighbours(self, name: str, count: int) -> None:
        """Let so many busy processes share a worker's limits with it."""
        ...

    def keep_to_cpu(self, name: str, cpu: int) -> None:
        """Let a worker, and those that take its place, run on that CPU alone."""
        ...


class ScheduledLimits:
    """The limits of one trial. `look` must be called with every observation; `now` gives Unix seconds.

    A worker that is started again begins with its manifest's limit and without neighbours, so every worker is known
    by its uid.
    """

    def __init__(
        self,
        schedule: Schedule,
        backend: Limited,
        placements: Sequence[Mapping[str, int]],
        now: Callable[[], float],
        declared: Limits,
    ) -> None:
        """`placements` has for each level of the schedule a CPU for each worker, or none."""
        self.changes: list[LimitChange] = []
        self._schedule = schedule
        self._backend = backend
        self._placements = placements
        self._now = now
        self._level = 0
        self._done = 0
        self._step = 0
        self._pace = Pace()
        self._began: float | None = None
        self._declared = declared
        self._imposed: dict[str, int] = {}

    def look(self, seen: Seen) -> tuple[Event, ...]:
        """Change what is due; returns an event for each change. Raises LimitError if a limit is refused."""
        step = self._step = committed_steps(seen)
        self._pace.note(self._now(), step)
        if self._began is None and step > 0:
            self._began = self._now()
        due = self._schedule.due(self._done, step, self._seconds())
        events = []
        if due > self._done:
            change = self._schedule.changes[due - 1]
            first = due == 1 and change.at == 0
            self._done, self._level = due, change.level
            if not first:
                events.append(Event("Normal", EVENT, f"CPU limits {change.label}: {_words(self._current)}"))
        self._impose(seen)
        if events:
            limits, neighbours = dict(self._current.limits), dict(self._current.neighbours)
            self.changes.append(LimitChange(self._now(), step, self._level, change.label, limits, neighbours))
        return tuple(events)

    def seconds_left(self) -> float | None:
        """Until the next change, as far as it can be predicted; None if it cannot, or if there is no further change."""
        if self._done == len(self._schedule.changes):
            return None
        at = self._schedule.changes[self._done].at
        seconds, rate = self._seconds(), self._pace.steps_per_second
        if self._schedule.unit == "seconds":
            return None if seconds is None else max(at - seconds, 0.0)
        return None if rate is None else max((at - self._step) / rate, LEAST_SECONDS)

    def missed(self) -> tuple[str, ...]:
        """The labels of the changes that the job ended before."""
        return tuple(change.label for change in self._schedule.changes[self._done :])

    @property
    def _current(self) -> Level:
        return self._schedule.levels[self._level]

    def _seconds(self) -> float | None:
        # Starting a job takes a different time in every trial; seconds count from its first step on.
        return None if self._began is None else self._now() - self._began

    def _impose(self, seen: Seen) -> None:
        for worker in seen.workers:
            before = self._imposed.get(worker.uid)
            self._imposed[worker.uid] = self._level
            if worker.exit_code is not None or before == self._level:
                continue
            known = Level("", self._declared) if before is None else self._schedule.levels[before]
            place = place_of(worker.name, tuple(self._current.limits))
            if place is None:
                continue
            if known.limits[place] != self._current.limits[place]:
                self._backend.set_cpu_limit(worker.name, self._current.limits[place])
            cpu = self._placements[self._level].get(place)
            if cpu is not None and (before is None or cpu != self._placements[before].get(place)):
                self._backend.keep_to_cpu(worker.name, cpu)
            # After the CPU is known, which they share.
            neighbours = self._current.neighbours.get(place, 0)
            if neighbours != known.neighbours.get(place, 0):
                self._backend.set_neighbours(worker.name, neighbours)


def place_of(name: str, places: Sequence[str]) -> str | None:
    """The place in the schedule of a worker: its own, or of one that was created later, one of its group's, which all
    those of the group take in turn. None if its group has none, as that of a parameter server."""
    if name in places:
        return name
    group, _, index = name.rpartition("-")
    own = [each for each in places if each.rpartition("-")[0] == group]
    if not own or not index.isdecimal():
        return None
    return own[int(index) % len(own)]


def _words(level: Level) -> str:
    limits = wording.listed("none" if cores is None else f"{cores:g}" for cores in level.limits.values())
    busy = ", ".join(f"{name} {count}" for name, count in level.neighbours.items())
    return f"{limits}; busy neighbours: {busy}" if busy else limits
