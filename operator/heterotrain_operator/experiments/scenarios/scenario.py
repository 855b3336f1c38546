"""A scenario as users write it: a job, the workers that it would have, and what happens to them meanwhile."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from heterotrain_operator.api.base import MAX_COUNT, MAX_PATH, MAX_STEPS, POLICY_NAME, SERVICE_NAME, Model, Name, Text
from heterotrain_operator.clusters.simulated.communication import CommunicationChoice
from heterotrain_operator.clusters.simulated.described import (
    MAX_WORKER_NAMES,
    Cores,
    Duration,
    Factor,
    Samples,
    Written,
)
from heterotrain_operator.clusters.simulated.events import EventChoice
from heterotrain_operator.clusters.simulated.laws import StepTime
from heterotrain_operator.clusters.simulated.noise import NoiseChoice
from heterotrain_operator.clusters.simulated.scenario import MemoryUse, Timing, WorkerModel
from heterotrain_operator.experiments.scenarios import MAX_INTERVALS, MAX_SEEDS

ALL = "all"
"""The name that stands for all workers."""

MAX_EVENTS = 256
MAX_POLICIES = 16

PolicyName = Annotated[str, Field(min_length=1, max_length=63, pattern=POLICY_NAME)]


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
    noise: NoiseChoice | None = Field(default=None, description="How the times of steps vary. Absent: not at all.")
    memory: Written[MemoryUse] | None = Field(
        default=None, description="Peak memory. Absent: not reported, and without bound."
    )
    cpu_limit: Cores | None = Field(
        default=None,
        description="CPU limit in cores, as the operator sees it; it does not make steps shorter by itself. Absent: "
        "that of the group's template, if it has one.",
    )
    start_seconds: Duration | None = Field(
        default=None, description="Seconds that its start takes longer than others'. Absent: 0."
    )
    least_batch: Samples | None = Field(
        default=None, description="Fewest samples that its model trains well with, as workers report it. Absent: 1."
    )
    protocol: Annotated[int, Field(ge=1, le=3)] | None = Field(
        default=None,
        description="How workers meet: 1, only when all of them start; 2, others join and leave while they train; 3, "
        "they go on without one that ends, too. Absent: 1.",
    )
    node: Name | None = Field(default=None, description="The node on which it runs. Absent: not known.")

    def model(self) -> WorkerModel:
        """As the simulation takes it."""
        said = {
            name: getattr(self, name) for name in type(self).model_fields if name not in ("time", "noise", "memory")
        }
        given = {name: value for name, value in said.items() if value is not None}
        if self.time is not None:
            given["law"] = self.time.law()
        if self.noise is not None:
            given["noise"] = self.noise.chosen.value()
        if self.memory is not None:
            given["memory"] = self.memory.value()
        return WorkerModel(**given)


def merged(*least_to_most: WorkerBehaviour | None) -> WorkerBehaviour:
    """One behaviour of several, of which later ones have precedence, field by field."""
    fields: dict[str, object] = {}
    for each in least_to_most:
        if each is not None:
            given = {name: getattr(each, name) for name in type(each).model_fields}
            fields |= {name: value for name, value in given.items() if value is not None}
    return WorkerBehaviour().model_copy(update=fields)


class ScenarioFile(Model):
    """A simulated job, in one file."""

    name: Annotated[str, Field(min_length=1, max_length=40, pattern=SERVICE_NAME)] = Field(
        description="Name of the scenario, and of its job unless a manifest has another."
    )
    description: Text = Field(default="", description="What the scenario shows, in a sentence or two.")
    seed: Annotated[int, Field(ge=0, le=MAX_STEPS)] = Field(
        default=0, description="Seed of all that is left to chance: the same one gives the same steps."
    )
    seeds: Annotated[int, Field(ge=1, le=MAX_SEEDS)] = Field(
        default=1, description="How often each policy runs: with seed, seed + 1 and so on."
    )
    intervals: Annotated[int, Field(ge=1, le=MAX_INTERVALS)] = Field(
        default=100, description="Control intervals that are simulated, of batching.interval executed steps each."
    )
    policies: Annotated[tuple[PolicyName, ...], Field(max_length=MAX_POLICIES)] = Field(
        default=(), description="Policies to compare under the same noise. Absent: the job's own, and Uniform."
    )
    job: dict[str, Any] | None = Field(
        default=None,
        description="The spec of a HeteroTrainingJob (api-reference.md), in which workerGroups need no template and "
        "training no end: it lasts as long as the scenario. Set either this or manifest.",
    )
    manifest: Annotated[str, Field(min_length=1, max_length=MAX_PATH)] | None = Field(
        default=None, description="Path, from the scenario's folder, of a manifest whose job is simulated."
    )
    workers: Annotated[dict[str, WorkerBehaviour], Field(max_length=MAX_WORKER_NAMES)] = Field(
        default_factory=dict,
        description=f"How workers behave: by group, by single worker as <group>-<index>, or {ALL} for all of them.",
    )
    shared_noise: NoiseChoice | None = Field(
        default=None, description="How the times of all workers' steps vary alike, besides. Absent: not at all."
    )
    communication: CommunicationChoice | None = Field(
        default=None, description="What exchanging gradients takes. Absent: nothing."
    )
    timing: Written[Timing] = Field(default_factory=Written[Timing], description="How long things take beside steps.")
    checkpoint_steps: Annotated[int, Field(ge=0, le=MAX_COUNT)] = Field(
        default=0, description="Workers that fail go on from the last checkpoint; one is written every so many steps."
    )
    events: Annotated[tuple[EventChoice, ...], Field(max_length=MAX_EVENTS)] = Field(
        default=(), description="What happens meanwhile."
    )
