"""One job on a Kubernetes cluster, behind the port: what its pods do, and what is done to them.

What is read is what the indexed watch events say, so that an idle job costs the API server nothing. A stale
picture does no harm: names are deterministic, and plan and memory are written under a precondition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from heterotrain_operator.api import Problem
from heterotrain_operator.clusters.kube.act.pods import Creation, Deletion, Protection
from heterotrain_operator.clusters.kube.act.report import Report
from heterotrain_operator.clusters.kube.api_server.gateway import (
    JOB_KIND,
    Gateway,
    GatewayError,
    JobGoneError,
    missing_right,
)
from heterotrain_operator.clusters.kube.objects.names import service_name
from heterotrain_operator.clusters.kube.objects.owned import NameTakenError, check_owner
from heterotrain_operator.clusters.kube.objects.protection import Peers
from heterotrain_operator.clusters.kube.observe.job_pods import JobPods
from heterotrain_operator.clusters.kube.observe.nodes import Nodes
from heterotrain_operator.clusters.kube.observe.pod_facts import PodFacts, worker_seen
from heterotrain_operator.clusters.kube.observe.watched import Watched
from heterotrain_operator.clusters.kube.plan_store import Delivery, PlanStore
from heterotrain_operator.clusters.kube.status.job_status import invalid, outcome_in
from heterotrain_operator.clusters.kube.status.schema import tolerated
from heterotrain_operator.core.model import Condition, Decision, Event, Seen, WorkerMetrics, WorkerSeen
from heterotrain_operator.core.state import Remembered

PLAN_RESTORED = Event("Warning", "PlanRestored", "somebody else had changed the plan; it is written again")


def _hindered(error: GatewayError) -> Condition:
    """The condition that says what the API server refuses, or which right is missing."""
    right = missing_right(error)
    return Condition("Degraded", True, "RightMissing" if right else "RequestRefused", f"{right or error}; trying again")


class KubeCluster:
    """One job on a cluster, as the port; an observation is of what is `Watched`.

    Before it, `may_lack_pods`, `with_lacking_pods` and `readable` say which pods are there to be read.
    """

    def __init__(
        self, gateway: Gateway, nodes: Nodes, clock: Callable[[], float], metrics_from: Peers | None = None
    ) -> None:
        """`clock` gives Unix seconds; `metrics_from` is as for `Protection`."""
        self._gateway = gateway
        self._nodes = nodes
        self._clock = clock
        self._plans = PlanStore(gateway)
        self._pods = JobPods(gateway)
        self._creation = Creation(gateway, Protection(gateway, metrics_from))
        self._deletion = Deletion(gateway, self._pods.gone)
        self._delivery = Delivery(gateway)
        self._report = Report(gateway)
        self._service_checked = False
        self._decided: tuple[Decision, Remembered, bool] | None = None

    def may_lack_pods(self, watched: Watched) -> bool:
        """Whether a pod is not shown whose absence would be acted on, as far as that can be said without asking."""
        self._take_in(watched)
        return self._pods.may_lack(self._plans.plan)

    def with_lacking_pods(self, watched: Watched) -> Watched:
        """The same with the pods that the watch lacks, which are asked for. Raises as `observe`."""
        self._take_in(watched)
        plan = self._plans.read(watched.job, watched.uid).plan
        lacking = self._pods.lacking(watched, plan, self._plans.memory or Remembered.initial())
        return replace(watched, pods=(*watched.pods, *lacking))

    def readable(self, watched: Watched) -> list[PodFacts]:
        """The pods whose metrics are to be read."""
        self._take_in(watched)
        return [pod for pod in self._pods.present.values() if pod.ready_to_scrape]

    def refuse(self, body: Mapping[str, Any], problems: Sequence[Problem]) -> None:
        """Say in the job's status why nothing is done about it.

        Raises JobGoneError if it is no more, GatewayError if the API server fails.
        """
        self._report.refuse(body, invalid(problems), self._clock())

    def forget_status(self) -> None:
        """It is read again before the next observation."""
        self._report = Report(self._gateway)

    def hinder(self, body: Mapping[str, Any], error: GatewayError) -> None:
        """Say in the job's status what the API server refuses. Raises as `refuse`."""
        self._report.refuse(body, _hindered(error), self._clock())

    def unreadable(self, body: Mapping[str, Any], error: GatewayError) -> None:
        """Say in an event why the job cannot be read: to write a status that is not known would lose it."""
        why = _hindered(error)
        self._report.record(body, [Event("Warning", why.reason, why.message)], self._clock())

    @property
    def unfinished(self) -> bool:
        """Whether requests are left of what was decided: those whose number grows with the job's workers."""
        return self._delivery.unfinished or self._deletion.unfinished or self._creation.unfinished

    def go_on(self) -> None:
        """Some of these requests, and the report after the last. Raises GatewayError, JobGoneError."""
        if self._delivery.unfinished:
            self._delivery.deliver(self._watched.namespace)
        elif self._deletion.unfinished:
            self._deletion.go_on()
        else:
            self._gateway.check_job(self._watched.body)  # each time, for the watch of jobs may lag behind, or be lost
            self._creation.go_on()
        if self._decided is not None and not self.unfinished:
            self._finish(*self._decided)

    # --- the port -------------------------------------------------------------------------------------------

    def observe(self, watched: Watched) -> tuple[Seen, Remembered | None]:
        """Pods, plan and metrics as they are now, and the memory of decisions.

        Raises GatewayError, or NameTakenError if something else has the name of the plan's ConfigMap or the Service.
        """
        self._take_in(watched)
        self._decided = None  # what is left of a decision that failed is the next one's to name
        self._deletion.forget()
        self._creation.forget()
        stored = self._plans.read(watched.job, watched.uid)
        self._check_service(watched)
        now = self._clock()
        reading = watched.reading
        answering = {name for name, metrics in reading.metrics.items() if metrics is not None}
        self._pods.doubt(answering, self._deletion.asked, now)
        workers = tuple(self._worker(pod, reading.metrics.get(pod.name), now) for pod in self._pods.present.values())
        if stored.plan is not None:
            self._delivery.found(stored.plan, workers, now)
        self._seen = Seen(
            workers,
            stored.plan,
            metrics_problem=reading.problem,
            metrics_note=reading.note,
            refused=tuple(self._creation.refused.items()),
            departed=tuple(worker_seen(pod, None, False) for pod in self._pods.departed(stored.plan)),
        )
        return self._seen, self._plans.memory or outcome_in(tolerated(watched.body.get("status") or {}))

    def act(self, decision: Decision, memory: Remembered) -> None:
        """Carry out a decision; what is done already is not done again.

        Raises PlanConflictError if plan or memory changed since `observe`, JobGoneError if the job is no more,
        GatewayError if the API server fails. What grows with the job's workers is left to `go_on`, and so is the report
        then.
        """
        watched, seen = self._watched, self._seen
        if decision.create:
            # What is missing may be so because the job was deleted: the watch of its pods can be ahead of its own.
            self._gateway.check_job(watched.body)
        restored = self._plans.restored
        self._plans.write(watched.job, watched.uid, decision.plan, memory)
        if decision.plan is not None:
            self._delivery.published(decision.plan, seen.plan, self._clock())
        self._deletion.begin(decision, self._pods.present)
        self._creation.begin(decision, watched, self._pods.present)
        self._decided = decision, memory, restored
        if not self.unfinished:
            self._finish(*self._decided)

    # --- inside ---------------------------------------------------------------------------------------------

    def _finish(self, decision: Decision, memory: Remembered, restored: bool) -> None:
        """Say what was done; `restored`: the plan is our own again."""
        self._decided = None
        watched, now = self._watched, self._clock()
        events = self._creation.finish()
        if restored:
            events.insert(0, PLAN_RESTORED)
        self._report.record(watched.body, events, now)
        self._report.write(watched, self._seen, decision, memory=memory, now=now)
        if decision.remove_job and not self._gateway.delete(JOB_KIND, watched.namespace, watched.name, uid=watched.uid):
            raise JobGoneError(f"job {watched.namespace}/{watched.name} is gone")

    def _take_in(self, watched: Watched) -> None:
        """Sort what the watches show; to do so again changes nothing."""
        self._watched = watched
        self._pods.take_in(watched.pods)
        self._plans.shown(watched.plan_versions)
        self._report.take_in(watched.body.get("status"))

    def _check_service(self, watched: Watched) -> None:
        """The Service is applied, which would take over whatever has its name."""
        if self._service_checked:
            return
        found = self._gateway.read("Service", watched.namespace, service_name(watched.name))
        try:
            if found is not None:
                check_owner(found, watched.name, watched.uid)
        except NameTakenError as error:
            if not error.earlier:  # the Service of an earlier job is the same, and may be taken over
                raise
        self._service_checked = True

    def _worker(self, pod: PodFacts, metrics: WorkerMetrics | None, now: float) -> WorkerSeen:
        # A node is asked about only where something is wrong, since every question is a request.
        overdue = pod.deleting_since is not None and now >= pod.deleting_since
        silent = pod.ready_to_scrape and metrics is None
        lost = bool(pod.node) and (overdue or silent or pod.words.asked_to_stop) and self._nodes.lost(pod.node, now)
        return worker_seen(pod, metrics, lost)
