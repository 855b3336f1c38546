"""What a pod's document says of its worker, in a few fields: a cluster may hold thousands, and all are kept in memory.

A pod ends in many ways, of which few are the worker's own. Each is named in the words that Kubernetes has for it, with
whose fault it was, because a restart counts only if it was the worker's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from heterotrain import contract
from heterotrain.foreign import as_text
from heterotrain_operator.api.manifest import READ_OF_METADATA
from heterotrain_operator.api.quantity import parse_quantity
from heterotrain_operator.clusters.kube.moments import unix_seconds
from heterotrain_operator.clusters.kube.objects.names import LABEL_GROUP, LABEL_INDEX, LABEL_JOB, TRAINER_PORT
from heterotrain_operator.clusters.kube.objects.owned import controller_uid
from heterotrain_operator.clusters.kube.observe.pod_status import (
    NO_WORDS,
    Ending,
    disruption,
    is_disrupted,
    is_gated,
    pod_ending,
    why_it_waits,
)
from heterotrain_operator.core.model import PodPhase, WorkerMetrics, WorkerSeen

Document = Mapping[str, Any]

DEFAULT_GRACE_SECONDS = 30.0
"""Kubernetes' default for the time between the request to end and the kill."""

NO_INDEX = -1
"""Index of a pod whose index label is malformed."""

LONGEST_INDEX = 9
"""Most digits of an index; a longer label is malformed."""

LONGEST_MESSAGE = 8192
"""Characters of why a pod waits or has ended that are kept."""

MAX_CORES = 1e6
"""Most cores that a worker can have; a greater limit counts as none."""

_OF_METADATA = (*READ_OF_METADATA, "deletionGracePeriodSeconds")
_OF_STATUS = ("phase", "podIP", "reason", "message", "conditions", "containerStatuses", "initContainerStatuses")

_PHASES: dict[str, PodPhase] = {
    "Pending": "Pending",
    "Running": "Running",
    "Succeeded": "Succeeded",
    "Failed": "Failed",
    "Unknown": "Running",  # its node does not answer; the process may well go on
}


@dataclass(frozen=True, slots=True)
class PodFacts:
    """One worker's pod as it is now.

    `owner_uid` is the UID of the job that controls it: a pod of an earlier job of the same name is another's. `phase`,
    `exit_code` and its last `words` (their message is why it waits until then) speak of the container that trains;
    other containers do not count, but for `lingering`: the trainer has ended, and others go on. `cpu_limit` is the
    current one, in cores, which a resize in place changes. `deleting_since` is when the grace of its deletion ends, or
    its usual one, if it was deleted with a shorter one; moments are Unix seconds. `gone`: the pod
    is not there any more, and so it was seen last.
    """

    name: str
    uid: str
    namespace: str
    job: str
    group: str
    index: int
    owner_uid: str = ""
    created_at: float | None = None
    ended_at: float | None = None
    phase: PodPhase = "Pending"
    ip: str = ""
    node: str = ""
    cpu_limit: float | None = None
    exit_code: int | None = None
    words: contract.Termination = NO_WORDS
    disrupted: bool = False
    deleting_since: float | None = None
    grace_seconds: float = DEFAULT_GRACE_SECONDS
    ready_to_scrape: bool = False
    gated: bool = False
    lingering: bool = False
    gone: bool = False

    @property
    def address(self) -> str:
        """`host:port` under which a plan names it; empty as long as it has no address."""
        return self._at(TRAINER_PORT)

    @property
    def metrics_address(self) -> str:
        """`host:port` of its metrics; empty as long as it has no address."""
        return self._at(contract.DEFAULT_METRICS_PORT)

    def _at(self, port: int) -> str:
        if not self.ip:
            return ""
        return f"[{self.ip}]:{port}" if ":" in self.ip else f"{self.ip}:{port}"


def pod_facts(body: Document, *, gone: bool = False) -> PodFacts:
    """The facts in a pod's document, as the API server gives it; what it does not say yet stays at its default. For
    a pod that is `gone` it is the last document that there was.
    """
    metadata: Document = body["metadata"]
    spec, status = body.get("spec") or {}, body.get("status") or {}
    labels = metadata.get("labels") or {}
    container = _trainer(spec)
    trainer = _status_of(status, container.get("name", ""))
    ending = pod_ending(status, container, trainer)
    phase: PodPhase = _PHASES.get(status.get("phase", ""), "Pending")
    if ending.over:
        phase = "Succeeded" if ending.exit_code == 0 else "Failed"
    ip = status.get("podIP") or ""
    created, deleted = metadata.get("creationTimestamp"), metadata.get("deletionTimestamp")
    usual_grace = spec.get("terminationGracePeriodSeconds")
    grace = metadata.get("deletionGracePeriodSeconds", usual_grace)
    shortened_by = 0.0 if usual_grace is None or grace is None else max(0.0, float(usual_grace) - float(grace))
    return PodFacts(
        name=metadata["name"],
        uid=metadata.get("uid") or "",
        namespace=metadata.get("namespace") or "",
        job=labels.get(LABEL_JOB, ""),
        group=labels.get(LABEL_GROUP, ""),
        index=_index(labels.get(LABEL_INDEX, "")),
        owner_uid=controller_uid(metadata),
        created_at=None if created is None else unix_seconds(created),
        ended_at=unix_seconds(ending.finished_at) if ending.finished_at else None,
        phase=phase,
        ip=ip,
        node=spec.get("nodeName") or "",
        cpu_limit=_cpu_limit(container, trainer),
        exit_code=ending.exit_code,
        words=replace(ending.words, message=_message(ending, status, deleting=deleted is not None and not gone)),
        disrupted=gone or deleted is not None or is_disrupted(status, trainer),
        deleting_since=None if deleted is None else unix_seconds(deleted) + shortened_by,
        grace_seconds=DEFAULT_GRACE_SECONDS if grace is None else float(grace),
        ready_to_scrape=bool(ip) and status.get("phase") == "Running" and "running" in (trainer.get("state") or {}),
        gated=not spec.get("nodeName") and is_gated(spec, status),
        lingering=ending.over and _anything_runs(status),
        gone=gone,
    )


