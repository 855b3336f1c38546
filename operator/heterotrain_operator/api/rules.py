"""All rules of a job, in the order in which they are judged: those of one section, and those between sections.

How many workers a job may have is one of them: as many as fit, with the plan and the memory of decisions, into one
ConfigMap.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from heterotrain.contract import Member, Plan
from heterotrain_operator.api.base import MAX_BATCH, MAX_NAME, MAX_REPLICAS
from heterotrain_operator.api.job import HeteroTrainingJob, JobSpec
from heterotrain_operator.api.problems import Problem, render_path
from heterotrain_operator.api.rule import Cel, Rule
from heterotrain_operator.api.spec import batching, checkpoint, metrics, scaling, training, worker_groups
from heterotrain_operator.api.spec.worker_groups import WorkerGroup
from heterotrain_operator.api.template import template_problems
from heterotrain_operator.core.model import SERVER_GROUP
from heterotrain_operator.core.split.multiples import divide_each_other, last_multiple, next_multiple, unreachable
from heterotrain_operator.core.split.passes import in_passes

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


_REPLICAS = ("spec.replicas", "spec.workerGroups[].replicas")
"""What the number of workers follows from, for the rules that read it."""


def _cel_replicas(spec: str) -> str:
    """In CEL, the replicas that hold of a group `g`, as `JobSpec.sized_groups` has them; `spec` is the job's."""
    return f"(has({spec}.replicas) && {spec}.workerGroups.size() == 1 ? {spec}.replicas : g.replicas)"


