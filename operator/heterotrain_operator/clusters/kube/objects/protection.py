"""What keeps everybody else from a job's workers: a secret by which they know one another, and a NetworkPolicy.

The policy is one for each job and made here, because a policy selects peers by labels that are written down in it: one
for a whole namespace could not keep the workers of its jobs apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from heterotrain import contract
from heterotrain_operator.api import HeteroTrainingJob
from heterotrain_operator.clusters.kube.objects.names import (
    LABEL_JOB,
    LABEL_ROLE,
    ROLE_SERVER,
    ROLE_WORKER,
    SECRET_KEY,
    TRAINER_PORT,
    policy_name,
)
from heterotrain_operator.clusters.kube.objects.owned import COMPONENT_WORKER, owned_metadata

Document = dict[str, Any]
Peers = Sequence[Mapping[str, Any]]


def build_secret(job: HeteroTrainingJob, uid: str, name: str, secret: str) -> Document:
    """The Secret of a job. It is immutable, for workers that read it before and after a change could not connect."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": owned_metadata(job, uid, name, COMPONENT_WORKER),
        "immutable": True,
        "stringData": {SECRET_KEY: secret},
    }


def build_policy(job: HeteroTrainingJob, uid: str, metrics_from: Peers) -> Document:
    """The NetworkPolicy over a job's workers, and its parameter server, for incoming connections.

    Workers reach one another at any port, since gloo's are chosen by the system. Ports that a template names stay open
    to all; the port of the rendezvous does not, even if a template names it.
    """
    workers: Document = {"matchLabels": {LABEL_JOB: job.metadata.name, LABEL_ROLE: ROLE_WORKER}}
    if job.spec.parameter_server is not None:
        roles = {"key": LABEL_ROLE, "operator": "In", "values": [ROLE_WORKER, ROLE_SERVER]}
        workers = {"matchLabels": {LABEL_JOB: job.metadata.name}, "matchExpressions": [roles]}
    metrics = [{"port": contract.DEFAULT_METRICS_PORT, "protocol": "TCP"}]
    ingress: list[Document] = [
        {"from": [{"podSelector": workers}]},
        {"from": [dict(peer) for peer in metrics_from], "ports": metrics},
    ]
    named = _named_ports(group.template for group in job.spec.pod_groups)
    if named:
        ingress.append({"ports": [{"port": port, "protocol": protocol} for port, protocol in named]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": owned_metadata(job, uid, policy_name(job.metadata.name), COMPONENT_WORKER),
        "spec": {"podSelector": workers, "policyTypes": ["Ingress"], "ingress": ingress},
    }


def _named_ports(templates: Iterable[Mapping[str, Any]]) -> list[tuple[int, str]]:
    """Ports that containers of the templates name, beside ours."""
    ours = {(TRAINER_PORT, "TCP"), (contract.DEFAULT_METRICS_PORT, "TCP")}
    found: set[tuple[int, str]] = set()
    for template in templates:
        for kind in ("containers", "initContainers"):
            for container in template["spec"].get(kind) or ():
                ports = container.get("ports") or ()
                found |= {(port["containerPort"], port.get("protocol") or "TCP") for port in ports}
    return sorted(found - ours)
