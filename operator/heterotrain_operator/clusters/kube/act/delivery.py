"""The plan's way into the pods: an annotation is touched, and the kubelet refreshes the pod's volumes at once."""

from __future__ import annotations

from collections.abc import Sequence

from heterotrain.contract import Plan
from heterotrain_operator.clusters.kube.api_server.gateway import Gateway
from heterotrain_operator.clusters.kube.objects.names import ANNOTATION_PLAN
from heterotrain_operator.core.model import WorkerSeen


class Delivery:
    """Which pods of one job are still to be touched for the active plan."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._undelivered: dict[str, int] = {}  # version by pod
        self._version: int | None = None

    def found(self, plan: Plan, workers: Sequence[WorkerSeen]) -> None:
        """A plan is stored; whoever wrote it may have ended before it was delivered."""
        if plan.version != self._version:
            self._undelivered, self._version = _not_following(plan, workers), plan.version

    def published(self, plan: Plan, before: Plan | None) -> None:
        """A plan was stored in the place of another."""
        self._undelivered, self._version = _receivers(plan, before), plan.version

    def deliver(self, namespace: str) -> None:
        """Touch the pods; those that were not reached are left to the next time. Raises GatewayError."""
        for name, version in list(self._undelivered.items()):
            self._gateway.annotate("Pod", namespace, name, {ANNOTATION_PLAN: str(version)})
            del self._undelivered[name]


def _receivers(plan: Plan, before: Plan | None) -> dict[str, int]:
    """Whose volumes must show the plan: the leader announces it to its group, and newcomers wait for it themselves."""
    if before is not None and before.generation == plan.generation:
        return {plan.leader: plan.version}
    return {member.name: plan.version for member in plan.members}


def _not_following(plan: Plan, workers: Sequence[WorkerSeen]) -> dict[str, int]:
    """Who does not follow the plan, or did not report that."""
    following = {w.name for w in workers if w.metrics is not None and w.metrics.plan_version >= plan.version}
    return {member.name: plan.version for member in plan.members if member.name not in following}
