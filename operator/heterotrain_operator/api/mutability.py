"""Which fields may change while a job exists; all others are immutable, in the CRD and in its reference.

A suspended job is no exception: its checkpoint was made by what it asked for before.
"""

from __future__ import annotations

MUTABLE = (
    "spec.replicas",
    "spec.workerGroups[].replicas",
    "spec.workerGroups[].minReplicas",
    "spec.workerGroups[].maxReplicas",
    "spec.workerGroups[].batchSize",
    "spec.workerGroups[].pricePerHour",
    "spec.batching",
    "spec.stragglers",
    "spec.scaling",
    "spec.runPolicy",
)
"""Paths, `[]` for every entry of a list; whatever lies below one of them is mutable too."""


def is_mutable(path: str) -> bool:
    """Whether the field at a path (with `[]` for list entries) may change while the job exists."""
    return any(path == mutable or path.startswith((f"{mutable}.", f"{mutable}[")) for mutable in MUTABLE)
