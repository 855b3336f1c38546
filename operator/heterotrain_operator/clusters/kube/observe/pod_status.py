"""Where a pod's status says something: its own reason, its conditions, and the states of its containers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Document = Mapping[str, Any]


def pod_reason(status: Document) -> str:
    """Why the pod as a whole is as it is; empty if that is not said."""
    return worded(status) if status.get("reason") else ""


def worded(entry: Document) -> str:
    """A reason and its message."""
    return ": ".join(filter(None, [entry.get("reason"), (entry.get("message") or "").strip()]))


def condition_of(status: Document, kind: str) -> Document:
    """The condition of a type; empty if there is none."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == kind:
            found: Document = condition
            return found
    return {}


def containers_in(status: Document) -> Iterator[tuple[str, Document]]:
    """All containers' statuses in the order in which they start, each with how to call it."""
    for entry in status.get("initContainerStatuses") or ():
        yield f"init container {entry['name']}: ", entry
    containers: Sequence[Document] = status.get("containerStatuses") or ()
    for entry in containers:
        yield (f"container {entry['name']}: " if len(containers) > 1 else ""), entry