def _cel_most_replicas(spec: str) -> str:
    """In CEL, what `WorkerGroup.most_replicas` is of such a group."""
    return f"(has(g.maxReplicas) ? g.maxReplicas : {_cel_replicas(spec)})"


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
    (*_REPLICAS, "spec.workerGroups[].minReplicas", "spec.workerGroups[].maxReplicas"),
    _replicas_in_bounds,
    (
        Cel(
            "spec",
            f"self.workerGroups.all(g, !has(g.minReplicas) || g.minReplicas <= {_cel_replicas('self')})",
            "minReplicas must be at most replicas",
        ),
        Cel(
            "spec",
            f"self.workerGroups.all(g, !has(g.maxReplicas) || g.maxReplicas >= {_cel_replicas('self')})",
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
    (*_REPLICAS, "spec.workerGroups[].maxReplicas", "spec.scaling.condition"),
    _empty_groups_can_grow,
    (
        Cel(
            "spec",
            f"self.workerGroups.all(g, {_cel_replicas('self')} > 0 || (self.scaling.condition != 'None' && "
            f"has(g.maxReplicas))) && self.workerGroups.exists(g, {_cel_replicas('self')} > 0)",
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


_CEL_LEAST = f"(has(g.minReplicas) ? g.minReplicas : {_cel_replicas('self')} > 1 ? 1 : {_cel_replicas('self')})"

SCALING_CAN_CHANGE_SOMETHING = Rule(
    (
        *_REPLICAS,
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
            f"self.workerGroups.exists(g, {_cel_most_replicas('self')} > {_CEL_LEAST})",
            "spec.scaling.condition needs a group whose workers may be more or fewer: set maxReplicas",
        ),
        Cel(
            "spec",
            "self.scaling.condition != 'Utility' || self.workerGroups.all(g, has(g.pricePerHour))",
            "spec.scaling.condition Utility needs the pricePerHour of every group",
        ),
    ),
)


def _growth_has_a_meaning(job: HeteroTrainingJob) -> Iterator[Problem]:
    spec = job.spec
    own, most = spec.training.global_batch_size, spec.scaling.max_global_batch_size
    if spec.scaling.global_batch != "Grow":
        return
    if spec.training.steps is not None:
        yield Problem(
            "spec.training.steps",
            "counts steps whose samples would change with scaling.globalBatch Grow; use epochs",
        )
    if own is None and spec.training.batch_size_per_worker is not None:
        yield Problem(
            "spec.training.batchSizePerWorker",
            "grows with replicas already; scaling.globalBatch Grow needs globalBatchSize, which it begins at",
        )
    if not spec.batching.fixed_global_batch:
        yield Problem(
            "spec.batching.fixedGlobalBatch",
            "must be true with scaling.globalBatch Grow: else two rules would change the global batch",
        )
    if own is not None and most is not None and most < own:
        yield Problem("spec.scaling.maxGlobalBatchSize", f"must be at least globalBatchSize, {own}, found {most}")


_GROWS = "self.scaling.globalBatch != 'Grow'"

GROWTH_HAS_A_MEANING = Rule(
    (
        "spec.scaling.globalBatch",
        "spec.scaling.maxGlobalBatchSize",
        "spec.training.steps",
        "spec.training.globalBatchSize",
        "spec.batching.fixedGlobalBatch",
    ),
    _growth_has_a_meaning,
    (
        Cel(
            "spec",
            f"{_GROWS} || (!has(self.training.steps) && has(self.training.globalBatchSize)"
            " && self.batching.fixedGlobalBatch)",
            "scaling.globalBatch Grow needs training.epochs, training.globalBatchSize and batching.fixedGlobalBatch",
        ),
        Cel(
            "spec",
            "!has(self.scaling.maxGlobalBatchSize) || !has(self.training.globalBatchSize)"
            " || self.scaling.maxGlobalBatchSize >= self.training.globalBatchSize",
            "scaling.maxGlobalBatchSize must be at least training.globalBatchSize",
        ),
    ),
)


def _server_fits_mode(job: HeteroTrainingJob) -> Iterator[Problem]:
    spec = job.spec
    if spec.training.mode != "ASP":
        if spec.parameter_server is not None:
            yield Problem("spec.parameterServer", "is only for spec.training.mode ASP")
        if spec.batching.balance == "Cycle":
            yield Problem(
                "spec.batching.balance", "Cycle is only for spec.training.mode ASP: else all cycles are alike"
            )
        return
    if spec.parameter_server is None:
        yield Problem("spec.parameterServer", "is required for spec.training.mode ASP; {} is enough")
    asked = spec.training.asynchronous
    if spec.batching.balance == "Cycle" and asked is not None and asked.max_staleness is not None:
        yield Problem(
            "spec.batching.balance",
            "must be Compute with spec.training.asynchronous.maxStaleness, whose waits would make all cycles alike",
        )
    if spec.scaling.condition != "None":
        yield Problem("spec.scaling.condition", "must be None with spec.training.mode ASP: sizes are compared by steps")
    if spec.scaling.global_batch == "Grow":
        yield Problem(
            "spec.scaling.globalBatch", "must be Fixed with spec.training.mode ASP: no step has a global batch"
        )
    for index, group in enumerate(spec.worker_groups):
        if group.name == SERVER_GROUP:
            yield Problem(f"spec.workerGroups[{index}].name", f"{SERVER_GROUP} is the parameter server's")


_IS_ASP = "self.training.mode == 'ASP'"

SERVER_FITS_MODE = Rule(
    (
        "spec.training.mode",
        "spec.training.asynchronous.maxStaleness",
        "spec.parameterServer",
        "spec.batching.balance",
        "spec.scaling.condition",
        "spec.scaling.globalBatch",
        "spec.workerGroups[].name",
    ),
    _server_fits_mode,
    (
        Cel(
            "spec",
            f"{_IS_ASP} == has(self.parameterServer)",
            "parameterServer is required for training.mode ASP, and only for that",
        ),
        Cel(
            "spec",
            f"self.batching.balance == 'Compute' || ({_IS_ASP} && "
            "(!has(self.training.asynchronous) || !has(self.training.asynchronous.maxStaleness)))",
            "batching.balance Cycle is only for training.mode ASP without maxStaleness",
        ),
        Cel(
            "spec",
            f"!({_IS_ASP}) || (self.scaling.condition == 'None' && self.scaling.globalBatch != 'Grow')",
            "scaling.condition and scaling.globalBatch Grow are not for training.mode ASP",
        ),
        Cel(
            "spec",
            f"!({_IS_ASP}) || self.workerGroups.all(g, g.name != '{SERVER_GROUP}')",
            f"with training.mode ASP no worker group is named {SERVER_GROUP}",
        ),
    ),
)


def _server_template_is_sound(job: HeteroTrainingJob) -> Iterator[Problem]:
    server = job.spec.parameter_server
    if server is not None and server.template is not None:
        yield from template_problems(server.template, ("spec", "parameterServer", "template"))


SERVER_TEMPLATE_IS_SOUND = Rule(("spec.parameterServer.template",), _server_template_is_sound)


def _pod_names_fit(job: HeteroTrainingJob) -> Iterator[Problem]:
    for index, group in enumerate(job.spec.sized_groups):
        longest = f"{job.metadata.name}-{group.name}-{group.most_replicas - 1}"
        if len(longest) > MAX_NAME:
            yield Problem(
                f"spec.workerGroups[{index}].name",
                f"its last pod would be {longest!r}: {len(longest)} characters, allowed are {MAX_NAME}",
            )


POD_NAMES_FIT = Rule(
    ("metadata.name", "spec.workerGroups[].name", *_REPLICAS, "spec.workerGroups[].maxReplicas"),
    _pod_names_fit,
    (
        Cel(
            "",
            "self.spec.workerGroups.all(g, size(self.metadata.name) + size(g.name) + 2 + "
            f"size(string({_cel_most_replicas('self.spec')} - 1)) <= {MAX_NAME})",
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
    ("metadata.name", "spec.workerGroups[].name", *_REPLICAS, "spec.workerGroups[].maxReplicas"),
    _plan_fits_into_a_config_map,
    (
        Cel(
            "",
            f"self.spec.workerGroups.map(g, {_cel_most_replicas('self.spec')} * "
            f"({WORKER_BYTES} + size(self.metadata.name) + 2 * size(g.name))).sum() <= {MOST_BYTES}",
            "too many workers: their plan does not fit into a ConfigMap; about 3000 do",
        ),
    ),
)


def _asked_batch(spec: JobSpec) -> tuple[int, str, str] | None:
    """The global batch, the field that asks for it, and how, in words; None if that is not clear."""
    asked = spec.training
    if (asked.global_batch_size is None) == (asked.batch_size_per_worker is None):
        return None
    batch = spec.global_batch_size
    if asked.global_batch_size is not None:
        return batch, "spec.training.globalBatchSize", f"{batch} samples"
    subject = f"{spec.total_replicas} workers x {asked.batch_size_per_worker} = {batch} samples"
    return batch, "spec.training.batchSizePerWorker", subject


def _batch_fits_workers(job: HeteroTrainingJob) -> Iterator[Problem]:
    spec, asked = job.spec, _asked_batch(job.spec)
    if asked is None:
        return
    batch, path, subject = asked
    lows = [next_multiple(group.batch_size.min, group.batch_size.multiple_of) for group in spec.sized_groups]
    least = sum(low * group.replicas for low, group in zip(lows, spec.sized_groups, strict=True))
    if batch < least:
        yield Problem(
            path,
            f"{subject} are too few: the workers take at least {least} "
            f"(replicas x batchSize.min: {_sum_in_words(spec, lows)})",
        )


def _sum_in_words(spec: JobSpec, bounds: list[int]) -> str:
    return " + ".join(
        f"{group.name} {group.replicas} x {bound}" for group, bound in zip(spec.sized_groups, bounds, strict=True)
    )


_WORKERS = f"self.workerGroups.map(g, {_cel_replicas('self')}).sum()"
_BATCH = (
    "(has(self.training.globalBatchSize) ? self.training.globalBatchSize"
    f" : self.training.batchSizePerWorker * {_WORKERS})"
)
_BATCH_UNCLEAR = "has(self.training.globalBatchSize) == has(self.training.batchSizePerWorker)"

BATCH_FITS_WORKERS = Rule(
    (
        "spec.training.globalBatchSize",
        "spec.training.batchSizePerWorker",
        *_REPLICAS,
        "spec.workerGroups[].batchSize",
    ),
    _batch_fits_workers,
    (
        Cel(
            "spec",
            f"{_BATCH_UNCLEAR} || self.workerGroups.map(g, (g.batchSize.min + g.batchSize.multipleOf - 1) / "
            f"g.batchSize.multipleOf * g.batchSize.multipleOf * {_cel_replicas('self')}).sum() <= {_BATCH}",
            "the global batch must be at least the sum of replicas x batchSize.min",
        ),
    ),
)


def _batch_is_a_sum_of_multiples(job: HeteroTrainingJob) -> Iterator[Problem]:
    groups, asked = job.spec.sized_groups, _asked_batch(job.spec)
    multiples = [group.batch_size.multiple_of for group in groups]
    if asked is None or max(multiples, default=1) == 1 or not divide_each_other(multiples):
        return
    batch, path, subject = asked
    pairs = [(group.batch_size.min, group.batch_size.max or batch) for group in groups]
    rounded = [(next_multiple(low, m), last_multiple(high, m)) for (low, high), m in zip(pairs, multiples, strict=True)]
    least = sum(low * group.replicas for (low, _), group in zip(rounded, groups, strict=True))
    if batch < least or any(low > high for low, high in rounded):
        return  # reported by rules of their own
    each = [
        (*pair, m) for pair, m, group in zip(rounded, multiples, groups, strict=True) for _ in range(group.replicas)
    ]
    bounds = in_passes(batch, [(low, high) for low, high, _ in each])
    if unreachable(batch, bounds, [multiple for _, _, multiple in each]):
        named = ", ".join(f"{group.name} {multiple}" for group, multiple in zip(groups, multiples, strict=True))
        yield Problem(path, f"{subject} are no sum of batches within bounds in the groups' multiples ({named})")


BATCH_IS_A_SUM_OF_MULTIPLES = Rule(
    (
        "spec.training.globalBatchSize",
        "spec.training.batchSizePerWorker",
        *_REPLICAS,
        "spec.workerGroups[].batchSize",
    ),
    _batch_is_a_sum_of_multiples,
    (
        Cel(
            "spec",
            f"{_BATCH_UNCLEAR} || self.workerGroups.exists(g, {_BATCH} % g.batchSize.multipleOf == 0)",
            "the global batch must be a multiple of the smallest batchSize.multipleOf of the groups",
        ),
    ),
)


def _claim_is_mounted_once(job: HeteroTrainingJob) -> Iterator[Problem]:
    claim, path = job.spec.checkpoint.persistent_volume_claim, job.spec.checkpoint.path
    if claim is None or path is None:
        return
    for index, group in enumerate(job.spec.worker_groups):
        where = ("spec", "workerGroups", index, "template")
        if template_problems(group.template, where):
            continue  # reported by a rule of its own
        container = group.template["spec"]["containers"][0]
        for position, mount in enumerate(container.get("volumeMounts") or ()):
            if PurePosixPath(mount["mountPath"]) == PurePosixPath(path):
                at = (*where, "spec", "containers", 0, "volumeMounts", position, "mountPath")
                yield Problem(render_path(at), "is where spec.checkpoint.persistentVolumeClaim is mounted; name one")


CLAIM_IS_MOUNTED_ONCE = Rule(
    ("spec.checkpoint.persistentVolumeClaim", "spec.checkpoint.path", "spec.workerGroups[].template"),
    _claim_is_mounted_once,
)


def _groups(job: HeteroTrainingJob) -> worker_groups.WorkerGroups:
    return job.spec.worker_groups


def _training(job: HeteroTrainingJob) -> training.Training:
    return job.spec.training


def _batching(job: HeteroTrainingJob) -> batching.Batching:
    return job.spec.batching


def _scaling(job: HeteroTrainingJob) -> scaling.Scaling:
    return job.spec.scaling


def _checkpoint(job: HeteroTrainingJob) -> checkpoint.Checkpoint:
    return job.spec.checkpoint


def _metrics(job: HeteroTrainingJob) -> metrics.Metrics:
    return job.spec.metrics


RULES: tuple[Rule[HeteroTrainingJob], ...] = (
    worker_groups.UNIQUE_NAMES.of(_groups),
    POD_NAMES_FIT,
    REPLICAS_ARE_OF_ONE_GROUP,
    REPLICAS_IN_BOUNDS,
    EMPTY_GROUPS_CAN_GROW,
    SCALING_CAN_CHANGE_SOMETHING,
    GROWTH_HAS_A_MEANING,
    PLAN_FITS_INTO_A_CONFIG_MAP,
    worker_groups.BATCH_BOUNDS_IN_ORDER.of(_groups),
    worker_groups.BATCH_BOUNDS_HOLD_A_MULTIPLE.of(_groups),
    worker_groups.MULTIPLES_DIVIDE_EACH_OTHER.of(_groups),
    training.ONE_BATCH_SIZE.of(_training),
    training.ONE_END.of(_training),
    training.TARGET_HAS_A_DIRECTION.of(_training),
    training.RATES_HAVE_A_BATCH.of(_training),
    training.ASYNCHRONOUS_IS_SOUND.of(_training),
    SERVER_FITS_MODE,
    BATCH_FITS_WORKERS,
    BATCH_IS_A_SUM_OF_MULTIPLES,
    scaling.GROWTH_IS_ASKED_FOR.of(_scaling),
    scaling.POINTS_IN_ORDER.of(_scaling),
    scaling.UTILITY_IS_SOUND.of(_scaling),
    checkpoint.CLAIM_HAS_A_PATH.of(_checkpoint),
    CLAIM_IS_MOUNTED_ONCE,
    metrics.PROMETHEUS_HAS_AN_ADDRESS.of(_metrics),
    metrics.ONE_CREDENTIAL.of(_metrics),
    batching.POLICY_IS_KNOWN.of(_batching),
    batching.LBBSP_KEEPS_THE_SUM.of(_batching),
    worker_groups.TEMPLATES_ARE_SOUND.of(_groups),
    SERVER_TEMPLATE_IS_SOUND,
)
