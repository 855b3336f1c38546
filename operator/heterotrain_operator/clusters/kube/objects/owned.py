"""What every object of a job has in common: its name, its labels, and to whom it belongs.

The job is their controller, so that the cluster removes them with it. Nothing else of the job's own metadata reaches
them: its annotations are other people's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heterotrain_operator.api import API_VERSION, KIND, HeteroTrainingJob
from heterotrain_operator.clusters.kube.objects.names import LABEL_JOB

COMPONENT_WORKER = "worker"
COMPONENT_PLAN = "plan"


class NameTakenError(Exception):
    """An object that the job needs exists under its name already, and is not the job's.

    `earlier`: it is of an earlier job of the same name, and will be removed with that.
    """

    def __init__(self, message: str, *, earlier: bool) -> None:
        super().__init__(message)
        self.earlier = earlier


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


def controller_uid(metadata: Mapping[str, Any]) -> str:
    """UID of the object that controls the one of these metadata; empty if none does."""
    return str(_controller(metadata).get("uid", ""))


def check_owner(body: Mapping[str, Any], job_name: str, uid: str) -> None:
    """Raises NameTakenError unless the object is controlled by the job of this name and UID.

    Server-side apply would take it over silently, and with it the memory of an earlier job, or what a user has put
    there.
    """
    metadata = body["metadata"]
    controller = _controller(metadata)
    if controller.get("uid") == uid:
        return
    what = f"{body['kind']} {metadata['namespace']}/{metadata['name']}"
    if controller.get("kind") == KIND:
        owner = controller["name"]
        if owner == job_name:
            raise NameTakenError(f"{what} of an earlier job {owner} is still there", earlier=True)
        raise NameTakenError(f"{what} belongs to another job, {owner}; rename one of the two", earlier=False)
    raise NameTakenError(f"{what} exists already and is not this job's; delete it, or rename the job", earlier=False)


def _controller(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller"):
            found: Mapping[str, Any] = owner
            return found
    return {}
