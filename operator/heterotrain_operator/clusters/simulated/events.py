"""What happens to workers while they train: their times change, they die, their metrics cannot be read.

Moments are executed steps, counted from 0 without ever going back, so every policy meets the same cluster at the same
step. An event concerns the `workers` that it names, each by its own name or all of a group by the group's; with none
named, everybody.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from heterotrain_operator.clusters.simulated.valid import above, at_least, not_before, within

Cause = Literal["script", "throttled", "cpu-wait"]
"""Why a worker takes longer, as its use of resources shows: it computes more itself (or its device is slower, which
looks the same), its CPU limit holds it back, or it waits for a CPU that somebody else has."""


@dataclass(frozen=True, slots=True)
class Jump:
    """From step `begin` up to `until` (never: None) own times are `factor` times as long."""

    workers: tuple[str, ...]
    factor: float
    begin: int
    until: int | None = None
    cause: Cause = "script"

    def __post_init__(self) -> None:
        above(0, factor=self.factor)
        not_before(self.begin, self.until)


@dataclass(frozen=True, slots=True)
class Drift:
    """Own times grow steadily from once, at step `begin`, to `factor` times, at step `until`; so they stay."""

    workers: tuple[str, ...]
    factor: float
    begin: int
    until: int
    cause: Cause = "script"

    def __post_init__(self) -> None:
        above(0, factor=self.factor)
        not_before(self.begin, self.until)


@dataclass(frozen=True, slots=True)
class Interference:
    """A neighbour that comes and goes: in the first `busy` part of every `period` steps times are `factor` times as
    long, each worker's periods shifted at random if `scattered`.

    The oracle knows its mean alone; `followed`: it knows when the neighbour is busy.
    """

    workers: tuple[str, ...]
    factor: float
    period: int
    busy: float = 0.5
    begin: int = 0
    until: int | None = None
    scattered: bool = False
    followed: bool = False
    cause: Cause = "cpu-wait"

    def __post_init__(self) -> None:
        above(0, factor=self.factor)
        at_least(1, period=self.period)
        within(0, 1, busy=self.busy)
        not_before(self.begin, self.until)

    @property
    def busy_steps(self) -> int:
        """In how many steps of a period it is busy: the nearest whole number, the greater one of two as near."""
        return math.floor(self.busy * self.period + 0.5)

    @property
    def mean_factor(self) -> float:
        """Of a whole period."""
        return 1 + self.busy_steps / self.period * (self.factor - 1)


@dataclass(frozen=True, slots=True)
class LimitChange:
    """From step `at` on the CPU limit is so many cores, and times are `(before / cores) ** elasticity` times as long.

    Elasticity 0: the limit does not bind; 1: time is inversely proportional to it. A worker of no limit before is as
    fast as `before` cores would make it (its own limit if it has one). `known`: the operator sees the new limit.
    """

    workers: tuple[str, ...]
    cores: float
    at: int
    known: bool = True
    elasticity: float = 1.0
    before: float | None = None

    def __post_init__(self) -> None:
        above(0, cores=self.cores)
        at_least(0, at=self.at, elasticity=self.elasticity)
        if self.before is not None:
            above(0, before=self.before)


@dataclass(frozen=True, slots=True)
class WarmUp:
    """A worker that has just started is slow: its first step is `factor` times as long, and what exceeds 1 falls to
    about a third (1/e) within every `steps` steps.
    """

    workers: tuple[str, ...]
    factor: float
    steps: float

    def __post_init__(self) -> None:
        at_least(1, factor=self.factor)
        above(0, steps=self.steps)


@dataclass(frozen=True, slots=True)
class Preemption:
    """At step `at` the workers' pods are taken away, which others confirm (a disruption): no restart is counted."""

    workers: tuple[str, ...]
    at: int

    def __post_init__(self) -> None:
        at_least(0, at=self.at)


@dataclass(frozen=True, slots=True)
class Death:
    """At step `at` the workers' processes end with that exit code; `out_of_memory`: the kernel killed them."""

    workers: tuple[str, ...]
    at: int
    exit_code: int = 137
    out_of_memory: bool = False
    message: str = ""

    def __post_init__(self) -> None:
        at_least(0, at=self.at)
        within(1, 255, exit_code=self.exit_code)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """From step `begin` up to `until` each reading of a worker's metrics fails with that probability, by itself."""

    workers: tuple[str, ...]
    begin: int = 0
    until: int | None = None
    probability: float = 1.0

    def __post_init__(self) -> None:
        not_before(self.begin, self.until)
        within(0, 1, probability=self.probability)


@dataclass(frozen=True, slots=True)
class LateMetrics:
    """From step `begin` up to `until` what is read of a worker is renewed every so many seconds alone, as where a
    Prometheus server scrapes it.
    """

    workers: tuple[str, ...]
    every_seconds: float
    begin: int = 0
    until: int | None = None

    def __post_init__(self) -> None:
        above(0, every_seconds=self.every_seconds)
        not_before(self.begin, self.until)


@dataclass(frozen=True, slots=True)
class SourceDown:
    """From step `begin` up to `until` the source of metrics does not answer, so nobody's can be read."""

    begin: int
    until: int | None = None

    def __post_init__(self) -> None:
        not_before(self.begin, self.until)

    @property
    def workers(self) -> tuple[str, ...]:
        """Everybody."""
        return ()


ChangeOfTime = Jump | Drift | Interference | LimitChange | WarmUp
"""Events that make own times longer or shorter."""

EndOfWorker = Preemption | Death
"""Events that end workers' processes."""

LossOfMetrics = Unreadable | LateMetrics | SourceDown
"""Events that keep metrics from the operator."""

ClusterEvent = ChangeOfTime | EndOfWorker | LossOfMetrics
