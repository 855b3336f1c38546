"""Which pods one job has: those that the watches show, without those that are gone, and with those that they lack."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from heterotrain.contract import Plan
from heterotrain_operator.clusters.kube.api_server.gateway import Gateway
from heterotrain_operator.clusters.kube.observe.absences import Absences
from heterotrain_operator.clusters.kube.observe.pod_facts import PodFacts
from heterotrain_operator.clusters.kube.observe.stale_pods import StalePods
from heterotrain_operator.clusters.kube.observe.watched import Watched
from heterotrain_operator.core.facts import worker_name
from heterotrain_operator.core.state import Memory


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
        return plan is None or any(member.uid not in shown for member in plan.members)

    def lacking(self, watched: Watched, plan: Plan | None, memory: Memory) -> list[PodFacts]:
        """Pods that the watches lack, of those whose absence would be acted on. Raises GatewayError."""
        if memory.budget.draining or memory.outcome.is_final:
            return []
        absences = self._absences
        if absences is None:
            absences = self._absences = Absences(self._gateway, watched.namespace, watched.name, watched.uid)
        # A pod that only ceases to bear the label is shown as deleted, too.
        absences.gone(uid for uid, pod in self._departed.items() if pod.deleting_since is not None)
        if plan is not None:
            return absences.members(plan.members, self.present)
        if memory.generation == 0 or not self.present:
            return []
        groups = watched.job.spec.sized_groups
        names = [worker_name(watched.name, group.name, index) for group in groups for index in range(group.replicas)]
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
