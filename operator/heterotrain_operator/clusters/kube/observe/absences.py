"""Pods that the watch does not show but that are there.

An index may lag behind, or have lost a pod, as one whose label somebody took away. A member of the plan that is gone
costs a restart of all the others, so none is taken for gone before the API server itself has said so.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from heterotrain.contract import Member
from heterotrain_operator.clusters.kube.api_server.gateway import Gateway
from heterotrain_operator.clusters.kube.objects.names import LABEL_JOB
from heterotrain_operator.clusters.kube.observe.pod_facts import PodFacts, pod_facts

POD_NAME = re.compile("[a-z0-9]([-a-z0-9]*[a-z0-9])?")

FEW = 16
"""Up to so many pods are asked for one by one; beyond, one list says which are there."""


class Absences:
    """Which of one job's pods that are not shown were asked for, and are gone indeed."""

    def __init__(self, gateway: Gateway, namespace: str, job: str, job_uid: str) -> None:
        self._gateway = gateway
        self._namespace, self._job, self._job_uid = namespace, job, job_uid
        self._gone: set[str] = set()

    def gone(self, uids: Iterable[str]) -> None:
        """The watch has shown that these are gone."""
        self._gone.update(uids)

    def members(self, members: Collection[Member], shown: Mapping[str, PodFacts]) -> list[PodFacts]:
        """The members that are not shown, and are there all the same. Raises GatewayError."""
        self._gone &= {member.uid for member in members}
        there = {pod.uid for pod in shown.values()}
        absent = {m.name: m.uid for m in members if m.uid not in there and m.uid not in self._gone}
        asked = absent
        if len(absent) > FEW:
            listed = self._listed()
            asked = {name: uid for name, uid in absent.items() if uid in listed}
        found = [pod for name, uid in asked.items() if (pod := self._found(name)) is not None and pod.uid == uid]
        self._gone |= set(absent.values()) - {pod.uid for pod in found}
        return found

    def workers(self, names: Iterable[str], shown: Mapping[str, PodFacts]) -> list[PodFacts]:
        """The pods of these names that are not shown, and are there all the same. Raises GatewayError."""
        absent = [name for name in names if name not in shown]
        if len(absent) > FEW and self._listed() <= {pod.uid for pod in shown.values()}:
            return []
        return [pod for name in absent if (pod := self._found(name)) is not None]

    def _listed(self) -> frozenset[str]:
        return self._gateway.uids("Pod", self._namespace, LABEL_JOB, self._job)

    def _found(self, name: str) -> PodFacts | None:
        if not POD_NAME.fullmatch(name):
            return None  # a plan may have been written by anybody
        body = self._gateway.read("Pod", self._namespace, name)
        pod = None if body is None else pod_facts(body)
        return pod if pod is not None and pod.owner_uid == self._job_uid else None
