"""Pods that a decision deletes, each asked for only once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from heterotrain_operator.clusters.kube.api_server.gateway import Gateway
from heterotrain_operator.clusters.kube.observe.pod_facts import PodFacts
from heterotrain_operator.core.model import SHORT_GRACE_SECONDS, Decision

logger = logging.getLogger(__name__)


class Deletion:
    """Deletes one job's pods, and remembers by UID those whose deletion was asked for and that are still shown."""

    def __init__(self, gateway: Gateway, gone: Callable[[str], None]) -> None:
        """`gone` takes the UID of a pod that was not there any more."""
        self._gateway = gateway
        self._gone = gone
        self.asked: set[str] = set()
        self._forced: set[str] = set()

    def carry_out(self, decision: Decision, pods: Mapping[str, PodFacts]) -> None:
        """Delete what the decision names of the `pods`, which are by name. Raises GatewayError."""
        for name in decision.delete:
            pod = pods.get(name)
            if pod is not None and pod.deleting_since is None and pod.uid not in self.asked:
                self._delete(pod, _grace_seconds(pod, decision))
                self.asked.add(pod.uid)
        for name in decision.force_delete:
            pod = pods.get(name)
            if pod is not None and pod.uid not in self._forced:
                logger.warning("job %s/%s: pod %s is deleted without its node", pod.namespace, pod.job, name)
                self._delete(pod, 0)
                self._forced.add(pod.uid)
        shown = {pod.uid for pod in pods.values()}
        self.asked &= shown
        self._forced &= shown

    def _delete(self, pod: PodFacts, grace_seconds: int | None) -> None:
        if not self._gateway.delete("Pod", pod.namespace, pod.name, uid=pod.uid, grace_seconds=grace_seconds):
            self._gone(pod.uid)


def _grace_seconds(pod: PodFacts, decision: Decision) -> int | None:
    """The grace to ask for; None: the pod's own, which may be shorter, and which alone may be none at all."""
    is_short = pod.name in decision.short_grace and pod.grace_seconds > SHORT_GRACE_SECONDS
    return SHORT_GRACE_SECONDS if is_short else None
