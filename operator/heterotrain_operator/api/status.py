"""What the operator reports of a job; nobody but the operator writes it, and it holds no heartbeat."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from heterotrain.contract import MAX_METRICS
from heterotrain_operator.api.base import (
    MAX_BATCH,
    MAX_COUNT,
    MAX_GROUP_NAME,
    MAX_GROUPS,
    MAX_NAME,
    MAX_REPLICAS,
    MAX_STEPS,
    MAX_TEXT,
    Count,
    Model,
    Text,
)

MAX_WORKERS_SHOWN = 256
"""Workers listed in the status; a longer list would make every update of it large."""

MAX_DEPARTURES = 16
MAX_SIZES = 32
MAX_COST = 1e15
MAX_CONDITIONS = 16
Timestamp = Annotated[str, Field(max_length=40, json_schema_extra={"format": "date-time"})]
Number = Annotated[int, Field(ge=0, le=MAX_STEPS)]


class ConditionStatus(Model):
    """One condition, in the manner of Kubernetes."""

    type: Annotated[str, Field(min_length=1, max_length=MAX_NAME)] = Field(
        description="Created, Running, Suspended, Succeeded, Failed, Balanced, Degraded or, unless stragglers are "
        "ignored, StragglersDetected; with spec.scaling.condition, ScalingBlocked; and as long as they hold, "
        "CheckpointNotDurable and Invalid."
    )
    status: Literal["True", "False", "Unknown"] = Field(description="Whether the condition holds.")
    reason: Annotated[str, Field(max_length=MAX_TEXT)] = Field(default="", description="Why, in one CamelCase word.")
    message: Annotated[str, Field(max_length=32768)] = Field(default="", description="Why, in a sentence.")
    observed_generation: Number | None = Field(
        default=None, description="Generation of the spec on which the condition rests."
    )
    last_transition_time: Timestamp | None = Field(default=None, description="When the status last changed.")


class StragglerStatus(Model):
    """The verdict that stands about a worker that is slow by fault."""

    slowdown: Annotated[float, Field(ge=0, le=MAX_COUNT)] = Field(
        description="Its own time over the one expected of it; two digits of it."
    )
    since_step: Number = Field(description="Committed step by which that began.")
    grounds: Annotated[str, Field(max_length=MAX_NAME)] = Field(
        description="What it was compared with: SlowerThanItself (the speed that it had when healthy, at its present "
        "batch and CPU limit) or TooSlowAtLeastBatch (the others, at the fewest samples that it may have)."
    )
    remedy: Annotated[str, Field(max_length=MAX_NAME)] = Field(
        description="What would help best: Rebalance, Replace, Remove or Ignore."
    )


class WorkerStatus(Model):
    """One worker as last seen."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)] = Field(description="Name of the pod.")
    group: Annotated[str, Field(max_length=MAX_GROUP_NAME)] = Field(description="Its worker group.")
    phase: Annotated[str, Field(max_length=MAX_NAME)] = Field(description="What it does, as it says itself.")
    state: Annotated[str, Field(max_length=MAX_NAME)] | None = Field(
        default=None,
        description="Where it is in its life: created, preparing, warm (ready to become a member), member (the plan "
        "names it), leaving (it is being deleted, or the plan names it no more) or gone.",
    )
    generation: Number | None = Field(
        default=None, description="Generation of the membership in which it trains. Absent: none yet."
    )
    joined_at_step: Number | None = Field(
        default=None,
        description="Committed steps when it joined others that trained. Absent: it started with all of them.",
    )
    joined_because: Text | None = Field(default=None, description="Why it joined them.")
    batch_size: Annotated[int, Field(ge=0, le=MAX_BATCH)] | None = Field(
        default=None, description="Samples per step in the active plan."
    )
    plan_version: Number | None = Field(default=None, description="Version of the plan that it follows.")
    own_milliseconds: Annotated[float, Field(ge=0, le=MAX_STEPS)] | None = Field(
        default=None, description="Its own time per step, without waiting for others; two digits of it."
    )
    waiting_percent: Annotated[int, Field(ge=0, le=100)] | None = Field(
        default=None, description="Share of its time that it waits for others, in percent."
    )
    cpu_throttled_percent: Annotated[int, Field(ge=0, le=100)] | None = Field(
        default=None,
        description="Share of the active plan's time for which its CPU limit held it back, in percent. Absent: not "
        "known.",
    )
    cpu_wait_percent: Annotated[int, Field(ge=0, le=100)] | None = Field(
        default=None,
        description="Share of the active plan's time that it waited for a CPU which others used, in percent. Absent: "
        "not known.",
    )
    slowed_by: Annotated[str, Field(max_length=MAX_NAME)] | None = Field(
        default=None,
        description="What explains its last slowdown, as long as that goes on: CPULimit (which is the same, but holds "
        "it back for longer: a fault, or a neighbour under the same limit), Neighbour (it waits for a CPU that others "
        "use), Computation (its steps take more CPU time) or Script (it waits for something of its own: input, "
        "output, a lock). A changed limit is not listed.",
    )
    straggler: StragglerStatus | None = Field(
        default=None, description="Why it counts as slow by fault. Absent: it does not."
    )
    replaced_by: Annotated[str, Field(max_length=MAX_NAME)] | None = Field(
        default=None, description="Worker that takes its place once it can, since it is a straggler. Absent: none."
    )
    replaces: Annotated[str, Field(max_length=MAX_NAME)] | None = Field(
        default=None, description="Straggler whose place it takes once it can. Absent: none."
    )
    max_batch_size: Annotated[int, Field(ge=0, le=MAX_BATCH)] | None = Field(
        default=None, description="Most samples at once that its memory is thought to hold. Absent: not known."
    )
    cpu_limit: Annotated[float, Field(ge=0, le=MAX_COUNT)] | None = Field(
        default=None, description="CPU cores that it may use now. Absent: as many as its node has."
    )
    updates: Number | None = Field(
        default=None,
        description="Updates of it that the parameter server has applied; two digits of it, as of the next three.",
    )
    staleness: Annotated[float, Field(ge=0, le=MAX_STEPS)] | None = Field(
        default=None, description="How many updates of others its own were behind, in the mean."
    )
    discarded: Number | None = Field(default=None, description="Updates of it that came too late, or were no numbers.")
    waited_seconds: Annotated[float, Field(ge=0, le=MAX_STEPS)] | None = Field(
        default=None, description="For how long the parameter server let it wait for slower workers."
    )
    node: Annotated[str, Field(max_length=253)] = Field(default="", description="Node on which it runs.")
    message: Text = Field(default="", description="Why it waits or how it ended.")


