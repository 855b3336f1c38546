"""Rules between fields, each once in Python and, where the language can say it, once in CEL for the cluster.

Python names the field and the figures; CEL refuses the object at the API server even where no operator runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from heterotrain.contract import TRAINING_LOSS
from heterotrain_operator.api.availability import known_policies
from heterotrain_operator.api.base import MAX_NAME
from heterotrain_operator.api.hints import did_you_mean
from heterotrain_operator.api.job import HeteroTrainingJob, JobSpec
from heterotrain_operator.api.problems import Problem, render_path
from heterotrain_operator.api.size import MOST_BYTES, WORKER_BYTES, bytes_of
from heterotrain_operator.api.template import template_problems


@dataclass(frozen=True, slots=True)
class Cel:
    """A rule of x-kubernetes-validations on the schema at `at` (`[]` for list entries, empty: the root)."""

    at: str
    rule: str
    message: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule between fields; it is not judged if one of the fields that it `reads` is malformed."""

    reads: tuple[str, ...]
    check: Callable[[HeteroTrainingJob], Iterator[Problem]]
    cel: tuple[Cel, ...] = ()


def _unique_names(job: HeteroTrainingJob) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for index, group in enumerate(job.spec.worker_groups):
        if first.setdefault(group.name, index) != index:
            yield Problem(
                f"spec.workerGroups[{index}].name",
                f"must be unique, but {group.name!r} is also the name of workerGroups[{first[group.name]}]",
            )


def _pod_names(job: HeteroTrainingJob) -> Iterator[Problem]:
    for index, group in enumerate(job.spec.worker_groups):
        longest = f"{job.metadata.name}-{group.name}-{group.most_replicas - 1}"
        if len(longest) > MAX_NAME:
            yield Problem(
                f"spec.workerGroups[{index}].name",
                f"its last pod would be {longest!r}: {len(longest)} characters, allowed are {MAX_NAME}",
            )


def _replicas_in_bounds(job: HeteroTrainingJob) -> Iterator[Problem]:
    for index, group in enumerate(job.spec.worker_groups):
        where = f"spec.workerGroups[{index}]"
        if group.min_replicas > group.replicas:
            yield Problem(
                f"{where}.minReplicas",
                f"must be at most replicas, {group.replicas}, found {group.min_replicas}",
            )
        if group.max_replicas is not None and group.max_replicas < group.replicas:
            yield Problem(
                f"{where}.maxReplicas",
                f"must be at least replicas, {group.replicas}, found {group.max_replicas}",
            )


def _fits_into_a_config_map(job: HeteroTrainingJob) -> Iterator[Problem]:
    groups = job.spec.worker_groups
    workers = sum(group.most_replicas for group in groups)
    needed = sum(group.most_replicas * bytes_of(job.metadata.name, group) for group in groups)
    if needed > MOST_BYTES:
        yield Problem(
            "spec.workerGroups",
            f"{workers} workers are too many: their plan takes up to {needed} bytes of a ConfigMap, which holds "
            f"{MOST_BYTES}; with these names {MOST_BYTES * workers // needed} workers fit, and more with shorter ones",
        )


def _batch_bounds_in_order(job: HeteroTrainingJob) -> Iterator[Problem]:
    for index, group in enumerate(job.spec.worker_groups):
        bounds = group.batch_size
        if bounds.max is not None and bounds.min > bounds.max:
            yield Problem(
                f"spec.workerGroups[{index}].batchSize.min",
                f"must be at most max, {bounds.max}, found {bounds.min}",
            )


def _one_batch_size(job: HeteroTrainingJob) -> Iterator[Problem]:
    training = job.spec.training
    if (training.global_batch_size is None) == (training.batch_size_per_worker is None):
        found = "neither" if training.global_batch_size is None else "both"
        yield Problem("spec.training", f"needs exactly one of globalBatchSize and batchSizePerWorker, found {found}")


def _one_end(job: HeteroTrainingJob) -> Iterator[Problem]:
    training = job.spec.training
    if (training.epochs is None) == (training.steps is None):
        found = "neither" if training.epochs is None else "both"
        yield Problem("spec.training", f"needs exactly one of epochs and steps, found {found}")


def _target_has_a_direction(job: HeteroTrainingJob) -> Iterator[Problem]:
    target = job.spec.training.target
    if target is not None and target.metric == TRAINING_LOSS and target.mode == "Max":
        yield Problem(
            "spec.training.target.mode",
            "must be Min for the training loss, which begins above any target; name the metric if it is another",
        )
    if target is not None and target.metric != TRAINING_LOSS and target.mode is None:
        yield Problem(
            "spec.training.target.mode",
            f"is required for metric {target.metric}: Max if it is to rise to the value, Min if it is to fall",
        )


def _sum_in_words(spec: JobSpec, bounds: list[int]) -> str:
    return " + ".join(
        f"{group.name} {group.replicas} x {bound}" for group, bound in zip(spec.worker_groups, bounds, strict=True)
    )


