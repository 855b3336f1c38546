"""Build a job's headless Service: a DNS name for every worker, and one object that monitors can select."""

from __future__ import annotations

from typing import Any

from heterotrain import contract
from heterotrain_operator.api import HeteroTrainingJob
from heterotrain_operator.clusters.kube.objects.names import (
    LABEL_JOB,
    LABEL_ROLE,
    ROLE_WORKER,
    TRAINER_PORT,
    service_name,
)
from heterotrain_operator.clusters.kube.objects.owned import COMPONENT_WORKER, owned_metadata
from heterotrain_operator.clusters.kube.objects.trainer import METRICS_PORT_NAME


def build_service(job: HeteroTrainingJob, uid: str) -> dict[str, Any]:
    """The headless Service over a job's workers; `uid` is the job's."""
    ports = (("trainer", TRAINER_PORT), (METRICS_PORT_NAME, contract.DEFAULT_METRICS_PORT))
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": owned_metadata(job, uid, service_name(job.metadata.name), COMPONENT_WORKER),
        "spec": {
            "clusterIP": "None",
            # Workers must find one another before the readiness probes of a template succeed.
            "publishNotReadyAddresses": True,
            "selector": {LABEL_JOB: job.metadata.name, LABEL_ROLE: ROLE_WORKER},
            "ports": [{"name": name, "port": port, "targetPort": port, "protocol": "TCP"} for name, port in ports],
        },
    }
