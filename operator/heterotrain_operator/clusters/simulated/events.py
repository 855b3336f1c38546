"""What happens to workers while they train: their times change, they die, their metrics cannot be read.

Moments are executed steps, counted from 0 without ever going back, so every policy meets the same cluster at the same
step. Events that change times are in `influences.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, ClassVar, Protocol

import numpy as np
from pydantic import Field

from heterotrain_operator.api.base import MAX_SECONDS, MAX_STEPS, Fraction, Text
from heterotrain_operator.api.problems import Problem
from heterotrain_operator.clusters.simulated.described import (
    MAX_WORKER_NAMES,
    Choice,
    Step,
    WorkerName,
    Written,
    kind,
    said,
)
from heterotrain_operator.clusters.simulated.influences import (
    ChangeOfTime,
    Drift,
    Happening,
    Interference,
    Jump,
    LimitChange,
    WarmUp,
)
from heterotrain_operator.core.model import WorkerMetrics


class Process(Protocol):
    """What ends: the process of a simulated pod."""

    def end(self, exit_code: int, *, message: str = "", disrupted: bool = False, out_of_memory: bool = False) -> None:
        """It ends with that exit code."""
        ...


class EndOfWorker(Happening):
    """An event that ends workers' processes, `at` a step."""

    __slots__ = ()
    at: int

    def end(self, process: Process) -> None:
        """End one of them."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Preemption(EndOfWorker):
    """Pods are taken away.

    Others confirm it (a disruption), so no restart is counted.
    """

    workers: tuple[str, ...]
    at: int

    def end(self, process: Process) -> None:
        process.end(143, message="its node was taken away", disrupted=True)


@dataclass(frozen=True, slots=True)
class Death(EndOfWorker):
    """Processes end."""

    workers: tuple[str, ...]
    at: int
    exit_code: Annotated[int, said("With which exit code.", ge=1, le=255)] = 137
    out_of_memory: bool = False
    message: Annotated[Text, said("The last words.")] = ""

    def end(self, process: Process) -> None:
        process.end(self.exit_code, message=self.message, out_of_memory=self.out_of_memory)


@dataclass(frozen=True, slots=True)
class OutOfMemory(Happening):
    """Workers are killed for memory.

    In files it is a kind of its own, whatever workers used; in simulations, a death.
    """

    workers: tuple[str, ...]
    at: int

    def death(self) -> Death:
        """As it happens."""
        return Death(self.workers, self.at, out_of_memory=True, message="out of memory")


@dataclass(slots=True)
class Reader:
    """Who reads metrics: with draws of its own, the time, and what was last scraped of each pod, by UID, and when."""

    random: np.random.Generator
    now: float
    scraped: dict[str, tuple[float, WorkerMetrics]] = field(default_factory=dict)


class LossOfMetrics(Happening):
    """An event that keeps metrics from the operator."""

    __slots__ = ()
    problem: ClassVar[str] = ""
    """Why nobody's metrics can be read; empty: they can."""

    def read(self, uid: str, metrics: WorkerMetrics, reader: Reader) -> WorkerMetrics | None:
        """What is read of a pod's metrics; None: nothing."""
        return None


@dataclass(frozen=True, slots=True)
class Unreadable(LossOfMetrics):
    """Metrics cannot be read."""

    workers: tuple[str, ...]
    begin: int = 0
    until: int | None = None
    probability: Annotated[Fraction, said("Probability that one reading fails.")] = 1.0

    def read(self, uid: str, metrics: WorkerMetrics, reader: Reader) -> WorkerMetrics | None:
        return None if reader.random.random() < self.probability else metrics


@dataclass(frozen=True, slots=True)
class LateMetrics(LossOfMetrics):
    """Metrics are old.

    They are renewed now and then alone, as where a Prometheus server scrapes them.
    """

    workers: tuple[str, ...]
    every_seconds: Annotated[float, said("Seconds from one to the next.", ge=0.001, le=MAX_SECONDS)]
    begin: int = 0
    until: int | None = None

    def read(self, uid: str, metrics: WorkerMetrics, reader: Reader) -> WorkerMetrics | None:
        at, scraped = reader.scraped.get(uid, (-math.inf, metrics))
        if reader.now - at >= self.every_seconds:
            at, scraped = reader.now, metrics
            reader.scraped[uid] = at, scraped
        return scraped


@dataclass(frozen=True, slots=True)
class SourceDown(LossOfMetrics):
    """No metrics at all can be read."""

    problem: ClassVar[str] = "the source of metrics does not answer"

    begin: int
    until: int | None = None
    workers: tuple[str, ...] = ()


ClusterEvent = ChangeOfTime | EndOfWorker | LossOfMetrics


class EventChoice(Choice):
    """Something that happens to workers. Steps are counted as they are executed, those after a restart again."""

    beside: ClassVar[tuple[str, ...]] = ("at_step", "until_step", "workers")

    at_step: Step = Field(default=0, description="The step with which it begins.")
    until_step: Annotated[int, Field(ge=1, le=MAX_STEPS)] | None = Field(
        default=None, description="The step with which it is over. Absent: it stays."
    )
    workers: Annotated[tuple[WorkerName, ...], Field(max_length=MAX_WORKER_NAMES)] = Field(
        default=(), description="Groups, or single workers as <group>-<index>. Absent: all workers."
    )
    jump: Written[Jump] | None = kind(Jump)
    drift: Written[Drift] | None = kind(Drift)
    interference: Written[Interference] | None = kind(Interference)
    cpu_limit: Written[LimitChange] | None = kind(LimitChange)
    warm_up: Written[WarmUp] | None = kind(WarmUp)
    preemption: Written[Preemption] | None = kind(Preemption)
    death: Written[Death] | None = kind(Death)
    out_of_memory: Written[OutOfMemory] | None = kind(OutOfMemory)
    unreadable: Written[Unreadable] | None = kind(Unreadable)
    late_metrics: Written[LateMetrics] | None = kind(LateMetrics)
    source_down: Written[SourceDown] | None = kind(SourceDown)

    def problems(self, path: str) -> Iterator[Problem]:
        """What does not go together, by the fields that the kind has; there is exactly one kind."""
        ((name, chosen),) = self.given().items()
        known = {each.name: each for each in fields(chosen.of)}
        until = known.get("until")
        if self.until_step is not None:
            if until is None:
                yield Problem(f"{path}.untilStep", f"means nothing for {name}, which has no end")
            elif self.until_step <= self.at_step:
                yield Problem(f"{path}.untilStep", f"must be above atStep, {self.at_step}, found {self.until_step}")
        elif until is not None and until.default is MISSING:
            reason = f"is required for {name}: by then times have changed by the whole factor"
            yield Problem(f"{path}.untilStep", reason)
        if self.at_step and not {"at", "begin"} & set(known):
            yield Problem(f"{path}.atStep", f"means nothing for {name}, which begins with every start of a worker")
        if self.workers and known["workers"].default == ():
            yield Problem(f"{path}.workers", f"means nothing for {name}, which concerns everybody")

    def event(self, workers: Sequence[str]) -> ClusterEvent:
        """The event, for the workers by their names in the simulation; there is exactly one kind."""
        begin, until = self.at_step, self.until_step
        found: ClusterEvent | OutOfMemory
        found = self.chosen.value(workers=tuple(workers), at=begin, begin=begin, until=until)
        return found.death() if isinstance(found, OutOfMemory) else found