def _batch_fits_workers(job: HeteroTrainingJob) -> Iterator[Problem]:
    spec, training = job.spec, job.spec.training
    if (training.global_batch_size is None) == (training.batch_size_per_worker is None):
        return
    batch = spec.global_batch_size
    if training.global_batch_size is not None:
        path, subject = "spec.training.globalBatchSize", f"{batch} samples"
    else:
        path = "spec.training.batchSizePerWorker"
        subject = f"{spec.replicas} workers x {training.batch_size_per_worker} = {batch} samples"
    lows = [group.batch_size.min for group in spec.worker_groups]
    least = sum(low * group.replicas for low, group in zip(lows, spec.worker_groups, strict=True))
    if batch < least:
        yield Problem(
            path,
            f"{subject} are too few: the workers take at least {least} "
            f"(replicas x batchSize.min: {_sum_in_words(spec, lows)})",
        )


def _growth_is_asked_for(job: HeteroTrainingJob) -> Iterator[Problem]:
    scaling = job.spec.scaling
    if scaling.max_global_batch_size is not None and scaling.global_batch != "Grow":
        yield Problem("spec.scaling.maxGlobalBatchSize", "has a meaning only with globalBatch Grow; leave it out")


def _points_in_order(job: HeteroTrainingJob) -> Iterator[Problem]:
    points = job.spec.scaling.utility.points
    for index in range(1, len(points)):
        if points[index].seconds <= points[index - 1].seconds:
            yield Problem(
                f"spec.scaling.utility.points[{index}].seconds",
                f"must be above that of the point before, {points[index - 1].seconds}, found {points[index].seconds}",
            )


def _claim_has_a_path(job: HeteroTrainingJob) -> Iterator[Problem]:
    checkpoint = job.spec.checkpoint
    if checkpoint.persistent_volume_claim is not None and checkpoint.path is None:
        yield Problem("spec.checkpoint.path", "is required with persistentVolumeClaim, which is mounted there")


def _claim_is_mounted_once(job: HeteroTrainingJob) -> Iterator[Problem]:
    checkpoint = job.spec.checkpoint
    if checkpoint.persistent_volume_claim is None or checkpoint.path is None:
        return
    for index, group in enumerate(job.spec.worker_groups):
        where = ("spec", "workerGroups", index, "template")
        if template_problems(group.template, where):
            continue  # reported by a rule of its own
        container = group.template["spec"]["containers"][0]
        for position, mount in enumerate(container.get("volumeMounts") or ()):
            if PurePosixPath(mount["mountPath"]) == PurePosixPath(checkpoint.path):
                at = (*where, "spec", "containers", 0, "volumeMounts", position, "mountPath")
                yield Problem(render_path(at), "is where spec.checkpoint.persistentVolumeClaim is mounted; name one")


def _prometheus_has_an_address(job: HeteroTrainingJob) -> Iterator[Problem]:
    metrics = job.spec.metrics
    if metrics.source == "Prometheus" and not metrics.prometheus.url:
        yield Problem("spec.metrics.prometheus.url", "is required with source Prometheus")


def _one_credential(job: HeteroTrainingJob) -> Iterator[Problem]:
    server = job.spec.metrics.prometheus
    if server.secret_ref is not None and server.basic_auth_ref is not None:
        yield Problem("spec.metrics.prometheus", "needs at most one of secretRef and basicAuthRef, found both")


def _known_policy(job: HeteroTrainingJob) -> Iterator[Problem]:
    policy, known = job.spec.batching.policy, known_policies()
    if policy not in known and policy != "LBBSP":
        hint = did_you_mean(policy, known)
        yield Problem("spec.batching.policy", f"{policy} is not a known policy; known are {', '.join(known)}{hint}")


def _templates(job: HeteroTrainingJob) -> Iterator[Problem]:
    for index, group in enumerate(job.spec.worker_groups):
        yield from template_problems(group.template, ("spec", "workerGroups", index, "template"))


_WORKERS = "self.workerGroups.map(g, g.replicas).sum()"
_BATCH = (
    "(has(self.training.globalBatchSize) ? self.training.globalBatchSize"
    f" : self.training.batchSizePerWorker * {_WORKERS})"
)
_BATCH_UNCLEAR = "has(self.training.globalBatchSize) == has(self.training.batchSizePerWorker)"

