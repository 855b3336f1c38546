"""How events lengthen own times, as factors by step and worker; with what the oracle knows of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heterotrain_operator.clusters.simulated.draws import Matrix
from heterotrain_operator.clusters.simulated.events import (
    Cause,
    ChangeOfTime,
    Drift,
    Interference,
    Jump,
    LimitChange,
    WarmUp,
)
from heterotrain_operator.clusters.simulated.scenario import Scenario

Steps = npt.NDArray[np.int64]


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
    """The events of a scenario that make own times longer or shorter."""

    def __init__(self, scenario: Scenario) -> None:
        self._events = [event for event in scenario.events if isinstance(event, ChangeOfTime)]
        self.limits = sorted((e for e in self._events if isinstance(e, LimitChange)), key=lambda event: event.at)
        self._seed = scenario.seed
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
        steps = np.arange(first, first + count)
        shape = count, len(trainees)
        found = Influence(np.ones(shape), np.ones(shape), np.ones(shape), np.ones(shape))
        for number, (event, places) in enumerate(zip(self._events, self._places, strict=True)):
            if len(places) and not _is_over(event, first, first + count):
                factors, as_known = self._factors(number, event, steps, [trainees[place] for place in places])
                found.true[:, places] *= factors
                found.known[:, places] *= as_known
                cause = _cause(event)
                if cause == "throttled":
                    found.throttled[:, places] *= factors
                elif cause == "cpu-wait":
                    found.waiting[:, places] *= factors
        return found

    def limit_of(self, name: str, group: str, begun: float | None, step: int) -> float | None:
        """The CPU limit in cores that the operator sees of a worker at a step, which it began with `begun`."""
        for event in self.limits:
            if event.at <= step and event.known and concerns(event.workers, name, group):
                begun = event.cores
        return begun

    def _factors(
        self, number: int, event: ChangeOfTime, steps: Steps, trainees: Sequence[Trainee]
    ) -> tuple[Matrix, Matrix]:
        """Of one event, in truth and as the oracle knows; in shapes that fit (steps, trainees)."""
        step = steps[:, None]
        match event:
            case Jump():
                found = np.where(_lasting(step, event.begin, event.until), event.factor, 1.0)
            case Drift():
                found = np.power(event.factor, np.clip((step - event.begin) / (event.until - event.begin), 0.0, 1.0))
            case Interference():
                lasting = _lasting(step, event.begin, event.until)
                busy = (step - event.begin + self._phases(number, event, trainees)) % event.period
                found = np.where(lasting & (busy < event.busy_steps), event.factor, 1.0)
                if not event.followed:
                    return found, np.where(lasting, event.mean_factor, 1.0)
            case LimitChange():
                before = [self._before(event, trainee) or event.cores for trainee in trainees]
                found = np.where(step >= event.at, np.power(np.array(before) / event.cores, event.elasticity), 1.0)
            case WarmUp():
                age = np.maximum(step - np.array([trainee.started_step for trainee in trainees]), 0)
                return 1 + (event.factor - 1) * np.exp(-age / event.steps), np.ones((len(steps), 1))
        return found, found

    def _phases(self, number: int, event: Interference, trainees: Sequence[Trainee]) -> Steps:
        if not event.scattered:
            return np.zeros(1, dtype=np.int64)
        random = np.random.default_rng([self._seed, 3, number])
        drawn = random.integers(event.period, size=max(trainee.column for trainee in trainees) + 1)
        return drawn[[trainee.column for trainee in trainees]]

    def _before(self, event: LimitChange, trainee: Trainee) -> float | None:
        """The limit that a change replaces."""
        if event.before is not None:
            return event.before
        limit = trainee.cpu_limit
        for other in self.limits:
            if other is event:
                return limit
            if concerns(other.workers, trainee.name, trainee.group):
                limit = other.cores
        return limit


def concerns(workers: Sequence[str], name: str, group: str) -> bool:
    """Whether an event of those workers and groups concerns a worker; one of nobody in particular, everybody."""
    return not workers or name in workers or group in workers


def _cause(event: ChangeOfTime) -> Cause:
    match event:
        case LimitChange():
            return "throttled"
        case WarmUp():
            return "script"
        case _:
            return event.cause


def _lasting(steps: Steps, begin: int, until: int | None) -> npt.NDArray[np.bool_]:
    return (steps >= begin) & (steps < (math.inf if until is None else until))


def _is_over(event: ChangeOfTime, first: int, end: int) -> bool:
    """Whether it changes nothing from step `first` up to `end`."""
    match event:
        case Jump(_, _, begin, until) | Interference(_, _, _, _, begin, until):
            return end <= begin or (until is not None and first >= until)
        case Drift(_, _, begin):
            return end <= begin
        case LimitChange(_, _, at):
            return end <= at
        case WarmUp():
            return False


def _places(event: ChangeOfTime, trainees: Sequence[Trainee]) -> npt.NDArray[np.intp]:
    found = [place for place, each in enumerate(trainees) if concerns(event.workers, each.name, each.group)]
    return np.array(found, dtype=np.intp)
