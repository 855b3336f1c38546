"""How the job starts, ends and is cleaned up."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from heterotrain_operator.api.base import MAX_REPLICAS, Count, Model, ObjectName, PositiveSeconds, Seconds


class SchedulingPolicy(Model):
    """Hints for a gang scheduler or queue."""

    min_available: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = Field(
        default=None, description="Workers that must be placed together. Absent: all of them."
    )
    queue_name: ObjectName | None = Field(default=None, description="Queue that the job waits in.")
    priority_class_name: ObjectName | None = Field(default=None, description="Priority class of the job in its queue.")
    schedule_timeout_seconds: PositiveSeconds | None = Field(
        default=None, description="The scheduler gives up placing the gang after so long."
    )


class RunPolicy(Model):
    """How the job starts, ends and is cleaned up."""

    suspend: bool = Field(
        default=False, description="Stop all workers (after a checkpoint) and start none until it is false."
    )
    clean_pod_policy: Literal["All", "Running", "None"] = Field(
        default="Running", description="Which pods are deleted when the job ends."
    )
    ttl_seconds_after_finished: Seconds | None = Field(
        default=None,
        description="The finished job is deleted after so long. Absent: it stays until somebody deletes it.",
    )
    active_deadline_seconds: PositiveSeconds | None = Field(
        default=None,
        description="The job fails once it was active for so long; starts again when a suspended job resumes. "
        "Absent: no limit.",
    )
    finish_deadline_seconds: PositiveSeconds = Field(
        default=3600,
        description="The job fails if its script has not ended on all workers so long after the last step. What it "
        "does then (a last test, an export, an upload) is no hang, and is never done twice.",
    )
    backoff_limit: Count = Field(
        default=3,
        description="How often a worker is replaced after ends by its own fault before the job fails, counted in each "
        "worker's place; and how often all workers start again from the last checkpoint, where the others cannot go "
        "on. A script that raises fails the job if it does so again at the same step, in another worker or after its "
        "one restart; where all would start again, at once without checkpoint.path. What befalls workers from outside "
        "does not count: preemption, eviction, a drained or lost node.",
    )
    startup_deadline_seconds: PositiveSeconds = Field(
        default=600,
        description="The job fails if its workers are not all at their loops after so long. One that has trained "
        "before waits on for pods that find no place, and is Degraded meanwhile. Pods behind a scheduling gate are "
        "waited for before that. If only some find places, they let them go after a quarter to half of it (at least 1 "
        "to 2 minutes) and try again.",
    )
    scheduling_policy: SchedulingPolicy | None = Field(
        default=None, description="Hints for a gang scheduler or queue. Absent: pods are placed one by one."
    )
