"""Why a pod does not run yet."""

from __future__ import annotations

from heterotrain_operator.clusters.kube.observe.pod_status import (
    Document,
    condition_of,
    containers_in,
    pod_reason,
    worded,
)

_GATED = "SchedulingGated"
"""Reason of a pod that is not scheduled."""

_PLAIN_WAITS = frozenset({"PodInitializing"})
"""Reasons of a waiting container that only refer to another container."""


def why_it_waits(status: Document) -> str:
    """Why a pod does not run yet: not scheduled, or a container that cannot start; empty if nothing is known."""
    if reason := pod_reason(status):
        return reason
    for kind, entry in containers_in(status):
        waiting = (entry.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") and waiting["reason"] not in _PLAIN_WAITS:
            return f"{kind}{worded(waiting)}"
    scheduled = condition_of(status, "PodScheduled")
    return worded(scheduled) if scheduled.get("status") == "False" else ""


def is_gated(spec: Document, status: Document) -> bool:
    """Whether the scheduler passes over a pod, because somebody, such as a queue, has put a gate on it."""
    return bool(spec.get("schedulingGates")) or condition_of(status, "PodScheduled").get("reason") == _GATED
