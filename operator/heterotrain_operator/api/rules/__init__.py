"""All rules of a job, in the order in which they are judged: those of one section, and those between sections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from heterotrain_operator.api.job import HeteroTrainingJob
from heterotrain_operator.api.problems import Problem, render_path
from heterotrain_operator.api.rule import Rule
from heterotrain_operator.api.rules import batches, server, workers
from heterotrain_operator.api.spec import batching, checkpoint, metrics, scaling, training, worker_groups
from heterotrain_operator.api.template import template_problems


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


RULES: tuple[Rule[HeteroTrainingJob], ...] = (
    worker_groups.UNIQUE_NAMES.of(lambda job: job.spec.worker_groups),
    workers.POD_NAMES_FIT,
    workers.REPLICAS_ARE_OF_ONE_GROUP,
    workers.REPLICAS_IN_BOUNDS,
    workers.EMPTY_GROUPS_CAN_GROW,
    workers.SCALING_CAN_CHANGE_SOMETHING,
    batches.GROWTH_HAS_A_MEANING,
    workers.PLAN_FITS_INTO_A_CONFIG_MAP,
    worker_groups.BATCH_BOUNDS_IN_ORDER.of(lambda job: job.spec.worker_groups),
    worker_groups.BATCH_BOUNDS_HOLD_A_MULTIPLE.of(lambda job: job.spec.worker_groups),
    worker_groups.MULTIPLES_DIVIDE_EACH_OTHER.of(lambda job: job.spec.worker_groups),
    training.ONE_BATCH_SIZE.of(lambda job: job.spec.training),
    training.ONE_END.of(lambda job: job.spec.training),
    training.TARGET_HAS_A_DIRECTION.of(lambda job: job.spec.training),
    training.RATES_HAVE_A_BATCH.of(lambda job: job.spec.training),
    training.ASYNCHRONOUS_IS_SOUND.of(lambda job: job.spec.training),
    server.SERVER_FITS_MODE,
    batches.BATCH_FITS_WORKERS,
    batches.BATCH_IS_A_SUM_OF_MULTIPLES,
    scaling.GROWTH_IS_ASKED_FOR.of(lambda job: job.spec.scaling),
    scaling.POINTS_IN_ORDER.of(lambda job: job.spec.scaling),
    scaling.UTILITY_IS_SOUND.of(lambda job: job.spec.scaling),
    checkpoint.CLAIM_HAS_A_PATH.of(lambda job: job.spec.checkpoint),
    CLAIM_IS_MOUNTED_ONCE,
    metrics.PROMETHEUS_HAS_AN_ADDRESS.of(lambda job: job.spec.metrics),
    metrics.ONE_CREDENTIAL.of(lambda job: job.spec.metrics),
    batching.POLICY_IS_KNOWN.of(lambda job: job.spec.batching),
    batching.LBBSP_KEEPS_THE_SUM.of(lambda job: job.spec.batching),
    worker_groups.TEMPLATES_ARE_SOUND.of(lambda job: job.spec.worker_groups),
    server.SERVER_TEMPLATE_IS_SOUND,
)
