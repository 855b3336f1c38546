"""Build a worker's pod, or the parameter server's, and the Service over all of them: its template passed through whole,
and what makes a worker of it.

What is added never depends on how many workers there are, so that a pod outlives every change of membership.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from heterotrain import contract
from heterotrain_operator.api import HeteroTrainingJob, WorkerGroup, global_batch_variable, training_config
from heterotrain_operator.api.resolve import cpu_limit
from heterotrain_operator.clusters.kube.objects.names import (
    CHECKPOINT_VOLUME,
    LABEL_GROUP,
    LABEL_INDEX,
    LABEL_JOB,
    LABEL_ROLE,
    PLAN_FOLDER,
    PLAN_KEY,
    PLAN_VOLUME,
    ROLE_SERVER,
    ROLE_WORKER,
    SECRET_KEY,
    TRAINER_PORT,
    plan_name,
    service_name,
)
from heterotrain_operator.clusters.kube.objects.owned import COMPONENT_WORKER, owned_metadata
from heterotrain_operator.core.model import SERVER_GROUP, WorkerKey

Document = dict[str, Any]

_FROM_TEMPLATE = ("annotations", "finalizers")
"""What is taken over from the template's metadata, beside labels; other workload controllers take the same."""


def build_pod(
    job: HeteroTrainingJob, uid: str, key: WorkerKey, *, secret: str, beside_training: bool = False
) -> Document:
    """The pod of one worker, or of the parameter server; `uid` is the job's, and `secret` the name of its Secret.
    `beside_training`: others train already, and it is to join them.

    Of what the template says, only this is replaced: name and namespace, the labels by which the operator finds its
    pods, restartPolicy, hostname and subdomain, and in the first container whatever bears a name that is ours.

    Raises ValueError if the job has no such group.
    """
    group = _group_of(job, key.group)
    template: Document = copy.deepcopy(group.template)
    spec: Document = template["spec"]
    first, *others = spec["containers"]
    trainer = _trainer(job, uid, group, key, first, secret=secret, beside_training=beside_training)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(job, uid, key, template.get("metadata") or {}),
        "spec": {
            "automountServiceAccountToken": False,  # a training script has no business with the API server
            "enableServiceLinks": False,  # dozens of variables that name other people's services
            **{name: value for name, value in spec.items() if value is not None},  # null is as good as left out
            # The operator judges how a process ended, for it may have to restart the other workers, too.
            "restartPolicy": "Never",
            "hostname": key.name,
            "subdomain": service_name(job.metadata.name),
            "containers": [trainer, *others],
            "volumes": _volumes(job, spec.get("volumes") or ()),
        },
    }


def _group_of(job: HeteroTrainingJob, name: str) -> WorkerGroup:
    for group in job.spec.pod_groups:
        if group.name == name:
            return group
    names = ", ".join(group.name for group in job.spec.pod_groups)
    raise ValueError(f"job {job.metadata.name} has no worker group {name!r}; it has {names}")


def _is_server(job: HeteroTrainingJob, key: WorkerKey) -> bool:
    return job.spec.parameter_server is not None and key.group == SERVER_GROUP


def _metadata(job: HeteroTrainingJob, uid: str, key: WorkerKey, template: Mapping[str, Any]) -> Document:
    metadata = owned_metadata(job, uid, key.name, COMPONENT_WORKER)
    metadata["labels"] = {
        **(template.get("labels") or {}),
        **metadata["labels"],
        LABEL_GROUP: key.group,
        LABEL_INDEX: str(key.index),
        LABEL_ROLE: ROLE_SERVER if _is_server(job, key) else ROLE_WORKER,
    }
    return metadata | {name: template[name] for name in _FROM_TEMPLATE if template.get(name)}


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


METRICS_PORT_NAME = "metrics"
"""Name of the container's port at which monitors scrape a worker."""

GPU_RESOURCE = "nvidia.com/gpu"
"""A worker with `device: gpu` asks for one of these, unless its template asks for some GPU itself."""

GPU_DOMAINS = ("nvidia.com/", "amd.com/")
"""Prefixes of resources that are GPUs: whole ones, slices of them, and shares."""


def _trainer(
    job: HeteroTrainingJob,
    uid: str,
    group: WorkerGroup,
    key: WorkerKey,
    template: Document,
    *,
    secret: str,
    beside_training: bool,
) -> Document:
    """The template's first container as a worker; the template is not used afterwards. See `build_pod`."""
    container = {"terminationMessagePolicy": "FallbackToLogsOnError", **template}
    container["env"] = _environment(job, uid, group, key, template, secret=secret, beside_training=beside_training)
    container["ports"] = _ports(template.get("ports") or ())
    container["volumeMounts"] = _mounts(job, template.get("volumeMounts") or ())
    resources = template.get("resources") or {}
    if group.device == "gpu" and not _asks_for_gpu(resources):
        limits = {**(resources.get("limits") or {}), GPU_RESOURCE: "1"}
        container["resources"] = {**resources, "limits": limits}
    return container


