"""Pods that the watch still shows but that are gone.

A watch that has to start again, as after a restart of the API server, lists what is there and does not report what was
removed in between. A job that waits for such a pod to answer, or to go away, would wait for ever.
"""

from __future__ import annotations

from collections.abc import Sequence

from heterotrain_operator.clusters.kube.api_server.gateway import Gateway
from heterotrain_operator.clusters.kube.objects.names import LABEL_JOB
from heterotrain_operator.clusters.kube.observe.pod_facts import PodFacts

DOUBT_SECONDS = 10.0
"""Pods are waited for this long before the API server is asked which are there, and between two such questions."""


class StalePods:
    """What is known to be gone of one job's pods, by their UIDs."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._uids: set[str] = set()
        self._asked_at: float | None = None

    def without(self, pods: Sequence[PodFacts]) -> list[PodFacts]:
        """The pods that are not known to be gone."""
        self._uids &= {pod.uid for pod in pods}
        return [pod for pod in pods if pod.uid not in self._uids]

    def gone(self, uid: str) -> None:
        """A pod was not there any more when it was to be deleted."""
        self._uids.add(uid)

    def look_for(self, pods: Sequence[PodFacts], *, doubtful: bool, now: float) -> None:
        """Ask which of the pods are there, once they have been doubtful for a while; `now` in Unix seconds.

        Raises GatewayError.
        """
        if not doubtful or self._asked_at is None or now < self._asked_at:
            self._asked_at = now
        if not pods or now - self._asked_at < DOUBT_SECONDS:
            return
        self._asked_at = now
        there = self._gateway.uids("Pod", pods[0].namespace, LABEL_JOB, pods[0].job)
        self._uids |= {pod.uid for pod in pods} - there
