"""What happens to workers while a scenario runs: at which step, to whom, until when, and what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import Field

from heterotrain_operator.api.base import MAX_COUNT, MAX_SECONDS, MAX_STEPS, Fraction, Model, Text
from heterotrain_operator.api.problems import Problem
from heterotrain_operator.clusters.simulated import events
from heterotrain_operator.experiments.scenarios.base import MAX_WORKER_NAMES, Cores, Factor, Step, WorkerName
from heterotrain_operator.experiments.scenarios.choice import Choice

_FACTOR = Field(description="Steps take this many times as long.")
_CAUSE = "What their use of resources shows: their own script, throttling, or a CPU that somebody else has."
Cause = Literal["script", "throttled", "cpu-wait"]


class Jump(Model):
    """Steps take a factor longer from one step to the next; with untilStep, for some time."""

    factor: Factor = _FACTOR
    cause: Cause = Field(default="script", description=_CAUSE)


class Drift(Model):
    """Steps become slower or faster steadily from atStep to untilStep, and stay so."""

    factor: Factor = Field(description="In the end steps take this many times as long.")
    cause: Cause = Field(default="script", description=_CAUSE)


class Interference(Model):
    """A neighbour that comes and goes, at unchanged limits."""

    factor: Factor = Field(description="Steps take this many times as long while it is busy.")
    period: Annotated[int, Field(ge=1, le=MAX_COUNT)] = Field(description="Steps from one coming to the next.")
    busy: Fraction = Field(default=0.5, description="Part of the period in which it is busy, to the nearest step.")
    scattered: bool = Field(default=False, description="Whether each worker's neighbour comes at moments of its own.")
    followed: bool = Field(
        default=False,
        description="Whether the oracle knows when the neighbour is busy; false: it knows the mean alone.",
    )
    cause: Cause = Field(default="cpu-wait", description=_CAUSE)


class CpuLimit(Model):
    """The CPU limit is changed, as when a container is resized."""

    cores: Cores = Field(description="The new limit.")
    known: bool = Field(default=True, description="Whether the operator sees the new limit.")
    elasticity: Annotated[float, Field(ge=0, le=2)] = Field(
        default=1.0, description="1: time is inversely proportional to the limit; 0: the limit does not bind."
    )
    before: Cores | None = Field(
        default=None, description="The cores to which it is compared. Absent: the limit before, which is then required."
    )


class WarmUp(Model):
    """Workers that have just started are slow."""

    factor: Annotated[float, Field(ge=1, le=1000)] = Field(
        description="Their first step takes this many times as long."
    )
    steps: Annotated[float, Field(ge=0.01, le=1_000_000)] = Field(
        description="What exceeds 1 falls to about a third within so many steps."
    )


class Preemption(Model):
    """Pods are taken away, which is nobody's fault and counts as no restart."""


class Death(Model):
    """Processes end."""

    exit_code: Annotated[int, Field(ge=1, le=255)] = Field(default=137, description="With which exit code.")
    message: Text = Field(default="", description="The last words.")


class OutOfMemory(Model):
    """Workers are killed for memory, whatever they used."""


class Unreadable(Model):
    """Workers train on, but their metrics cannot be read."""

    probability: Fraction = Field(default=1.0, description="Probability that one reading fails.")


class LateMetrics(Model):
    """What is read of workers is renewed now and then alone, as where a Prometheus server scrapes them."""

    every_seconds: Annotated[float, Field(ge=0.001, le=MAX_SECONDS)] = Field(
        description="Seconds from one to the next."
    )


class SourceDown(Model):
    """The source of metrics does not answer, so nobody's can be read."""


