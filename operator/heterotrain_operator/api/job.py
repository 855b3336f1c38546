"""The resource itself: HeteroTrainingJob, from whose models the CRD, its reference and all checks come."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from heterotrain_operator.api.base import (
    DNS_LABEL,
    MAX_GROUPS,
    MAX_NAME,
    MAX_REPLICAS,
    MAX_STEPS,
    SERVICE_NAME,
    Model,
    Name,
)
from heterotrain_operator.api.spec.batching import Batching
from heterotrain_operator.api.spec.checkpoint import Checkpoint
from heterotrain_operator.api.spec.membership import Membership
from heterotrain_operator.api.spec.metrics import Metrics
from heterotrain_operator.api.spec.parameter_server import ParameterServer
from heterotrain_operator.api.spec.run_policy import RunPolicy
from heterotrain_operator.api.spec.scaling import Scaling
from heterotrain_operator.api.spec.stragglers import Stragglers
from heterotrain_operator.api.spec.training import Training
from heterotrain_operator.api.spec.worker_groups import WorkerGroup
from heterotrain_operator.api.status import JobStatus
from heterotrain_operator.core.model import SERVER_GROUP

API_VERSION = "heterotrain.dev/v1alpha1"
KIND = "HeteroTrainingJob"


class ObjectMeta(Model):
    """The metadata of a job: what users set, and what a cluster adds when it shows the object."""

    name: str = Field(
        min_length=1,
        max_length=MAX_NAME - len("-g-0"),
        pattern=SERVICE_NAME,
        description="Name of the job, and of the Service over its workers, hence it begins with a letter; "
        "pods are named <job>-<group>-<index>.",
    )
    namespace: Annotated[str, Field(min_length=1, max_length=MAX_NAME, pattern=DNS_LABEL)] | None = Field(
        default=None, description="Namespace of the job."
    )
    labels: dict[str, str] = Field(default_factory=dict, description="Labels of the job.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations of the job.")
    generate_name: Name | None = Field(default=None, description="Set by the cluster.")
    uid: Name | None = Field(default=None, description="Set by the cluster.")
    resource_version: Name | None = Field(default=None, description="Set by the cluster.")
    generation: Annotated[int, Field(ge=0, le=MAX_STEPS)] | None = Field(
        default=None, description="Set by the cluster; grows with every change of the spec."
    )
    creation_timestamp: Name | None = Field(default=None, description="Set by the cluster.")
    deletion_timestamp: Name | None = Field(default=None, description="Set by the cluster.")
    deletion_grace_period_seconds: int | None = Field(default=None, description="Set by the cluster.")
    finalizers: tuple[str, ...] = Field(default=(), description="Who must agree before the job is gone.")
    owner_references: tuple[dict[str, Any], ...] = Field(default=(), description="What the job belongs to.")
    managed_fields: tuple[dict[str, Any], ...] = Field(default=(), description="Set by the cluster.")
    self_link: Name | None = Field(default=None, description="Set by old clusters.")


class JobSpec(Model):
    """What the user wants."""

    worker_groups: Annotated[tuple[WorkerGroup, ...], Field(min_length=1, max_length=MAX_GROUPS)] = Field(
        description="The groups of workers; each is alike in hardware, image, price and bounds.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = Field(
        default=None,
        description="Workers of the job's only group, in place of that group's own replicas, which are then without "
        "effect; kubectl scale and autoscalers write it. Only for jobs with one worker group.",
    )
    training: Training = Field(description="What is trained and until when.")
    parameter_server: ParameterServer | None = Field(
        default=None, description="The pod that holds the model. Required with training.mode ASP, and only with that."
    )
    batching: Batching = Field(default_factory=Batching, description="How the global batch is split over the workers.")
    stragglers: Stragglers = Field(
        default_factory=Stragglers, description="Workers that are slow by fault rather than by design."
    )
    scaling: Scaling = Field(
        default_factory=Scaling, description="When workers are added because they pay for themselves."
    )
    membership: Membership = Field(default_factory=Membership, description="When a silent worker is given up.")
    checkpoint: Checkpoint = Field(default_factory=Checkpoint, description="What survives the workers.")
    metrics: Metrics = Field(default_factory=Metrics, description="Where the workers' metrics are read.")
    run_policy: RunPolicy = Field(default_factory=RunPolicy, description="How the job starts, ends and is cleaned up.")

    @property
    def sized_groups(self) -> tuple[WorkerGroup, ...]:
        """The worker groups with the replicas that hold: whoever asks for the number of workers asks these.

        `replicas` of the job replace those of its only group; of several groups each keeps its own.
        """
        if self.replicas is None or len(self.worker_groups) != 1:
            return self.worker_groups
        (only,) = self.worker_groups
        return (only.model_copy(update={"replicas": self.replicas}),)

    @property
    def server_group(self) -> WorkerGroup | None:
        """The parameter server as a group of one pod, `<job>-server-0`; None if the job has none.

        Without a template of its own it is as a worker of the first group. With one, it does without a device that it
        does not find, since nobody has said that it has one.
        """
        server, first = self.parameter_server, self.worker_groups[0]
        if server is None:
            return None
        own = {} if server.template is None else {"template": server.template, "on_missing_device": "UseCPU"}
        known = {"name": SERVER_GROUP, "replicas": 1, "price_per_hour": server.price_per_hour}
        return first.model_copy(update={**known, **own})

    @property
    def pod_groups(self) -> tuple[WorkerGroup, ...]:
        """The groups of all pods of the job: those of the workers, and the parameter server's, if it has one."""
        server = self.server_group
        return (*self.worker_groups, *([] if server is None else [server]))

    @property
    def templates(self) -> tuple[tuple[str, tuple[str | int, ...], dict[str, Any]], ...]:
        """All pod templates that the job holds: the name of the group, the path, and the template."""
        found: list[tuple[str, tuple[str | int, ...], dict[str, Any]]] = []
        for index, group in enumerate(self.worker_groups):
            found.append((group.name, ("spec", "workerGroups", index, "template"), group.template))
        if self.parameter_server is not None and self.parameter_server.template is not None:
            found.append((SERVER_GROUP, ("spec", "parameterServer", "template"), self.parameter_server.template))
        return tuple(found)

    @property
    def total_replicas(self) -> int:
        """Workers wanted, over all groups."""
        return sum(group.replicas for group in self.sized_groups)

    @property
    def global_batch_size(self) -> int:
        """Samples per step over all workers; 0 if the job does not say."""
        if self.training.global_batch_size is not None:
            return self.training.global_batch_size
        return (self.training.batch_size_per_worker or 0) * self.total_replicas


class HeteroTrainingJob(Model):
    """One PyTorch model, trained by unequal workers as by one good machine."""

    api_version: Literal["heterotrain.dev/v1alpha1"] = Field(description="Version of this schema.")
    kind: Literal["HeteroTrainingJob"] = Field(description="Kind of this object.")
    metadata: ObjectMeta = Field(description="Standard metadata of the object.")
    spec: JobSpec = Field(description="What the user wants.")
    status: JobStatus | None = Field(default=None, description="What the operator reports; users leave it out.")
