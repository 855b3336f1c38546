"""The plan's way into the pods: an annotation is touched, and the kubelet refreshes the pod's volumes at once.

What it refreshes them from may be old, so pods whose workers do not follow are touched again, for as long as a volume
may be late.
"""

from __future__ import annotations

from collections.abc import Sequence

from heterotrain.contract import Plan
from heterotrain_operator.clusters.kube.api_server.gateway import Gateway
from heterotrain_operator.clusters.kube.moments import timestamp
from heterotrain_operator.clusters.kube.objects.names import ANNOTATION_PLAN, ANNOTATION_TOUCHED
from heterotrain_operator.core.lifecycle.following import DELIVERY_SECONDS
from heterotrain_operator.core.model import WorkerSeen

AGAIN_SECONDS = 5.0
"""Shortest time between two touches of a pod for one plan."""

MOST_AGAIN = 100
"""Pods that are touched again at once: of a plan that none of thousands follows yet, the others follow most likely with
the first of them, and each touch is a request."""


class Delivery:
    """Which pods of one job are still to be touched for the active plan. Moments are Unix seconds."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._undelivered: dict[str, str] = {}  # by pod, when it was touched before; empty: not yet for this plan
        self._receivers: frozenset[str] = frozenset()
        self._version: int | None = None
        self._since = self._touched_at = 0.0

    def found(self, plan: Plan, workers: Sequence[WorkerSeen], now: float) -> None:
        """A plan is stored; whoever wrote it may have ended before it was delivered, or it has not arrived."""
        if plan.version != self._version:
            self._begin(plan, _not_following(plan, workers), now)
            return
        is_due = now - self._touched_at >= AGAIN_SECONDS and now - self._since <= DELIVERY_SECONDS
        if self._undelivered or not self._receivers or not is_due:
            return
        there = {worker.name for worker in workers if worker.phase == "Running"}
        late = [name for name in _not_following(plan, workers) if name in self._receivers and name in there]
        self._undelivered = dict.fromkeys(late[:MOST_AGAIN], timestamp(now))
        self._receivers = self._receivers & frozenset(late)
        self._touched_at = now

    def published(self, plan: Plan, before: Plan | None, now: float) -> None:
        """A plan was stored in the place of another."""
        self._begin(plan, _receivers(plan, before), now)

    def deliver(self, namespace: str) -> None:
        """Touch the pods; those that were not reached are left to the next time. Raises GatewayError."""
        for name, again in list(self._undelivered.items()):
            touched = {ANNOTATION_PLAN: str(self._version)}
            if again:
                touched[ANNOTATION_TOUCHED] = again
            self._gateway.annotate("Pod", namespace, name, touched)
            del self._undelivered[name]

    def _begin(self, plan: Plan, receivers: Sequence[str], now: float) -> None:
        self._undelivered = dict.fromkeys(receivers, "")
        self._receivers, self._version = frozenset(receivers), plan.version
        self._since = self._touched_at = now


def _receivers(plan: Plan, before: Plan | None) -> list[str]:
    """Whose volumes must show the plan: the leader announces it to its group, and newcomers wait for it themselves."""
    if before is not None and before.generation == plan.generation:
        return [plan.leader]
    return [member.name for member in plan.members]


def _not_following(plan: Plan, workers: Sequence[WorkerSeen]) -> list[str]:
    """Who does not follow the plan, or did not report that, by rank."""
    following = {w.name for w in workers if w.metrics is not None and w.metrics.plan_version >= plan.version}
    return [member.name for member in plan.members if member.name not in following]
