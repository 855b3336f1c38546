"""What a scenario says of its workers: their times, noise, memory, limit and start."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from heterotrain_operator.api.base import MAX_SECONDS, Model, Name
from heterotrain_operator.clusters.simulated.scenario import MemoryUse, WorkerModel
from heterotrain_operator.experiments.scenarios.base import (
    MEBIBYTE,
    Cores,
    Factor,
    Mebibytes,
    PositiveMebibytes,
    Samples,
)
from heterotrain_operator.experiments.scenarios.laws import StepTime
from heterotrain_operator.experiments.scenarios.noises import Noise


class Memory(Model):
    """Peak memory by the batch that is computed at once; a worker whose peak exceeds its limit is killed."""

    fixed_mebibytes: Mebibytes = Field(default=0.0, description="What a step takes whatever its batch.")
    mebibytes_per_sample: Mebibytes = Field(description="What each sample takes.")
    limit_mebibytes: PositiveMebibytes | None = Field(
        default=None, description="The limit of the worker's container. Absent: none."
    )
    variation: Annotated[float, Field(ge=0, le=0.5)] = Field(
        default=0.01, description="By which part of them peaks vary at most, up and down."
    )

    def use(self) -> MemoryUse:
        """As the simulation takes it."""
        limit = self.limit_mebibytes
        return MemoryUse(
            self.fixed_mebibytes * MEBIBYTE,
            self.mebibytes_per_sample * MEBIBYTE,
            None if limit is None else limit * MEBIBYTE,
            self.variation,
        )


class WorkerBehaviour(Model):
    """How a worker behaves. What is not said of a single worker is that of its group, else that of all."""

    time: StepTime | None = Field(
        default=None, description="How long a step takes by its batch. Absent: 2 ms, and 1 ms for each sample."
    )
    scale: Factor | None = Field(default=None, description="Steps take this many times as long. Absent: 1.")
    spread: Annotated[float, Field(ge=0, le=2)] | None = Field(
        default=None,
        description="By how much workers of a group differ by nature: the coefficient of variation of their scales. "
        "Absent: not at all.",
    )
    noise: Noise | None = Field(default=None, description="How the times of steps vary. Absent: not at all.")
    memory: Memory | None = Field(default=None, description="Peak memory. Absent: not reported, and without bound.")
    cpu_limit: Cores | None = Field(
        default=None,
        description="CPU limit in cores, as the operator sees it; it does not make steps shorter by itself. Absent: "
        "that of the group's template, if it has one.",
    )
    start_seconds: Annotated[float, Field(ge=0, le=MAX_SECONDS)] | None = Field(
        default=None, description="Seconds that its start takes longer than others'. Absent: 0."
    )
    least_batch: Samples | None = Field(
        default=None, description="Fewest samples that its model trains well with, as workers report it. Absent: 1."
    )
    protocol: Literal[1, 3] | None = Field(
        default=None,
        description="How workers meet: 1, only when all of them start; 3, others join and leave while they train, and "
        "they go on without one that ends. Absent: 1.",
    )
    node: Name | None = Field(default=None, description="The node on which it runs. Absent: not known.")

    def model(self) -> WorkerModel:
        """As the simulation takes it. Raises ValueError if that refuses a number."""
        default = WorkerModel()
        return WorkerModel(
            law=default.law if self.time is None else self.time.law(),
            scale=default.scale if self.scale is None else self.scale,
            noise=default.noise if self.noise is None else self.noise.noise(),
            spread=default.spread if self.spread is None else self.spread,
            memory=None if self.memory is None else self.memory.use(),
            cpu_limit=self.cpu_limit,
            start_seconds=default.start_seconds if self.start_seconds is None else self.start_seconds,
            least_batch=default.least_batch if self.least_batch is None else self.least_batch,
            protocol=default.protocol if self.protocol is None else self.protocol,
            node=self.node or "",
        )


def merged(*least_to_most: WorkerBehaviour | None) -> WorkerBehaviour:
    """One behaviour of several, of which later ones have precedence, field by field."""
    fields: dict[str, object] = {}
    for each in least_to_most:
        if each is not None:
            given = {name: getattr(each, name) for name in type(each).model_fields}
            fields |= {name: value for name, value in given.items() if value is not None}
    return WorkerBehaviour().model_copy(update=fields)
