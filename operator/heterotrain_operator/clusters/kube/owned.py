"""What every object of a job has in common: its name, its labels, and to whom it belongs.

The job is their controller, so that the cluster removes them with it. Nothing else of the job's own metadata reaches
them: its annotations are other people's business.
"""

from __future__ import annotations

from typing import Any

from heterotrain_operator.api import API_VERSION, KIND, HeteroTrainingJob
from heterotrain_operator.clusters.kube.names import LABEL_JOB

COMPONENT_WORKER = "worker"
COMPONENT_PLAN = "plan"


def owned_metadata(job: HeteroTrainingJob, uid: str, name: str, component: str) -> dict[str, Any]:
    """The metadata of an object that belongs to a job; `uid` is the job's."""
    metadata: dict[str, Any] = {
        "name": name,
        "labels": {
            "app.kubernetes.io/name": "heterotrain",
            "app.kubernetes.io/instance": job.metadata.name,
            "app.kubernetes.io/component": component,
            "app.kubernetes.io/part-of": "heterotrain",
            "app.kubernetes.io/managed-by": "heterotrain-operator",
            LABEL_JOB: job.metadata.name,
        },
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": job.metadata.name,
                "uid": uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
    if job.metadata.namespace is not None:
        metadata["namespace"] = job.metadata.namespace
    return metadata
