"""Whether somebody else ends a pod, because a restart counts only if it was the worker's own fault."""

from __future__ import annotations

from heterotrain_operator.clusters.kube.observe.pod_status import Document, condition_of, worded

_TAKEN_AWAY = frozenset({"Preempting", "NodeLost", "NodeShutdown", "Shutdown", "Terminated"})
"""Reasons of a pod that somebody else ended: preempted by the kubelet, its node lost or shut down."""

_REJECTED = frozenset(
    {
        "NodeAffinity",
        "NodeName",
        "NodePorts",
        "TaintToleration",
        "TopologyAffinityError",
        "UnexpectedAdmissionError",
    }
)
_OUT_OF = "OutOf"
"""Reasons of a pod that the kubelet did not admit to the node that the scheduler had found for it, and the beginning of
those that name a resource, as OutOfcpu does. Source: Kubernetes 1.34, `pkg/kubelet/lifecycle/predicate.go` and
`pkg/kubelet/cm/topologymanager`.
"""

_EVICTED = "Evicted"
_LOST = frozenset({"ContainerStatusUnknown", "Unknown"})
"""Reasons of a container that ended unobserved, as all containers of a node that stops at once."""


def is_disrupted(status: Document, trainer: Document) -> bool:
    """Whether a pod was or is being ended by somebody else, as far as its status says."""
    reason = status.get("reason") or ""
    if disruption(status) or reason in _TAKEN_AWAY or reason in _REJECTED or reason.startswith(_OUT_OF):
        return True
    if reason == _EVICTED:
        # Its node ran out of memory. A pod that exceeded its own limit on storage would do so again, and counts.
        return "exceed" not in (status.get("message") or "")
    terminated = (trainer.get("state") or {}).get("terminated") or {}
    return terminated.get("reason") in _LOST


def disruption(status: Document) -> str:
    """Who takes the pod away and why, in Kubernetes' words; empty if its condition DisruptionTarget is not true."""
    condition = condition_of(status, "DisruptionTarget")
    return worded(condition) or "DisruptionTarget" if condition.get("status") == "True" else ""