def _environment(
    job: HeteroTrainingJob,
    uid: str,
    group: WorkerGroup,
    key: WorkerKey,
    template: Mapping[str, Any],
    *,
    secret: str,
    beside_training: bool,
) -> list[Document]:
    """Our variables, then the template's, so that these may refer to ours. Variables of the contract cannot be
    overridden by the template; others can.
    """
    protocol = {
        contract.ENV_JOB: job.metadata.name,
        contract.ENV_JOB_UID: uid,
        contract.ENV_WORKER: key.name,
        contract.ENV_GROUP: key.group,
        contract.ENV_PLAN_DIR: PLAN_FOLDER,
        contract.ENV_CONFIG: training_config(job, group.name).to_json(),
        contract.ENV_METRICS_PORT: str(contract.DEFAULT_METRICS_PORT),
        contract.ENV_TERMINATION_LOG: template.get("terminationMessagePath") or contract.DEFAULT_TERMINATION_LOG,
    }
    protocol |= global_batch_variable(job)
    if _is_server(job, key):
        protocol |= {contract.ENV_ROLE: contract.ROLE_SERVER, contract.ENV_GROUP: ""}
    cores = cpu_limit(group)
    if cores is not None:
        # The number is written out, since a reference to the limit gives whole cores or thousandths only.
        protocol[contract.ENV_CPU_LIMIT] = str(cores)
    habits = {"PYTHONUNBUFFERED": "1"}
    if beside_training and not _is_server(job, key):
        habits[contract.ENV_WARM_UP] = "1"
    if group.device == "cpu":
        # Images that ask for all GPUs would see them on any GPU node, without having been given one.
        habits["NVIDIA_VISIBLE_DEVICES"] = "none"
    identity = {"name": contract.ENV_UID, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    common = {"name": contract.ENV_SECRET, "valueFrom": {"secretKeyRef": {"name": secret, "key": SECRET_KEY}}}
    ours = {*protocol, contract.ENV_UID, contract.ENV_SECRET}
    theirs = [entry for entry in template.get("env") or () if entry["name"] not in ours]
    named = {entry["name"] for entry in theirs}
    return [
        *({"name": name, "value": _literal(value)} for name, value in protocol.items()),
        identity,
        common,
        *({"name": name, "value": value} for name, value in habits.items() if name not in named),
        *theirs,
    ]


def secret_in(pod: Mapping[str, Any]) -> str:
    """Name of the Secret by which a worker's pod knows the others; empty if it names none."""
    for container in pod["spec"]["containers"]:
        for entry in container.get("env") or ():
            if entry["name"] == contract.ENV_SECRET:
                return str(((entry.get("valueFrom") or {}).get("secretKeyRef") or {}).get("name") or "")
    return ""


def _literal(value: str) -> str:
    """A value in which the cluster expands no `$(NAME)`: a path may hold a dollar sign."""
    return value.replace("$", "$$")


def _ports(template: Iterable[Document]) -> list[Document]:
    """The template's ports and that of our metrics, which takes the place of one with its name or number."""
    number = contract.DEFAULT_METRICS_PORT
    ours = {"name": METRICS_PORT_NAME, "containerPort": number, "protocol": "TCP"}
    theirs = [
        port
        for port in template
        if port.get("name") != METRICS_PORT_NAME
        and (port["containerPort"], port.get("protocol", "TCP")) != (number, "TCP")
    ]
    return [*theirs, ours]


def _mounts(job: HeteroTrainingJob, template: Sequence[Document]) -> list[Document]:
    ours: list[Document] = [{"name": PLAN_VOLUME, "mountPath": PLAN_FOLDER, "readOnly": True}]
    checkpoint = job.spec.checkpoint
    if checkpoint.persistent_volume_claim is not None and checkpoint.path is not None:
        ours.append({"name": CHECKPOINT_VOLUME, "mountPath": checkpoint.path})
    return [*template, *ours]


def _asks_for_gpu(resources: Mapping[str, Any]) -> bool:
    """Whether a container's resources name a GPU, or claim a device."""
    names = (*(resources.get("limits") or ()), *(resources.get("requests") or ()))
    return bool(resources.get("claims")) or any(name.startswith(GPU_DOMAINS) for name in names)


def build_service(job: HeteroTrainingJob, uid: str) -> dict[str, Any]:
    """The headless Service over a job's workers, and its parameter server; `uid` is the job's."""
    # A Service's selector knows no alternatives.
    role = {LABEL_ROLE: ROLE_WORKER} if job.spec.parameter_server is None else {}
    ports = (("trainer", TRAINER_PORT), (METRICS_PORT_NAME, contract.DEFAULT_METRICS_PORT))
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": owned_metadata(job, uid, service_name(job.metadata.name), COMPONENT_WORKER),
        "spec": {
            "clusterIP": "None",
            # Workers must find one another before the readiness probes of a template succeed.
            "publishNotReadyAddresses": True,
            "selector": {LABEL_JOB: job.metadata.name, **role},
            "ports": [{"name": name, "port": port, "targetPort": port, "protocol": "TCP"} for name, port in ports],
        },
    }
