"""Policies around training: stragglers, scaling, membership, checkpoints, metrics, and the run itself."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from heterotrain_operator.api.base import (
    ABSOLUTE_PATH,
    DATA_KEY,
    HTTP_URL,
    MAX_COUNT,
    MAX_PATH,
    MAX_POINTS,
    MAX_REPLICAS,
    MAX_TEXT,
    Batch,
    Count,
    Fraction,
    Model,
    ObjectName,
    PositiveSeconds,
    Seconds,
    Steps,
    Weight,
)


class Stragglers(Model):
    """Workers that are slow by fault rather than by design."""

    action: Literal["Ignore", "Report", "Replace"] = Field(
        default="Ignore", description="What is done about a persistent straggler."
    )
    threshold: Weight = Field(
        default=0.8,
        description="A worker below this fraction of the speed expected of it counts as a straggler.",
    )
    smoothing: Weight = Field(
        default=0.1, description="Weight of the newest value in the moving average of the relative speed."
    )
    max_replacements: Count = Field(default=3, description="Replacements over the whole job.")
    cooldown_seconds: Seconds = Field(default=60, description="Shortest time between two replacements.")


class UtilityPoint(Model):
    """One corner of the utility of finishing at a time."""

    seconds: Seconds = Field(description="Time from the job's start to its end.")
    value: Annotated[float, Field(ge=0, le=1e12)] = Field(
        description="What finishing then is worth, in the currency of pricePerHour."
    )


class Utility(Model):
    """What finishing at a time is worth."""

    form: Literal["Linear", "Concave", "Step"] = Field(
        default="Linear", description="How the utility runs between the points."
    )
    points: Annotated[tuple[UtilityPoint, ...], Field(max_length=MAX_POINTS)] = Field(
        default=(), description="Corners of the utility, in the order of time."
    )


class Scaling(Model):
    """When workers are added because they pay for themselves."""

    condition: Literal["None", "Throughput", "Utility"] = Field(
        default="None",
        description="None: the number of workers stays. Throughput: add while the relative gain of speed "
        "exceeds threshold. Utility: add while the gain of utility exceeds the cost.",
    )
    every_batches: Annotated[int, Field(ge=1, le=MAX_COUNT)] = Field(
        default=10, description="Committed steps between two decisions."
    )
    step: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = Field(
        default=4, description="Workers added or removed at once."
    )
    threshold: Fraction = Field(default=0.1, description="Least relative gain of speed per relative gain of workers.")
    utility: Utility = Field(
        default_factory=Utility, description="What finishing at a time is worth; for condition Utility."
    )
    global_batch: Literal["Fixed", "Grow"] = Field(
        default="Fixed",
        description="Whether the global batch stays as workers come and go, or grows up to maxGlobalBatchSize.",
    )
    max_global_batch_size: Batch | None = Field(
        default=None, description="Largest global batch, in samples; only with globalBatch Grow."
    )


class Membership(Model):
    """When a silent worker is given up."""

    heartbeat_timeout_seconds: PositiveSeconds = Field(
        default=5,
        description="With a worker without a heartbeat for so long the job is Degraded; the worker is given up as one "
        "that hangs is.",
    )
    progress_timeout_seconds: PositiveSeconds = Field(
        default=60,
        description="A worker with heartbeats but without a step for so long (at least) hangs. The first step after a "
        "start, evaluations, checkpoints and session.pause() may take startupDeadlineSeconds if that is longer.",
    )


class Checkpoint(Model):
    """What survives the workers."""

    every_steps: Steps = Field(default=100, description="Committed steps between two checkpoints.")
    keep: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=3, description="Checkpoints kept; older ones are removed."
    )
    path: Annotated[str, Field(min_length=1, max_length=MAX_PATH, pattern=ABSOLUTE_PATH)] | None = Field(
        default=None,
        description="Folder of checkpoints as the workers see it, on storage that they share; the job's are in a "
        "folder of its name in it. Absent: the job has no checkpoint that outlives it.",
    )
    resume: Literal["Auto", "Never"] = Field(
        default="Auto",
        description="Whether a job goes on from the checkpoints of an earlier one of its name. Never: it begins at "
        "step 0, and keeps its own, from which its restarts go on, in a folder of its UID. On one machine "
        "`heterotrain run` asks for --resume or --fresh instead.",
    )
    persistent_volume_claim: ObjectName | None = Field(
        default=None,
        description="Claim that a cluster mounts at path, which it needs. Absent: the template provides the storage.",
    )


class KeyRef(Model):
    """One key of a Secret or ConfigMap in the job's namespace."""

    name: ObjectName = Field(description="Name of the object.")
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=DATA_KEY)] = Field(description="Key in its data.")


class NameRef(Model):
    """An object in the job's namespace."""

    name: ObjectName = Field(description="Name of the object.")


class Prometheus(Model):
    """A Prometheus server to read metrics from."""

    url: Annotated[str, Field(max_length=MAX_TEXT, pattern=HTTP_URL)] = Field(
        default="",
        description="Address of the server, e.g. http://prometheus.monitoring:9090; source Prometheus needs it.",
    )
    secret_ref: KeyRef | None = Field(default=None, description="Secret with a bearer token. Absent: none is sent.")
    basic_auth_ref: NameRef | None = Field(
        default=None,
        description="Secret of type kubernetes.io/basic-auth, with the keys username and password; not beside "
        "secretRef. Absent: none are sent.",
    )
    ca_ref: KeyRef | None = Field(
        default=None,
        description="ConfigMap with the authority that signed the server's certificate. "
        "Absent: those that the operator's image trusts.",
    )
    max_age_seconds: PositiveSeconds = Field(default=30, description="Older samples are not used.")


class Metrics(Model):
    """Where the workers' metrics are read."""

    source: Literal["Pods", "Prometheus"] = Field(
        default="Pods", description="Read from the workers themselves, or from a Prometheus server."
    )
    prometheus: Prometheus = Field(default_factory=Prometheus, description="The server; for source Prometheus.")


class SchedulingPolicy(Model):
    """Hints for a gang scheduler or queue."""

    min_available: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = Field(
        default=None, description="Workers that must be placed together. Absent: the sum of minReplicas."
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
        description="The job fails once it was active for so long; starts anew when a suspended job resumes. "
        "Absent: no limit.",
    )
    backoff_limit: Count = Field(
        default=3,
        description="Restarts after a worker's own fault before the job fails. A worker that ends early restarts all "
        "workers from the last checkpoint; replacing one of them without a stop is not available yet. A script that "
        "raises fails the job if its one restart gets no further, or at once without checkpoint.path. What befalls "
        "workers from outside does not count: preemption, eviction, a drained or lost node.",
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
