"""Rules about how many workers a job has: in its groups, where scaling may change that, and as pods and in one plan.

A plan and the memory of decisions have to fit into one ConfigMap, so a job has at most as many workers as that holds.
"""

from __future__ import annotations

from collections.abc import Iterator

from heterotrain.contract import Member, Plan
from heterotrain_operator.api.base import MAX_BATCH, MAX_NAME, MAX_REPLICAS
from heterotrain_operator.api.job import HeteroTrainingJob
from heterotrain_operator.api.problems import Problem
from heterotrain_operator.api.rule import Cel, Rule
from heterotrain_operator.api.spec.worker_groups import WorkerGroup

CONFIG_MAP_BYTES = 2**20
"""What a ConfigMap's values may hold together. Source: Kubernetes 1.34, `ValidateConfigMap` in
`pkg/apis/core/validation/validation.go`, and `MaxSecretSize`, by which it judges.
"""

REST_BYTES = 4096
"""Bytes of a ConfigMap for what does not grow with the number of workers."""

MEMORY_BYTES = 128
"""Bytes of one worker's memory once it is packed; its some 200 digits, 220 of one that relapses, take half of that."""

_LONGEST_ADDRESS = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:29500"


def _member_bytes() -> int:
    """Bytes of a plan's member without the names of its job and (twice) its group, at the longest UID, address, index
    and batch.
    """

    def length(members: int) -> int:
        member = Member(f"--{MAX_REPLICAS - 1}", "0" * 36, _LONGEST_ADDRESS, "", MAX_BATCH, MAX_BATCH)
        return len(Plan(1, 1, "step", (member,) * members).to_json())

    return length(3) - length(2)


WORKER_BYTES = _member_bytes() + MEMORY_BYTES
"""Bytes of one worker in plan and memory, without those names."""

MOST_BYTES = CONFIG_MAP_BYTES - REST_BYTES


def bytes_of(job: str, group: WorkerGroup) -> int:
    """What one worker of the group takes at most, in bytes; `job` is the job's name."""
    return WORKER_BYTES + len(job) + 2 * len(group.name)


REPLICAS = ("spec.replicas", "spec.workerGroups[].replicas")
"""What the number of workers follows from, for the rules that read it."""


def cel_replicas(spec: str) -> str:
    """In CEL, the replicas that hold of a group `g`, as `JobSpec.sized_groups` has them; `spec` is the job's."""
    return f"(has({spec}.replicas) && {spec}.workerGroups.size() == 1 ? {spec}.replicas : g.replicas)"


def cel_most_replicas(spec: str) -> str:
    """In CEL, what `WorkerGroup.most_replicas` is of such a group."""
    return f"(has(g.maxReplicas) ? g.maxReplicas : {cel_replicas(spec)})"


def _replicas_are_of_one_group(job: HeteroTrainingJob) -> Iterator[Problem]:
    groups = len(job.spec.worker_groups)
    if job.spec.replicas is not None and groups != 1:
        yield Problem(
            "spec.replicas",
            f"only for jobs with one worker group, found {groups}; set spec.workerGroups[].replicas",
        )


REPLICAS_ARE_OF_ONE_GROUP = Rule(
    ("spec.replicas", "spec.workerGroups[].name"),
    _replicas_are_of_one_group,
    (
        Cel(
            "spec",
            "!has(self.replicas) || self.workerGroups.size() == 1",
            "spec.replicas is only for jobs with one worker group; set spec.workerGroups[].replicas",
        ),
    ),
)


def _replicas_in_bounds(job: HeteroTrainingJob) -> Iterator[Problem]:
    groups = job.spec.sized_groups
    named = "replicas" if job.spec.replicas is None or len(groups) != 1 else "spec.replicas"
    for index, group in enumerate(groups):
        where = f"spec.workerGroups[{index}]"
        if group.min_replicas is not None and group.min_replicas > group.replicas:
            yield Problem(
                f"{where}.minReplicas",
                f"must be at most {named}, {group.replicas}, found {group.min_replicas}",
            )
        if group.max_replicas is not None and group.max_replicas < group.replicas:
            yield Problem(
                f"{where}.maxReplicas",
                f"must be at least {named}, {group.replicas}, found {group.max_replicas}",
            )


REPLICAS_IN_BOUNDS = Rule(
    (*REPLICAS, "spec.workerGroups[].minReplicas", "spec.workerGroups[].maxReplicas"),
    _replicas_in_bounds,
    (
        Cel(
            "spec",
            f"self.workerGroups.all(g, !has(g.minReplicas) || g.minReplicas <= {cel_replicas('self')})",
            "minReplicas must be at most replicas",
        ),
        Cel(
            "spec",
            f"self.workerGroups.all(g, !has(g.maxReplicas) || g.maxReplicas >= {cel_replicas('self')})",
            "maxReplicas must be at least replicas",
        ),
    ),
)