class ServerStatus(Model):
    """The parameter server as last seen."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)] = Field(description="Name of the pod.")
    phase: Annotated[str, Field(max_length=MAX_NAME)] = Field(description="What it does, as it says itself.")
    ends: Count | None = Field(
        default=None, description="Servers that have ended by their own fault, counted against backoffLimit."
    )
    node: Annotated[str, Field(max_length=253)] = Field(default="", description="Node on which it runs.")
    message: Text = Field(default="", description="Why it waits or how it ended.")


class DepartureStatus(Model):
    """A member that left others which train on."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)] = Field(description="Name of the pod.")
    step: Number = Field(description="Committed steps when it was left out.")
    time: Timestamp | None = Field(default=None, description="When it was left out.")
    reason: Text = Field(default="", description="Why it left.")
    replaced_by: Annotated[str, Field(max_length=MAX_NAME)] | None = Field(
        default=None, description="Worker that took its place. Absent: none so far."
    )


class ResumedFrom(Model):
    """The checkpoint of an earlier job of the same name that training went on from."""

    step: Number = Field(description="Its committed steps.")
    job_uid: Annotated[str, Field(max_length=MAX_NAME)] = Field(
        default="", description="UID of the job that wrote it. Empty: it does not say."
    )


class MeasuredStatus(Model):
    """One metric of an evaluation."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)] = Field(description="As the script calls it.")
    value: Annotated[float, Field(allow_inf_nan=False)] = Field(
        description="Over the whole data set; four digits of it."
    )


class EvaluationStatus(Model):
    """What the script measured last with session.evaluate()."""

    step: Number = Field(description="Committed steps of the model that was measured.")
    metrics: Annotated[tuple[MeasuredStatus, ...], Field(max_length=MAX_METRICS)] = Field(
        default=(),
        description="What it measured.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )


class GroupSize(Model):
    """How many workers of a group are wanted."""

    group: Annotated[str, Field(min_length=1, max_length=MAX_GROUP_NAME)] = Field(description="Name of the group.")
    workers: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] = Field(description="Workers of it.")


class SizePoint(Model):
    """What was measured at one size."""

    size: Text = Field(description="Workers by group, as 'gpu 2, spot 4'.")
    samples_per_second: Annotated[float, Field(ge=0)] = Field(description="Throughput; three digits of it.")
    step_milliseconds: Annotated[float, Field(ge=0)] = Field(description="Time of a whole step; three digits of it.")


class ScalingStatus(Model):
    """How many workers scaling has found, and from what."""

    sizes: Annotated[tuple[GroupSize, ...], Field(max_length=MAX_GROUPS)] = Field(
        default=(),
        description="Workers that are wanted now, by group.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["group"]},
    )
    at_rest: bool = Field(default=False, description="Whether the search is over.")
    points: Annotated[tuple[SizePoint, ...], Field(max_length=MAX_SIZES)] = Field(
        default=(),
        description="What was measured, by size.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    last_decision: Text = Field(default="", description="The last decision, in words and figures.")
    blocked: Text = Field(default="", description="What hinders it. Empty: nothing does.")


class GroupCost(Model):
    """What the pods of a worker group have cost."""

    group: Annotated[str, Field(min_length=1, max_length=MAX_GROUP_NAME)] = Field(description="Name of the group.")
    cost: Annotated[float, Field(ge=0, le=MAX_COST)] = Field(description="In the currency of its pricePerHour.")


class CostStatus(Model):
    """What a job has cost: each pod from its creation to its end, at the pricePerHour of its group. While the job
    lasts, two digits of it.
    """

    total: Annotated[float, Field(ge=0, le=MAX_COST)] | None = Field(
        default=None, description="Over all groups. Absent: one has no price."
    )
    groups: Annotated[tuple[GroupCost, ...], Field(max_length=MAX_GROUPS)] = Field(
        default=(),
        description="By group, of those that have a price.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["group"]},
    )


class JobStatus(Model):
    """What the operator reports of a job."""

    observed_generation: Number | None = Field(
        default=None, description="Generation of the spec on which this status rests."
    )
    phase: Literal["Created", "Invalid", "Running", "Restarting", "Suspended", "Succeeded", "Failed"] | None = Field(
        default=None,
        description="Where the job is in its life. Invalid: it asks for something impossible and was never started.",
    )
    ready: Annotated[str, Field(max_length=MAX_NAME)] | None = Field(
        default=None, description="Workers that train, of those wanted now, e.g. 3/4."
    )
    replicas: Annotated[int, Field(ge=0, le=MAX_GROUPS * MAX_REPLICAS)] | None = Field(
        default=None,
        description="Workers wanted now, over all groups: without stragglers that were removed, and as scaling has it.",
    )
    selector: Text | None = Field(
        default=None, description="Label selector of the workers' pods; autoscalers read it in the subresource scale."
    )
    step: Number | None = Field(default=None, description="Committed steps.")
    total_steps: Number | None = Field(default=None, description="Steps at the end of training, if known.")
    epoch: Number | None = Field(default=None, description="Passes over the data begun, from 0.")
    updates_per_second: Annotated[float, Field(ge=0, le=MAX_STEPS)] | None = Field(
        default=None, description="Updates of all workers in a second; two digits of it. Only with training.mode ASP."
    )
    server: ServerStatus | None = Field(
        default=None, description="The parameter server. Absent: the job has none, or none is there."
    )
    evaluation: EvaluationStatus | None = Field(default=None, description="The newest evaluation, if there is one.")
    imbalance_percent: Annotated[int, Field(ge=0, le=MAX_COUNT)] | None = Field(
        default=None, description="By how much the slowest worker's own time exceeds the mean, in percent."
    )
    plan_version: Number | None = Field(default=None, description="Version of the active plan.")
    plan_generation: Number | None = Field(default=None, description="Generation of the membership in the active plan.")
    global_batch_size: Annotated[int, Field(ge=0, le=MAX_BATCH)] | None = Field(
        default=None, description="Samples per step in the active plan."
    )
    resumed_from: ResumedFrom | None = Field(
        default=None,
        description="What an earlier job of this name has trained. Absent: training began at step 0, or at a "
        "checkpoint of this very job.",
    )
    restarts: Count | None = Field(
        default=None, description="Restarts of all workers after a fault of one, counted against backoffLimit."
    )
    scaling: ScalingStatus | None = Field(
        default=None, description="How many workers were found to pay. Absent: spec.scaling.condition is None."
    )
    cost: CostStatus | None = Field(
        default=None, description="What the job has cost so far. Absent: no group has a pricePerHour."
    )
    reason: Text | None = Field(default=None, description="Why the last decision was taken, in words and figures.")
    start_time: Timestamp | None = Field(
        default=None, description="Since when the job is active; set again when it resumes."
    )
    completion_time: Timestamp | None = Field(default=None, description="When the job succeeded or failed.")
    conditions: Annotated[tuple[ConditionStatus, ...], Field(max_length=MAX_CONDITIONS)] = Field(
        default=(),
        description="Conditions, one of each type.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    departures: Annotated[tuple[DepartureStatus, ...], Field(max_length=MAX_DEPARTURES)] | None = Field(
        default=None,
        description=f"The members that left others which train on, the newest {MAX_DEPARTURES} of them, oldest first. "
        "Absent: none.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    workers: Annotated[tuple[WorkerStatus, ...], Field(max_length=MAX_WORKERS_SHOWN)] = Field(
        default=(),
        description=f"The workers, at most {MAX_WORKERS_SHOWN} of them.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