RULES = (
    Rule(
        ("spec.workerGroups[].name",),
        _unique_names,
        (
            Cel(
                "spec.workerGroups",
                "self.all(g, self.exists_one(other, other.name == g.name))",
                "names of worker groups must be unique",
            ),
        ),
    ),
    Rule(
        (
            "metadata.name",
            "spec.workerGroups[].name",
            "spec.workerGroups[].replicas",
            "spec.workerGroups[].maxReplicas",
        ),
        _pod_names,
        (
            Cel(
                "",
                "self.spec.workerGroups.all(g, size(self.metadata.name) + size(g.name) + 2 + "
                "size(string((has(g.maxReplicas) ? g.maxReplicas : g.replicas) - 1)) "
                f"<= {MAX_NAME})",
                f"names of pods, <job>-<group>-<index>, must have at most {MAX_NAME} characters",
            ),
        ),
    ),
    Rule(
        (
            "spec.workerGroups[].replicas",
            "spec.workerGroups[].minReplicas",
            "spec.workerGroups[].maxReplicas",
        ),
        _replicas_in_bounds,
        (
            Cel(
                "spec.workerGroups[]",
                "self.minReplicas <= self.replicas",
                "minReplicas must be at most replicas",
            ),
            Cel(
                "spec.workerGroups[]",
                "!has(self.maxReplicas) || self.maxReplicas >= self.replicas",
                "maxReplicas must be at least replicas",
            ),
        ),
    ),
    Rule(
        (
            "metadata.name",
            "spec.workerGroups[].name",
            "spec.workerGroups[].replicas",
            "spec.workerGroups[].maxReplicas",
        ),
        _fits_into_a_config_map,
        (
            Cel(
                "",
                "self.spec.workerGroups.map(g, (has(g.maxReplicas) ? g.maxReplicas : g.replicas) * "
                f"({WORKER_BYTES} + size(self.metadata.name) + 2 * size(g.name))).sum() <= {MOST_BYTES}",
                "too many workers: their plan does not fit into a ConfigMap; about 3000 do",
            ),
        ),
    ),
    Rule(
        ("spec.workerGroups[].batchSize",),
        _batch_bounds_in_order,
        (
            Cel(
                "spec.workerGroups[].batchSize",
                "!has(self.max) || self.min <= self.max",
                "batchSize.min must be at most batchSize.max",
            ),
        ),
    ),
    Rule(
        ("spec.training.globalBatchSize", "spec.training.batchSizePerWorker"),
        _one_batch_size,
        (
            Cel(
                "spec.training",
                "has(self.globalBatchSize) != has(self.batchSizePerWorker)",
                "set exactly one of globalBatchSize and batchSizePerWorker",
            ),
        ),
    ),
    Rule(
        ("spec.training.epochs", "spec.training.steps"),
        _one_end,
        (Cel("spec.training", "has(self.epochs) != has(self.steps)", "set exactly one of epochs and steps"),),
    ),
    Rule(
        ("spec.training.target.metric", "spec.training.target.mode"),
        _target_has_a_direction,
        (
            Cel(
                "spec.training.target",
                f"self.metric != '{TRAINING_LOSS}' || !has(self.mode) || self.mode == 'Min'",
                f"mode must be Min for metric {TRAINING_LOSS}",
            ),
            Cel(
                "spec.training.target",
                f"self.metric == '{TRAINING_LOSS}' || has(self.mode)",
                f"mode is required for a metric other than {TRAINING_LOSS}",
            ),
        ),
    ),
    Rule(
        (
            "spec.training.globalBatchSize",
            "spec.training.batchSizePerWorker",
            "spec.workerGroups[].replicas",
            "spec.workerGroups[].batchSize",
        ),
        _batch_fits_workers,
        (
            Cel(
                "spec",
                f"{_BATCH_UNCLEAR} || self.workerGroups.map(g, g.batchSize.min * g.replicas).sum() <= {_BATCH}",
                "the global batch must be at least the sum of replicas x batchSize.min",
            ),
        ),
    ),
    Rule(
        ("spec.scaling.maxGlobalBatchSize", "spec.scaling.globalBatch"),
        _growth_is_asked_for,
        (
            Cel(
                "spec.scaling",
                "!has(self.maxGlobalBatchSize) || self.globalBatch == 'Grow'",
                "maxGlobalBatchSize has a meaning only with globalBatch Grow",
            ),
        ),
    ),
    Rule(
        ("spec.scaling.utility",),
        _points_in_order,
        (
            Cel(
                "spec.scaling.utility",
                "self.points.map(p, p.seconds).isSorted()"
                " && self.points.all(p, self.points.exists_one(other, other.seconds == p.seconds))",
                "the seconds of points must grow from one to the next",
            ),
        ),
    ),
    Rule(
        ("spec.checkpoint.persistentVolumeClaim", "spec.checkpoint.path"),
        _claim_has_a_path,
        (
            Cel(
                "spec.checkpoint",
                "!has(self.persistentVolumeClaim) || has(self.path)",
                "persistentVolumeClaim needs path, at which it is mounted",
            ),
        ),
    ),
    Rule(
        ("spec.checkpoint.persistentVolumeClaim", "spec.checkpoint.path", "spec.workerGroups[].template"),
        _claim_is_mounted_once,
    ),
    Rule(
        ("spec.metrics.source", "spec.metrics.prometheus.url"),
        _prometheus_has_an_address,
        (
            Cel(
                "spec.metrics",
                "self.source != 'Prometheus' || self.prometheus.url != ''",
                "source Prometheus needs prometheus.url",
            ),
        ),
    ),
    Rule(
        ("spec.metrics.prometheus.secretRef", "spec.metrics.prometheus.basicAuthRef"),
        _one_credential,
        (
            Cel(
                "spec.metrics.prometheus",
                "!has(self.secretRef) || !has(self.basicAuthRef)",
                "set at most one of secretRef and basicAuthRef",
            ),
        ),
    ),
    Rule(("spec.batching.policy",), _known_policy),
    Rule(("spec.workerGroups[].template",), _templates),
)