class Event(Choice):
    """Something that happens to workers. Steps are counted as they are executed, those after a restart again."""

    at_step: Step = Field(default=0, description="The step with which it begins.")
    until_step: Annotated[int, Field(ge=1, le=MAX_STEPS)] | None = Field(
        default=None, description="The step with which it is over. Absent: it stays."
    )
    workers: Annotated[tuple[WorkerName, ...], Field(max_length=MAX_WORKER_NAMES)] = Field(
        default=(), description="Groups, or single workers as <group>-<index>. Absent: all workers."
    )
    jump: Jump | None = Field(default=None, description="Steps take longer.")
    drift: Drift | None = Field(default=None, description="Steps become slower little by little.")
    interference: Interference | None = Field(default=None, description="A neighbour comes and goes.")
    cpu_limit: CpuLimit | None = Field(default=None, description="The CPU limit changes.")
    warm_up: WarmUp | None = Field(default=None, description="Starting workers are slow; at whatever step they start.")
    preemption: Preemption | None = Field(default=None, description="Pods are taken away.")
    death: Death | None = Field(default=None, description="Processes end.")
    out_of_memory: OutOfMemory | None = Field(default=None, description="Workers are killed for memory.")
    unreadable: Unreadable | None = Field(default=None, description="Metrics cannot be read.")
    late_metrics: LateMetrics | None = Field(default=None, description="Metrics are old.")
    source_down: SourceDown | None = Field(default=None, description="No metrics at all can be read.")

    @classmethod
    def is_kind(cls, name: str) -> bool:
        """All but the moments and the workers."""
        return name not in ("at_step", "until_step", "workers")

    def problems(self, path: str) -> Iterator[Problem]:
        """What does not go together; there is exactly one kind."""
        (kind,) = self.given()
        chosen = self.chosen
        if self.until_step is not None:
            if isinstance(chosen, CpuLimit | WarmUp | Preemption | Death | OutOfMemory):
                yield Problem(f"{path}.untilStep", f"means nothing for {kind}, which has no end")
            elif self.until_step <= self.at_step:
                yield Problem(f"{path}.untilStep", f"must be above atStep, {self.at_step}, found {self.until_step}")
        elif isinstance(chosen, Drift):
            yield Problem(f"{path}.untilStep", "is required for drift: by then times have changed by the whole factor")
        if isinstance(chosen, WarmUp) and self.at_step:
            yield Problem(f"{path}.atStep", "means nothing for warmUp, which begins with every start of a worker")
        if isinstance(chosen, SourceDown) and self.workers:
            yield Problem(f"{path}.workers", "means nothing for sourceDown, which concerns everybody")

    @property
    def factor(self) -> float:
        """How many times as long it makes steps."""
        chosen = self.chosen
        if isinstance(chosen, Jump | Drift | Interference):
            return chosen.factor
        if isinstance(chosen, CpuLimit) and chosen.before is not None:
            return float((chosen.before / chosen.cores) ** chosen.elasticity)
        return 1.0

    def event(self, workers: Sequence[str]) -> events.ClusterEvent:
        """As the simulation takes it, for the workers by its names; there is exactly one kind."""
        names, begin, until, chosen = tuple(workers), self.at_step, self.until_step, self.chosen
        match chosen:
            case Jump():
                return events.Jump(names, chosen.factor, begin, until, chosen.cause)
            case Drift():
                assert until is not None
                return events.Drift(names, chosen.factor, begin, until, chosen.cause)
            case Interference():
                return events.Interference(
                    names,
                    chosen.factor,
                    chosen.period,
                    busy=chosen.busy,
                    begin=begin,
                    until=until,
                    scattered=chosen.scattered,
                    followed=chosen.followed,
                    cause=chosen.cause,
                )
            case CpuLimit():
                return events.LimitChange(names, chosen.cores, begin, chosen.known, chosen.elasticity, chosen.before)
            case WarmUp():
                return events.WarmUp(names, chosen.factor, chosen.steps)
            case Preemption():
                return events.Preemption(names, begin)
            case Death():
                return events.Death(names, begin, chosen.exit_code, message=chosen.message)
            case OutOfMemory():
                return events.Death(names, begin, out_of_memory=True, message="out of memory")
            case Unreadable():
                return events.Unreadable(names, begin, until, chosen.probability)
            case LateMetrics():
                return events.LateMetrics(names, chosen.every_seconds, begin, until)
            case _:
                return events.SourceDown(begin, until)
