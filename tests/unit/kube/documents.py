"""Documents as an API server shows them, and a small job, for tests of what is read from them and built for them."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from heterotrain_operator.api import HeteroTrainingJob, parse_manifest
from heterotrain_operator.core.model import WorkerKey
from kube_server.api_server import Document, merged

HERE = Path(__file__).parent

JOB_UID = "7e9b8a30-52a6-4b5f-8f0f-0c2a3a3b7d11"
SMALL = WorkerKey("small", 0, "digits-small-0")
LARGE = WorkerKey("large", 0, "digits-large-0")

CONTAINER: Document = {
    "name": "trainer",
    "image": "heterotrain-trainer:0.1.0",
    "command": ["python", "examples/digits.py"],
    "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "250m", "memory": "256Mi"}},
}


@cache
def read(name: str) -> Any:
    """A YAML file beside this one."""
    return yaml.safe_load((HERE / name).read_text())


def pod(changes: Document | None = None) -> Document:
    """A worker's pod that trains, changed by a merge patch."""
    return merged(copy.deepcopy(read("pod.yaml")), changes or {})


def job(
    spec: Document | None = None,
    *,
    metadata: Document | None = None,
    pod_metadata: Document | None = None,
    pod_spec: Document | None = None,
    **container: Any,
) -> HeteroTrainingJob:
    """The job `digits` with the groups small (2 workers) and large (1); `spec` is a merge patch of its spec.

    What else is given goes to both groups' templates, `container` into their first container (None takes away).
    """
    first = merged(CONTAINER, container)
    template = {"metadata": pod_metadata or {}, "spec": {"containers": [first], **(pod_spec or {})}}
    document: Document = {
        "apiVersion": "heterotrain.dev/v1alpha1",
        "kind": "HeteroTrainingJob",
        "metadata": {
            "name": "digits",
            "namespace": "team-a",
            "uid": JOB_UID,
            "generation": 3,
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
            **(metadata or {}),
        },
        "spec": {
            "workerGroups": [
                {"name": "small", "replicas": 2, "template": template},
                {"name": "large", "template": template},
            ],
            "training": {"globalBatchSize": 192, "steps": 150},
        },
    }
    return parse_manifest(merged(document, {"spec": spec or {}}))


def groups(**changes: Any) -> Document:
    """A spec in which the only group, small, has these fields too; for `job`."""
    group = {"name": "small", "replicas": 2, "template": {"spec": {"containers": [CONTAINER]}}}
    return {"workerGroups": [merged(group, changes)]}
