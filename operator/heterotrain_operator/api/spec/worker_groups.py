"""Worker groups: pods alike in hardware, image, price and bounds, so that unlike ones can share one job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from heterotrain_operator.api.base import DNS_LABEL, MAX_BATCH, MAX_GROUP_NAME, MAX_REPLICAS, Batch, Model
from heterotrain_operator.api.problems import MAX_SPEC_BYTES, MAX_SPEC_VALUES, Problem
from heterotrain_operator.api.rule import Cel, Rule
from heterotrain_operator.api.template import MAX_ENTRIES, POD, template_problems
from heterotrain_operator.core.split.multiples import last_multiple, next_multiple

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
    multiple_of: Annotated[int, Field(ge=1, le=MAX_BATCH)] = Field(
        default=1,
        description="Batches of this group are multiples of it, for hardware that pads them to 8, 16 or 32 samples. Of "
        "the groups' multiples each must divide the next greater one, and the global batch must be a sum of such "
        "batches.",
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
    replicas: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] = Field(
        default=1,
        description="Workers of this group; between minReplicas and maxReplicas. 0 only where scaling may grow the "
        "group and another one has workers. Without effect where spec.replicas is set.",
    )
    min_replicas: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] | None = Field(
        default=None,
        description="Fewest workers of this group with which the job trains on. While it has fewer, no step is taken, "
        "and the job is Degraded, until others have joined; removing stragglers leaves so many, too. Absent: the job "
        "goes on with whoever is left, and removing leaves one.",
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
        description="Price of one worker of this group for one hour, in any one currency: status.cost says what the "
        "job has cost. Absent: its cost is not known.",
    )
    flops: Annotated[float, Field(gt=0, le=1e21)] | None = Field(
        default=None,
        description="Floating-point operations per second of one worker, in the precision it trains with; a "
        "hint for static batches where CPU cores say too little.",
    )
    template: dict[str, Any] = Field(
        description="Pod template (a whole core/v1 PodTemplateSpec), passed on; its first container trains. The API "
        f"server admits at most {MAX_ENTRIES} containers, variables, ports, mounts and volumes each, the operator "
        f"{MAX_SPEC_BYTES} bytes of spec as JSON with {MAX_SPEC_VALUES} values in all.",
        json_schema_extra={"properties": {"spec": POD}},
    )

    @property
    def most_replicas(self) -> int:
        """Workers that this group may ever have at once."""
        return self.replicas if self.max_replicas is None else self.max_replicas


WorkerGroups = tuple[WorkerGroup, ...]


def _unique_names(groups: WorkerGroups) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for index, group in enumerate(groups):
        if first.setdefault(group.name, index) != index:
            yield Problem(
                f"spec.workerGroups[{index}].name",
                f"must be unique, but {group.name!r} is also the name of workerGroups[{first[group.name]}]",
            )


UNIQUE_NAMES = Rule(
    ("spec.workerGroups[].name",),
    _unique_names,
    (
        Cel(
            "spec.workerGroups",
            "self.all(g, self.exists_one(other, other.name == g.name))",
            "names of worker groups must be unique",
        ),
    ),
)


def _batch_bounds_in_order(groups: WorkerGroups) -> Iterator[Problem]:
    for index, group in enumerate(groups):
        bounds = group.batch_size
        if bounds.max is not None and bounds.min > bounds.max:
            yield Problem(
                f"spec.workerGroups[{index}].batchSize.min",
                f"must be at most max, {bounds.max}, found {bounds.min}",
            )


BATCH_BOUNDS_IN_ORDER = Rule(
    ("spec.workerGroups[].batchSize",),
    _batch_bounds_in_order,
    (
        Cel(
            "spec.workerGroups[].batchSize",
            "!has(self.max) || self.min <= self.max",
            "batchSize.min must be at most batchSize.max",
        ),
    ),
)


def _batch_bounds_hold_a_multiple(groups: WorkerGroups) -> Iterator[Problem]:
    for index, group in enumerate(groups):
        bounds, multiple = group.batch_size, group.batch_size.multiple_of
        if bounds.max is None or multiple == 1 or bounds.min > bounds.max:
            continue
        if last_multiple(bounds.max, multiple) < max(next_multiple(bounds.min, multiple), multiple):
            yield Problem(
                f"spec.workerGroups[{index}].batchSize.multipleOf",
                f"between min and max, {bounds.min} and {bounds.max}, there must be a multiple of it, found {multiple}",
            )


BATCH_BOUNDS_HOLD_A_MULTIPLE = Rule(
    ("spec.workerGroups[].batchSize",),
    _batch_bounds_hold_a_multiple,
    (
        Cel(
            "spec.workerGroups[].batchSize",
            "!has(self.max) || self.min > self.max || (self.max >= self.multipleOf && self.max / self.multipleOf >= "
            "(self.min + self.multipleOf - 1) / self.multipleOf)",
            "between batchSize.min and batchSize.max there must be a multiple of batchSize.multipleOf",
        ),
    ),
)


def _multiples_divide_each_other(groups: WorkerGroups) -> Iterator[Problem]:
    multiples = [group.batch_size.multiple_of for group in groups]
    for index, multiple in enumerate(multiples):
        for other in multiples[:index]:
            if multiple % other and other % multiple:
                yield Problem(
                    f"spec.workerGroups[{index}].batchSize.multipleOf",
                    f"must be a multiple or a divisor of those of all groups, found {multiple} beside {other}",
                )
                break


MULTIPLES_DIVIDE_EACH_OTHER = Rule(
    ("spec.workerGroups[].batchSize",),
    _multiples_divide_each_other,
    (
        Cel(
            "spec.workerGroups",
            "self.all(g, self.all(h, g.batchSize.multipleOf % h.batchSize.multipleOf == 0 || "
            "h.batchSize.multipleOf % g.batchSize.multipleOf == 0))",
            "of the groups' batchSize.multipleOf each must divide the next greater one",
        ),
    ),
)


def _templates_are_sound(groups: WorkerGroups) -> Iterator[Problem]:
    for index, group in enumerate(groups):
        yield from template_problems(group.template, ("spec", "workerGroups", index, "template"))


TEMPLATES_ARE_SOUND = Rule(("spec.workerGroups[].template",), _templates_are_sound)
