"""Worker groups: pods alike in hardware, image, price and bounds, so that unlike ones can share one job."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from heterotrain_operator.api.base import DNS_LABEL, MAX_BATCH, MAX_GROUP_NAME, MAX_REPLICAS, Batch, Model

Device = Literal["cpu", "gpu"]
OnMissingDevice = Literal["Fail", "UseCPU"]
Precision = Literal["float32", "bfloat16"]


class BatchBounds(Model):
    """Bounds of one worker's batch."""

    min: Annotated[int, Field(ge=0, le=MAX_BATCH)] = Field(
        default=1, description="Fewest samples per step that a worker of this group gets; 0 lets it idle."
    )
    max: Batch | None = Field(
        default=None,
        description="Most samples that a worker of this group computes at once. Absent: the global batch. Workers "
        "that together hold less than the global batch do their parts of it in several passes.",
    )


class WorkerGroup(Model):
    """Workers alike in hardware, image, price and bounds."""

    name: str = Field(
        min_length=1,
        max_length=MAX_GROUP_NAME,
        pattern=DNS_LABEL,
        description="Name of the group, unique in the job. Pods are named <job>-<group>-<index>, "
        "which must stay within 63 characters.",
    )
    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = Field(
        default=1, description="Workers of this group; between minReplicas and maxReplicas."
    )
    min_replicas: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] = Field(
        default=1,
        description="Fewest workers with which this group is complete enough. No effect yet: a job waits for all of "
        "its workers.",
    )
    max_replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = Field(
        default=None, description="Most workers to which scaling may grow this group. Absent: replicas."
    )
    device: Device = Field(default="cpu", description="What the workers of this group compute on.")
    on_missing_device: OnMissingDevice = Field(
        default="Fail",
        description="What a worker does that finds no such device: fail with a message, or use the CPU.",
    )
    precision: Precision = Field(
        default="float32",
        description="Arithmetic of forward and backward: float32, or bfloat16 by autocast. "
        "Gradients travel as float32 in either case.",
    )
    batch_size: BatchBounds = Field(
        default_factory=BatchBounds, description="Bounds of each worker's batch, in samples per step."
    )
    price_per_hour: Annotated[float, Field(ge=0, le=1e6)] | None = Field(
        default=None,
        description="Price of one worker of this group for one hour, in any one currency; for "
        "scaling by cost. No effect yet.",
    )
    flops: Annotated[float, Field(gt=0, le=1e21)] | None = Field(
        default=None,
        description="Floating-point operations per second of one worker, in the precision it trains with; a "
        "hint for static batches where CPU cores say too little.",
    )
    template: dict[str, Any] = Field(
        description="Pod template (a whole core/v1 PodTemplateSpec), passed on; its first container trains."
    )

    @property
    def most_replicas(self) -> int:
        """Workers that this group may ever have at once."""
        return self.replicas if self.max_replicas is None else self.max_replicas
