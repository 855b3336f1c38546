"""Build a worker's pod: its group's template passed through whole, and what makes it a worker of this job.

What is added never depends on how many workers there are, so that a pod outlives every change of membership.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from heterotrain_operator.api import HeteroTrainingJob, WorkerGroup
from heterotrain_operator.clusters.kube.objects.names import (
    CHECKPOINT_VOLUME,
    LABEL_GROUP,
    LABEL_INDEX,
    LABEL_ROLE,
    PLAN_KEY,
    PLAN_VOLUME,
    ROLE_WORKER,
    plan_name,
    service_name,
)
from heterotrain_operator.clusters.kube.objects.owned import COMPONENT_WORKER, owned_metadata
from heterotrain_operator.clusters.kube.objects.trainer import trainer_container
from heterotrain_operator.core.model import WorkerKey

Document = dict[str, Any]

_FROM_TEMPLATE = ("annotations", "finalizers")
"""What is taken over from the template's metadata, beside labels; other workload controllers take the same."""


def build_pod(job: HeteroTrainingJob, uid: str, key: WorkerKey, *, beside_training: bool = False) -> Document:
    """The pod of one worker; `uid` is the job's. `beside_training`: others train already, and it is to join them.

    Of what the template says, only this is replaced: name and namespace, the labels by which the operator finds its
    pods, restartPolicy, hostname and subdomain, and in the first container whatever bears a name that is ours.

    Raises ValueError if the job has no such group.
    """
    group = _group_of(job, key.group)
    template: Document = copy.deepcopy(group.template)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(job, uid, key, template.get("metadata") or {}),
        "spec": _spec(job, uid, group, key, template["spec"], beside_training=beside_training),
    }


def _group_of(job: HeteroTrainingJob, name: str) -> WorkerGroup:
    for group in job.spec.worker_groups:
        if group.name == name:
            return group
    names = ", ".join(group.name for group in job.spec.worker_groups)
    raise ValueError(f"job {job.metadata.name} has no worker group {name!r}; it has {names}")


def _metadata(job: HeteroTrainingJob, uid: str, key: WorkerKey, template: Mapping[str, Any]) -> Document:
    metadata = owned_metadata(job, uid, key.name, COMPONENT_WORKER)
    metadata["labels"] = {
        **(template.get("labels") or {}),
        **metadata["labels"],
        LABEL_GROUP: key.group,
        LABEL_INDEX: str(key.index),
        LABEL_ROLE: ROLE_WORKER,
    }
    return metadata | {name: template[name] for name in _FROM_TEMPLATE if template.get(name)}


def _spec(
    job: HeteroTrainingJob, uid: str, group: WorkerGroup, key: WorkerKey, template: Document, *, beside_training: bool
) -> Document:
    first, *others = template["containers"]
    return {
        "automountServiceAccountToken": False,  # a training script has no business with the API server
        "enableServiceLinks": False,  # dozens of variables that name other people's services
        **template,
        # The operator judges how a process ended, for it may have to restart the other workers, too.
        "restartPolicy": "Never",
        "hostname": key.name,
        "subdomain": service_name(job.metadata.name),
        "containers": [trainer_container(job, uid, group, key, first, beside_training=beside_training), *others],
        "volumes": _volumes(job, template.get("volumes") or ()),
    }


def _volumes(job: HeteroTrainingJob, template: Any) -> list[Document]:
    plan: Document = {
        "name": PLAN_VOLUME,
        "configMap": {
            "name": plan_name(job.metadata.name),
            # Workers start before there is a first plan, and must survive the loss of the ConfigMap.
            "optional": True,
            # Workers do not need the memory of decisions, which changes far more often.
            "items": [{"key": PLAN_KEY, "path": PLAN_KEY}],
        },
    }
    ours = [plan]
    claim = job.spec.checkpoint.persistent_volume_claim
    if claim is not None:
        ours.append({"name": CHECKPOINT_VOLUME, "persistentVolumeClaim": {"claimName": claim}})
    names = {volume["name"] for volume in ours}
    return [*(volume for volume in template if volume["name"] not in names), *ours]
