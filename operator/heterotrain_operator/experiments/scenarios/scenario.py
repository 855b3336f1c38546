"""A scenario as users write it: a job, the workers that it would have, and what happens to them meanwhile."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from heterotrain_operator.api.base import MAX_COUNT, MAX_PATH, MAX_STEPS, POLICY_NAME, SERVICE_NAME, Model, Text
from heterotrain_operator.experiments.scenarios.base import MAX_EVENTS, MAX_WORKER_NAMES
from heterotrain_operator.experiments.scenarios.communication import Communication
from heterotrain_operator.experiments.scenarios.events import Event
from heterotrain_operator.experiments.scenarios.noises import Noise
from heterotrain_operator.experiments.scenarios.timing import Timing
from heterotrain_operator.experiments.scenarios.workers import WorkerBehaviour

ALL = "all"
"""The name that stands for all workers."""

MAX_INTERVALS = 100_000
MAX_SEEDS = 1_000
MAX_POLICIES = 16

PolicyName = Annotated[str, Field(min_length=1, max_length=63, pattern=POLICY_NAME)]


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
    shared_noise: Noise | None = Field(
        default=None, description="How the times of all workers' steps vary alike, besides. Absent: not at all."
    )
    communication: Communication | None = Field(
        default=None, description="What exchanging gradients takes. Absent: nothing."
    )
    timing: Timing = Field(default_factory=Timing, description="How long things take beside steps.")
    checkpoint_steps: Annotated[int, Field(ge=0, le=MAX_COUNT)] = Field(
        default=0, description="Workers that fail go on from the last checkpoint; one is written every so many steps."
    )
    events: Annotated[tuple[Event, ...], Field(max_length=MAX_EVENTS)] = Field(
        default=(), description="What happens meanwhile."
    )
