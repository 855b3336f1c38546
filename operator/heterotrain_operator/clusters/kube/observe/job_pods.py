"""Which pods one job has: those that the watches show, without those that are gone, and with those that they lack.

An index may lag behind, or have lost a pod, as one whose label somebody took away. A member of the plan that is gone
costs a restart of all the others, so none is taken for gone before the API server itself has said so.

A watch that has to start again, as after a restart of the API server, lists what is there and does not report what was
removed in between. A job that waits for such a pod to answer, or to go away, would wait for ever.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from heterotrain.contract import Member, Plan, Server
from heterotrain_operator.clusters.kube.api_server.gateway import Gateway
from heterotrain_operator.clusters.kube.objects.names import LABEL_JOB
from heterotrain_operator.clusters.kube.observe.pod_facts import PodFacts, pod_facts
from heterotrain_operator.clusters.kube.observe.watched import Watched
from heterotrain_operator.core.facts import worker_name
from heterotrain_operator.core.model import SERVER_GROUP
from heterotrain_operator.core.state import Remembered

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

    def members(self, members: Collection[Member | Server], shown: Mapping[str, PodFacts]) -> list[PodFacts]:
        """The pods that a plan names that are not shown, and are there all the same. Raises GatewayError."""
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


class JobPods:
    """`present` are the pods that there are, by name."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._stale = StalePods(gateway)
        self._absences: Absences | None = None
        self._departed: dict[str, PodFacts] = {}  # by UID
        self.present: dict[str, PodFacts] = {}

    def take_in(self, shown: Sequence[PodFacts]) -> None:
        """What the watches show now, with the pods gone since the last time; to do so again changes nothing."""
        self._departed |= {pod.uid: pod for pod in shown if pod.gone}
        self._keep([pod for pod in shown if not pod.gone])

    def may_lack(self, plan: Plan | None) -> bool:
        """Whether a pod is not shown whose absence would be acted on, as far as that can be said without asking."""
        shown = {pod.uid for pod in self.present.values()}
        return plan is None or any(each.uid not in shown for each in _named(plan))

    def lacking(self, watched: Watched, plan: Plan | None, memory: Remembered) -> list[PodFacts]:
        """Pods that the watches lack, of those whose absence would be acted on. Raises GatewayError."""
        if memory.budget.draining or memory.outcome.is_final:
            return []
        absences = self._absences
        if absences is None:
            absences = self._absences = Absences(self._gateway, watched.namespace, watched.name, watched.uid)
        # A pod that only ceases to bear the label is shown as deleted, too.
        absences.gone(uid for uid, pod in self._departed.items() if pod.deleting_since is not None)
        if plan is not None:
            return absences.members(_named(plan), self.present)
        if memory.generation == 0 or not self.present:
            return []
        groups = watched.job.spec.sized_groups
        names = [worker_name(watched.name, group.name, index) for group in groups for index in range(group.replicas)]
        names += [] if watched.job.spec.parameter_server is None else [worker_name(watched.name, SERVER_GROUP, 0)]
        return absences.workers(names, self.present)

    def doubt(self, answering: Collection[str], deleted: Collection[str], now: float) -> None:
        """Doubt pods that neither answer (`answering` are names) nor have ended, and those whose deletion was asked for
        (`deleted` are UIDs) and that do not go; `now` in Unix seconds.

        Raises GatewayError.
        """
        pods = list(self.present.values())
        doubtful = any(
            pod.uid in deleted or (pod.name not in answering and pod.phase in ("Pending", "Running")) for pod in pods
        )
        self._stale.look_for(pods, doubtful=doubtful, now=now)
        self._keep(pods)

    def gone(self, uid: str) -> None:
        """A pod was not there any more when it was to be deleted."""
        self._stale.gone(uid)

    def departed(self, plan: Plan | None) -> list[PodFacts]:
        """Members of the plan whose pods are gone, as they were seen last; others are forgotten."""
        members = set() if plan is None else {member.uid for member in plan.members}
        members -= {pod.uid for pod in self.present.values()}
        self._departed = {uid: pod for uid, pod in self._departed.items() if uid in members}
        return list(self._departed.values())

    def _keep(self, pods: Sequence[PodFacts]) -> None:
        self.present = {pod.name: pod for pod in self._stale.without(pods)}


def _named(plan: Plan) -> list[Member | Server]:
    """All that a plan names."""
    return [*plan.members, *([] if plan.server is None else [plan.server])]