def short_metadata(metadata: Document) -> dict[str, Any]:
    """What is read of the metadata of any object that is watched."""
    short = {name: metadata[name] for name in _OF_METADATA if name in metadata}
    labels, owner = metadata.get("labels") or {}, controller_uid(metadata)
    short["labels"] = {name: labels[name] for name in (LABEL_JOB, LABEL_GROUP, LABEL_INDEX) if name in labels}
    if owner:
        short["ownerReferences"] = [{"controller": True, "uid": owner}]
    return short


def short_pod(body: Document) -> dict[str, Any]:
    """What `pod_facts` reads of a pod's document, which may have a megabyte of somebody's variables."""
    spec, status = body.get("spec") or {}, body.get("status") or {}
    short = {name: spec[name] for name in ("nodeName", "terminationGracePeriodSeconds") if name in spec}
    container = _trainer(spec)
    trainer = {name: container[name] for name in ("name", "resources") if name in container}
    if spec.get("schedulingGates"):
        short["schedulingGates"] = [{}]
    return {
        "metadata": short_metadata(body["metadata"]),
        "spec": {**short, "containers": [trainer]},
        "status": {name: status[name] for name in _OF_STATUS if name in status},
    }


def _trainer(spec: Document) -> Document:
    """The container that trains. We made it the first, but admission controllers put theirs before it."""
    containers: tuple[Document, ...] = tuple(spec.get("containers") or ())
    for container in containers:
        if any(entry.get("name") == contract.ENV_WORKER for entry in container.get("env") or ()):
            return container
    return containers[0] if containers else {}


def _status_of(status: Document, name: str) -> Document:
    """The status of the container of a name; empty as long as there is none."""
    found: Document = {}
    for entry in status.get("containerStatuses") or ():
        if entry.get("name") == name:
            found = entry
    return found


def _anything_runs(status: Document) -> bool:
    """Whether any container runs; the pod's phase may lag behind the states of its containers."""
    return any("running" in (entry.get("state") or {}) for entry in status.get("containerStatuses") or ())


def _cpu_limit(container: Document, trainer: Document) -> float | None:
    """The limit in cores that the kubelet has applied, or, as long as it reports none, that of the spec."""
    resources = trainer.get("resources") or container.get("resources") or {}
    limit = (resources.get("limits") or {}).get("cpu")
    if limit is None:
        return None
    try:
        cores = float(parse_quantity(limit))
    except ValueError:  # an API server admits a few forms that are not read here, and none that anybody writes
        return None
    return cores if 0 < cores <= MAX_CORES else None


def _message(ending: Ending, status: Document, *, deleting: bool) -> str:
    """Why the pod waits, how it ended, and who takes it away."""
    words = ending.words.message if ending.over else why_it_waits(status)
    reason = disruption(status) or ("is being deleted" if deleting and not ending.over else "")
    return as_text("; ".join(filter(None, [words, reason])), LONGEST_MESSAGE)


def _index(label: str) -> int:
    return int(label) if label.isascii() and label.isdigit() and len(label) <= LONGEST_INDEX else NO_INDEX


def worker_seen(facts: PodFacts, metrics: WorkerMetrics | None, node_lost: bool) -> WorkerSeen:
    """The worker as the core sees it. Metrics of a pod that cannot serve any are old ones, and are left out."""
    words = facts.words
    return WorkerSeen(
        name=facts.name,
        uid=facts.uid,
        group=facts.group,
        index=facts.index,
        phase=facts.phase,
        address=facts.address,
        cpu_limit=facts.cpu_limit,
        exit_code=facts.exit_code,
        finished=words.finished,
        step=words.step,
        message=words.message,
        disrupted=facts.disrupted or node_lost,
        out_of_memory=words.out_of_memory,
        script_error=words.script_error,
        evaluated=words.evaluated,
        fatal=words.fatal,
        asked_to_stop=words.asked_to_stop,
        left=words.left,
        leader=words.leader,
        deleting_since=facts.deleting_since,
        node=facts.node,
        node_lost=node_lost,
        gated=facts.gated,
        lingering=facts.lingering,
        metrics=metrics if facts.ready_to_scrape else None,
        created_at=facts.created_at,
        ended_at=facts.ended_at,
    )
