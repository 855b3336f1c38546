"""Events as Kubernetes shows them beside an object: what was done, and why, in words and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from heterotrain_operator.clusters.kube.objects.names import FIELD_MANAGER
from heterotrain_operator.core.model import Event

LONGEST_MESSAGE = 1024
"""Characters; the API server refuses more."""


def build_event(job: Mapping[str, Any], event: Event, now: float) -> dict[str, Any]:
    """The core/v1 Event about a job, given by apiVersion, kind and metadata; `now` in Unix seconds."""
    metadata = job["metadata"]
    moment = datetime.fromtimestamp(int(now), tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": job["apiVersion"],
            "kind": job["kind"],
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": event.kind,
        "reason": event.reason,
        "message": event.message[:LONGEST_MESSAGE],
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }
