"""Events that make own times longer or shorter: factors by step and worker, with what the oracle knows of them.

Fields that are called alike mean the same in all events: it concerns `workers`, each named by itself or all of a group
by the group's name (none named: everybody), and lasts from step `begin` up to `until` (None: it never ends), or happens
once, `at` a step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt

from heterotrain_operator.api.base import Fraction
from heterotrain_operator.clusters.simulated.described import (
    Cores,
    Described,
    Factor,
    PositiveCount,
    said,
)
from heterotrain_operator.clusters.simulated.noise import Matrix

Steps = npt.NDArray[np.int64]
"""Numbers of executed steps, as a column or by worker."""

Cause = Annotated[
    Literal["script", "throttled", "cpu-wait"],
    said("What their use of resources shows: their own script, throttling, or a CPU that somebody else has."),
]
"""Why a worker takes longer: it computes more itself (or its device is slower, which looks the same), its CPU limit
holds it back, or it waits for a CPU that somebody else has."""

FactorOfSteps = Annotated[Factor, said("Steps take this many times as long.")]


@dataclass(frozen=True, slots=True)
class Trainee:
    """Of one worker what events rest on: its name and group, its column in the draws, the limit that it began with,
    and the executed steps when its process started.
    """

    name: str
    group: str
    column: int
    cpu_limit: float | None
    started_step: int


class Happening(Described):
    """An event."""

    __slots__ = ()
    workers: tuple[str, ...]

    def __post_init__(self) -> None:
        """Raises ValueError, too, if it ends before it begins."""
        Described.__post_init__(self)
        begin, until = getattr(self, "begin", 0), getattr(self, "until", None)
        if begin < 0 or (until is not None and until <= begin):
            raise ValueError(f"until: expected a step after begin, which is {begin}, found {until}")

    def concerns(self, name: str, group: str) -> bool:
        """Whether it concerns a worker."""
        return not self.workers or name in self.workers or group in self.workers

    def lasts(self, first: int, end: int) -> bool:
        """Whether it may change anything from step `first` up to `end`."""
        begin, until = getattr(self, "begin", 0), getattr(self, "until", None)
        return end > begin and (until is None or first < until)


class ChangeOfTime(Happening):
    """An event that makes own times longer or shorter."""

    __slots__ = ()

    @property
    def cause(self) -> Cause:
        """Why own times change, as the use of resources shows it."""
        return "script"

    @property
    def whole_factor(self) -> float:
        """How many times as long it makes steps, as far as is known before anything is simulated."""
        return 1.0

    def factors(self, step: Steps, trainees: Sequence[Trainee], draws: Sequence[int], limits: Limits) -> Matrix:
        """What own times are multiplied with, in a shape that fits (steps, trainees); `step` is a column.

        `draws` is the seed of what the event leaves to chance, `limits` are the scenario's changes of limits in order.
        """
        raise NotImplementedError

    def as_known(self, step: Steps, factors: Matrix) -> Matrix:
        """What the oracle knows of the factors."""
        return factors


class ChangeByFactor(ChangeOfTime):
    """One that makes steps `factor` times as long in the end."""

    __slots__ = ()
    factor: float

    @property
    def whole_factor(self) -> float:
        return self.factor


@dataclass(frozen=True, slots=True)
class Jump(ChangeByFactor):
    """Steps take longer."""

    workers: tuple[str, ...]
    factor: FactorOfSteps
    begin: int
    until: int | None = None
    cause: Cause = "script"

    def factors(self, step: Steps, trainees: Sequence[Trainee], draws: Sequence[int], limits: Limits) -> Matrix:
        return np.where(_lasting(step, self.begin, self.until), self.factor, 1.0)


@dataclass(frozen=True, slots=True)
class Drift(ChangeByFactor):
    """Steps become slower little by little.

    Own times grow steadily from once, at step `begin`, to `factor` times, at step `until`; so they stay.
    """

    workers: tuple[str, ...]
    factor: Annotated[Factor, said("In the end steps take this many times as long.")]
    begin: int
    until: int
    cause: Cause = "script"

    def lasts(self, first: int, end: int) -> bool:
        return end > self.begin

    def factors(self, step: Steps, trainees: Sequence[Trainee], draws: Sequence[int], limits: Limits) -> Matrix:
        done = np.clip((step - self.begin) / (self.until - self.begin), 0.0, 1.0)
        grown: Matrix = np.power(self.factor, done)
        return grown


@dataclass(frozen=True, slots=True)
class Interference(ChangeByFactor):
    """A neighbour comes and goes.

    In the first `busy` part of every `period` steps times are `factor` times as long, each worker's periods shifted at
    random if `scattered`.
    """

    workers: tuple[str, ...]
    factor: Annotated[Factor, said("Steps take this many times as long while it is busy.")]
    period: Annotated[PositiveCount, said("Steps from one coming to the next.")]
    busy: Annotated[Fraction, said("Part of the period in which it is busy, to the nearest step.")] = 0.5
    begin: int = 0
    until: int | None = None
    scattered: Annotated[bool, said("Whether each worker's neighbour comes at moments of its own.")] = False
    followed: Annotated[
        bool, said("Whether the oracle knows when the neighbour is busy; false: it knows the mean alone.")
    ] = False
    cause: Cause = "cpu-wait"

    @property
    def busy_steps(self) -> int:
        """In how many steps of a period it is busy: the nearest whole number, the greater one of two as near."""
        return math.floor(self.busy * self.period + 0.5)

    def factors(self, step: Steps, trainees: Sequence[Trainee], draws: Sequence[int], limits: Limits) -> Matrix:
        phases = np.zeros(1, dtype=np.int64)
        if self.scattered:
            columns = [trainee.column for trainee in trainees]
            phases = np.random.default_rng(draws).integers(self.period, size=max(columns) + 1)[columns]
        busy = (step - self.begin + phases) % self.period < self.busy_steps
        return np.where(_lasting(step, self.begin, self.until) & busy, self.factor, 1.0)

    def as_known(self, step: Steps, factors: Matrix) -> Matrix:
        if self.followed:
            return factors
        mean = 1 + self.busy_steps / self.period * (self.factor - 1)
        return np.where(_lasting(step, self.begin, self.until), mean, 1.0)


@dataclass(frozen=True, slots=True)
class LimitChange(ChangeOfTime):
    """The CPU limit changes.

    From step `at` on it is so many cores, and times are `(before / cores) ** elasticity` times as long. A worker of no
    limit before is as fast as `before` cores would make it (its own limit if it has one).
    """

    workers: tuple[str, ...]
    cores: Annotated[Cores, said("The new limit.")]
    at: int
    known: Annotated[bool, said("Whether the operator sees the new limit.")] = True
    elasticity: Annotated[
        float, said("1: time is inversely proportional to the limit; 0: the limit does not bind.", ge=0, le=2)
    ] = 1.0
    before: Annotated[
        Cores | None, said("The cores to which it is compared. Absent: the limit before, which is then required.")
    ] = None

    @property
    def cause(self) -> Cause:
        return "throttled"

    @property
    def whole_factor(self) -> float:
        return 1.0 if self.before is None else float((self.before / self.cores) ** self.elasticity)

    def lasts(self, first: int, end: int) -> bool:
        return end > self.at

    def factors(self, step: Steps, trainees: Sequence[Trainee], draws: Sequence[int], limits: Limits) -> Matrix:
        before = np.array([self._before(trainee, limits) or self.cores for trainee in trainees])
        return np.where(step >= self.at, np.power(before / self.cores, self.elasticity), 1.0)

    def _before(self, trainee: Trainee, limits: Limits) -> float | None:
        """The limit that it replaces."""
        if self.before is not None:
            return self.before
        limit = trainee.cpu_limit
        for other in limits:
            if other is self:
                return limit
            if other.concerns(trainee.name, trainee.group):
                limit = other.cores
        return limit


Limits = Sequence[LimitChange]


@dataclass(frozen=True, slots=True)
class WarmUp(ChangeOfTime):
    """Starting workers are slow; at whatever step they start.

    The first step is `factor` times as long, and what exceeds 1 falls to about a third (1/e) within every `steps`
    steps. The oracle does not know it.
    """

    workers: tuple[str, ...]
    factor: Annotated[float, said("Their first step takes this many times as long.", ge=1, le=1000)]
    steps: Annotated[float, said("What exceeds 1 falls to about a third within so many steps.", ge=0.01, le=1_000_000)]

    def factors(self, step: Steps, trainees: Sequence[Trainee], draws: Sequence[int], limits: Limits) -> Matrix:
        age = np.maximum(step - np.array([trainee.started_step for trainee in trainees]), 0)
        warming: Matrix = 1 + (self.factor - 1) * np.exp(-age / self.steps)
        return warming

    def as_known(self, step: Steps, factors: Matrix) -> Matrix:
        return np.ones((len(step), 1))


def _lasting(step: Steps, begin: int, until: int | None) -> npt.NDArray[np.bool_]:
    return (step >= begin) & (step < (math.inf if until is None else until))


@dataclass(frozen=True, slots=True)
class Influence:
    """What own times are multiplied with, by step and worker: in truth, and as the oracle knows. Of the former are
    `throttled` what a CPU limit does and `waiting` what others do who have the CPU; the rest is the worker's own work.
    """

    true: Matrix
    known: Matrix
    throttled: Matrix
    waiting: Matrix


class Influences:
    """Those among the events of a scenario."""

    def __init__(self, events: Sequence[Happening], seed: int) -> None:
        self._events = [event for event in events if isinstance(event, ChangeOfTime)]
        self.limits = sorted((e for e in self._events if isinstance(e, LimitChange)), key=lambda event: event.at)
        self._seed = seed
        self._trainees: Sequence[Trainee] = ()
        self._places: list[npt.NDArray[np.intp]] = []

    def of(self, first: int, count: int, trainees: Sequence[Trainee]) -> Influence | None:
        """Of `count` executed steps from `first` on, in matrices of shape (count, trainees). None: nothing changes any
        time.
        """
        if not self._events:
            return None
        if trainees != self._trainees:
            self._trainees = trainees
            self._places = [_places(event, trainees) for event in self._events]
        step = np.arange(first, first + count)[:, None]
        shape = count, len(trainees)
        found = Influence(np.ones(shape), np.ones(shape), np.ones(shape), np.ones(shape))
        for number, (event, places) in enumerate(zip(self._events, self._places, strict=True)):
            if len(places) and event.lasts(first, first + count):
                concerned = [trainees[place] for place in places]
                factors = event.factors(step, concerned, [self._seed, 3, number], self.limits)
                found.true[:, places] *= factors
                found.known[:, places] *= event.as_known(step, factors)
                if event.cause == "throttled":
                    found.throttled[:, places] *= factors
                elif event.cause == "cpu-wait":
                    found.waiting[:, places] *= factors
        return found

    def limit_of(self, name: str, group: str, begun: float | None, step: int) -> float | None:
        """The CPU limit in cores that the operator sees of a worker at a step, which it began with `begun`."""
        for event in self.limits:
            if event.at <= step and event.known and event.concerns(name, group):
                begun = event.cores
        return begun


def _places(event: ChangeOfTime, trainees: Sequence[Trainee]) -> npt.NDArray[np.intp]:
    found = [place for place, each in enumerate(trainees) if event.concerns(each.name, each.group)]
    return np.array(found, dtype=np.intp)