def _empty_groups_can_grow(job: HeteroTrainingJob) -> Iterator[Problem]:
    empty = [index for index, group in enumerate(job.spec.sized_groups) if not group.replicas]
    scales, groups = job.spec.scaling.condition != "None", job.spec.worker_groups
    fixed = [index for index in empty if not (scales and groups[index].max_replicas)]
    for index in fixed:
        why = "must be at least 1, unless scaling may grow the group (condition and maxReplicas)"
        yield Problem(f"spec.workerGroups[{index}].replicas", why)
    if not fixed and len(empty) == len(groups):
        yield Problem("spec.workerGroups[0].replicas", "must be at least 1 in one of the groups")


EMPTY_GROUPS_CAN_GROW = Rule(
    (*REPLICAS, "spec.workerGroups[].maxReplicas", "spec.scaling.condition"),
    _empty_groups_can_grow,
    (
        Cel(
            "spec",
            f"self.workerGroups.all(g, {cel_replicas('self')} > 0 || (self.scaling.condition != 'None' && "
            f"has(g.maxReplicas))) && self.workerGroups.exists(g, {cel_replicas('self')} > 0)",
            "replicas may be 0 only where scaling may grow the group and another group has workers",
        ),
    ),
)


def _least_replicas(group: WorkerGroup) -> int:
    """Workers that scaling leaves a group."""
    return min(1, group.replicas) if group.min_replicas is None else group.min_replicas


def _scaling_can_change_something(job: HeteroTrainingJob) -> Iterator[Problem]:
    condition, groups = job.spec.scaling.condition, job.spec.sized_groups
    if condition == "None":
        return
    if not any(_least_replicas(group) < group.most_replicas for group in groups):
        yield Problem("spec.scaling.condition", "needs a group whose workers may be more or fewer: set maxReplicas")
    for index, group in enumerate(groups):
        if condition == "Utility" and group.price_per_hour is None:
            yield Problem(f"spec.workerGroups[{index}].pricePerHour", "is required for spec.scaling.condition Utility")


_CEL_LEAST = f"(has(g.minReplicas) ? g.minReplicas : {cel_replicas('self')} > 1 ? 1 : {cel_replicas('self')})"

SCALING_CAN_CHANGE_SOMETHING = Rule(
    (
        *REPLICAS,
        "spec.workerGroups[].minReplicas",
        "spec.workerGroups[].maxReplicas",
        "spec.workerGroups[].pricePerHour",
        "spec.scaling.condition",
    ),
    _scaling_can_change_something,
    (
        Cel(
            "spec",
            "self.scaling.condition == 'None' || "
            f"self.workerGroups.exists(g, {cel_most_replicas('self')} > {_CEL_LEAST})",
            "spec.scaling.condition needs a group whose workers may be more or fewer: set maxReplicas",
        ),
        Cel(
            "spec",
            "self.scaling.condition != 'Utility' || self.workerGroups.all(g, has(g.pricePerHour))",
            "spec.scaling.condition Utility needs the pricePerHour of every group",
        ),
    ),
)


def _pod_names_fit(job: HeteroTrainingJob) -> Iterator[Problem]:
    for index, group in enumerate(job.spec.sized_groups):
        longest = f"{job.metadata.name}-{group.name}-{group.most_replicas - 1}"
        if len(longest) > MAX_NAME:
            yield Problem(
                f"spec.workerGroups[{index}].name",
                f"its last pod would be {longest!r}: {len(longest)} characters, allowed are {MAX_NAME}",
            )


POD_NAMES_FIT = Rule(
    ("metadata.name", "spec.workerGroups[].name", *REPLICAS, "spec.workerGroups[].maxReplicas"),
    _pod_names_fit,
    (
        Cel(
            "",
            "self.spec.workerGroups.all(g, size(self.metadata.name) + size(g.name) + 2 + "
            f"size(string({cel_most_replicas('self.spec')} - 1)) <= {MAX_NAME})",
            f"names of pods, <job>-<group>-<index>, must have at most {MAX_NAME} characters",
        ),
    ),
)


def _plan_fits_into_a_config_map(job: HeteroTrainingJob) -> Iterator[Problem]:
    groups = job.spec.sized_groups
    workers = sum(group.most_replicas for group in groups)
    needed = sum(group.most_replicas * bytes_of(job.metadata.name, group) for group in groups)
    if needed > MOST_BYTES:
        yield Problem(
            "spec.workerGroups",
            f"{workers} workers are too many: their plan takes up to {needed} bytes of a ConfigMap, which holds "
            f"{MOST_BYTES}; with these names {MOST_BYTES * workers // needed} workers fit, and more with shorter ones",
        )


PLAN_FITS_INTO_A_CONFIG_MAP = Rule(
    ("metadata.name", "spec.workerGroups[].name", *REPLICAS, "spec.workerGroups[].maxReplicas"),
    _plan_fits_into_a_config_map,
    (
        Cel(
            "",
            f"self.spec.workerGroups.map(g, {cel_most_replicas('self.spec')} * "
            f"({WORKER_BYTES} + size(self.metadata.name) + 2 * size(g.name))).sum() <= {MOST_BYTES}",
            "too many workers: their plan does not fit into a ConfigMap; about 3000 do",
        ),
    ),
)
