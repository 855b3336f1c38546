"""One job on a Kubernetes cluster, behind the port: what its pods do, and what is done to them.

What is read is what the indexed watch events say, so that an idle job costs the API server nothing. A stale
picture does no harm: names are deterministic, and plan and memory are written under a precondition.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from heterotrain.contract import Plan
from heterotrain_operator.api import Problem
from heterotrain_operator.clusters.kube.gateway import (
    FORBIDDEN,
    JOB_KIND,
    ConflictError,
    Gateway,
    GatewayError,
    JobGoneError,
)
from heterotrain_operator.clusters.kube.objects.names import ANNOTATION_PLAN, service_name
from heterotrain_operator.clusters.kube.objects.owned import NameTakenError, check_owner
from heterotrain_operator.clusters.kube.objects.pods import build_pod
from heterotrain_operator.clusters.kube.objects.protection import Peers, Protection
from heterotrain_operator.clusters.kube.objects.service import build_service
from heterotrain_operator.clusters.kube.observe.absences import Absences
from heterotrain_operator.clusters.kube.observe.nodes import Nodes
from heterotrain_operator.clusters.kube.observe.observed import PodFacts, worker_seen
from heterotrain_operator.clusters.kube.observe.stale_pods import Ghosts
from heterotrain_operator.clusters.kube.observe.watched import Watched
from heterotrain_operator.clusters.kube.plan_store import PlanStore
from heterotrain_operator.clusters.kube.slow_start import Refusal, create_slowly
from heterotrain_operator.clusters.kube.status.events import build_event
from heterotrain_operator.clusters.kube.status.invalid import invalid_status
from heterotrain_operator.clusters.kube.status.job_status import next_status, tolerated, worth_writing
from heterotrain_operator.clusters.kube.status.outcome import outcome_in
from heterotrain_operator.core.facts import worker_name
from heterotrain_operator.core.model import Decision, Event, Seen, WorkerKey, WorkerSeen
from heterotrain_operator.core.state import Memory

logger = logging.getLogger(__name__)

REFUSALS = frozenset({400, 403, 404, 409, 422})
"""HTTP statuses with which the API server refuses a pod for what it is, and will again."""

CREATED = "SuccessfulCreatePod"

_FIGURE = re.compile(r"\d+")
"""What differs between two refusals of the same kind, as by how much a quota is exceeded."""


class KubeCluster:
    """One job on a cluster, as the port; an observation is of what is `Watched`.

    Before it, `may_lack_pods`, `with_lacking_pods` and `readable` say which pods are there to be read.
    """

    def __init__(
        self, gateway: Gateway, nodes: Nodes, clock: Callable[[], float], metrics_from: Peers | None = None
    ) -> None:
        """`clock` gives Unix seconds; `metrics_from` is as for `Protection`."""
        self._gateway = gateway
        self._protection = Protection(gateway, metrics_from)
        self._nodes = nodes
        self._clock = clock
        self._plans = PlanStore(gateway)
        self._ghosts = Ghosts(gateway)
        self._absences: Absences | None = None
        self._undelivered: dict[str, int] = {}
        self._delivering: int | None = None
        self._deleted: set[str] = set()
        self._forced: set[str] = set()
        self._refused: dict[str, str] = {}
        self._refusals_told: frozenset[str] = frozenset()
        self._departed: dict[str, PodFacts] = {}  # by UID
        self._service_checked = False
        self._status: Mapping[str, Any] | None = None  # as it was written last
        self._known: Mapping[str, Any] | None = None  # as it was found last, worth a write or not
        self._status_at: float | None = None

    def may_lack_pods(self, watched: Watched) -> bool:
        """Whether a pod is not shown whose absence would be acted on, as far as that can be told without asking."""
        self._take_in(watched)
        plan, shown = self._plans.plan, {pod.uid for pod in self._pods.values()}
        return plan is None or any(member.uid not in shown for member in plan.members)

    def with_lacking_pods(self, watched: Watched) -> Watched:
        """The same with the pods that the watch lacks, which are asked for. Raises as `observe`."""
        self._take_in(watched)
        plan = self._plans.read(self._job, self._uid).plan
        return replace(watched, pods=(*watched.pods, *self._not_shown(plan)))

    def readable(self, watched: Watched) -> list[PodFacts]:
        """The pods whose metrics are to be read."""
        self._take_in(watched)
        return [pod for pod in self._pods.values() if pod.ready_to_scrape]

    def refuse(self, body: Mapping[str, Any], problems: Sequence[Problem]) -> None:
        """Say in the job's status why nothing is done about it.

        Raises JobGoneError if it is no more, GatewayError if the API server fails.
        """
        metadata, now = body["metadata"], self._clock()
        before = self._status if self._status is not None else body.get("status")
        status = invalid_status(before, metadata["generation"], problems, now)
        if status != before:
            self._gateway.write_status(metadata["namespace"], metadata["name"], metadata["uid"], status)
        self._status = self._known = status
        self._status_at = now

    # --- the port -------------------------------------------------------------------------------------------

    def observe(self, watched: Watched) -> tuple[Seen, Memory | None]:
        """Pods, plan and metrics as they are now, and the memory of decisions.

        Raises GatewayError, or NameTakenError if something else has the name of the plan's ConfigMap or the Service.
        """
        self._take_in(watched)
        stored = self._plans.read(self._job, self._uid)
        self._check_service()
        now = self._clock()
        reading = watched.reading
        self._look_for_ghosts({name for name, metrics in reading.metrics.items() if metrics is not None}, now)
        workers = []
        for pod in self._pods.values():
            metrics = reading.metrics.get(pod.name)
            # A node is asked about only where something is wrong, since every question is a request.
            overdue = pod.deleting_since is not None and now >= pod.deleting_since
            silent = pod.ready_to_scrape and metrics is None
            lost = bool(pod.node) and (overdue or silent or pod.asked_to_stop) and self._nodes.lost(pod.node, now)
            workers.append(worker_seen(pod, metrics, lost))
        if stored.plan is not None and stored.plan.version != self._delivering:
            # Whoever wrote this plan may not have lived to deliver it.
            self._undelivered, self._delivering = _behind(stored.plan, workers), stored.plan.version
        members = set() if stored.plan is None else {member.uid for member in stored.plan.members}
        members -= {pod.uid for pod in self._pods.values()}
        self._departed = {uid: pod for uid, pod in self._departed.items() if uid in members}
        self._seen = Seen(
            tuple(workers),
            stored.plan,
            metrics_problem=reading.problem,
            metrics_note=reading.note,
            refused=tuple(self._refused.items()),
            departed=tuple(worker_seen(pod, None, False) for pod in self._departed.values()),
        )
        return self._seen, self._plans.memory or outcome_in(tolerated(self._body.get("status") or {}))

    def act(self, decision: Decision, memory: Memory) -> None:
        """Carry out a decision; what is done already is not done again.

        Raises PlanConflictError if plan or memory changed since `observe`, JobGoneError if the job is no more,
        GatewayError if the API server fails.
        """
        now = self._clock()
        if decision.create:
            # What is missing may be so because the job was deleted: the watch of its pods can be ahead of its own.
            check_job(self._gateway, self._body)
        self._plans.write(self._job, self._uid, decision.plan, memory)
        if decision.plan is not None:
            self._undelivered = _receivers(decision.plan, self._seen.plan)
            self._delivering = decision.plan.version
        self._deliver()
        self._delete(decision)
        refusals = self._create(decision)
        self._tell([*self._as_done(decision), *refusals], now)
        self._report(decision, memory, now)
        if decision.remove_job and not self._gateway.delete(JOB_KIND, self._namespace, self._name, uid=self._uid):
            raise JobGoneError(f"job {self._namespace}/{self._name} is gone")

    # --- inside ---------------------------------------------------------------------------------------------

    def _take_in(self, watched: Watched) -> None:
        """Sort what the watches show; to do so again changes nothing."""
        self._body, self._job = watched.body, watched.job
        self._departed |= {pod.uid: pod for pod in watched.pods if pod.gone}
        self._pods = {pod.name: pod for pod in self._ghosts.without([pod for pod in watched.pods if not pod.gone])}
        self._plans.shown(watched.plan_versions)
        if self._status is None:
            self._status = watched.body.get("status")
            self._known = tolerated(self._status or {})

    @property
    def _name(self) -> str:
        return self._job.metadata.name

    @property
    def _namespace(self) -> str:
        namespace: str = self._body["metadata"]["namespace"]
        return namespace

    @property
    def _uid(self) -> str:
        uid: str = self._body["metadata"]["uid"]
        return uid

    def _check_service(self) -> None:
        """The Service is applied, which would take over whatever has its name."""
        if self._service_checked:
            return
        found = self._gateway.read("Service", self._namespace, service_name(self._name))
        try:
            if found is not None:
                check_owner(found, self._name, self._uid)
        except NameTakenError as error:
            if not error.earlier:  # that of an earlier job is the same, and may be taken over
                raise
        self._service_checked = True

    def _not_shown(self, plan: Plan | None) -> list[PodFacts]:
        """Pods that the watch lacks, of those whose absence would be acted on."""
        memory = self._plans.memory or Memory.initial()
        if memory.draining or memory.outcome:
            return []
        absences = self._absences
        if absences is None:
            absences = self._absences = Absences(self._gateway, self._namespace, self._name, self._uid)
        # What only ceases to bear the label is told of as deleted too.
        absences.gone(uid for uid, pod in self._departed.items() if pod.deleting_since is not None)
        if plan is not None:
            return absences.members(plan.members, self._pods)
        if memory.generation == 0:
            return []
        groups = self._job.spec.worker_groups
        names = [worker_name(self._name, group.name, index) for group in groups for index in range(group.replicas)]
        return absences.workers(names, self._pods) if self._pods else []

    def _look_for_ghosts(self, answering: Collection[str], now: float) -> None:
        """Doubt pods that neither answer nor have ended, and those that were deleted and do not go."""
        pods = list(self._pods.values())
        doubtful = any(
            pod.uid in self._deleted or (pod.name not in answering and pod.phase in ("Pending", "Running"))
            for pod in pods
        )
        self._ghosts.look_for(pods, doubtful=doubtful, now=now)
        self._pods = {pod.name: pod for pod in self._ghosts.without(pods)}

    def _deliver(self) -> None:
        """Touch the pods whose volumes must be refreshed at once."""
        for name, version in list(self._undelivered.items()):
            self._gateway.annotate("Pod", self._namespace, name, {ANNOTATION_PLAN: str(version)})
            del self._undelivered[name]

    def _delete(self, decision: Decision) -> None:
        for name in decision.delete:
            pod = self._pods.get(name)
            if pod is not None and pod.deleting_since is None and pod.uid not in self._deleted:
                self._delete_pod(pod, None)
                self._deleted.add(pod.uid)
        for name in decision.force_delete:
            pod = self._pods.get(name)
            if pod is not None and pod.uid not in self._forced:
                logger.warning("job %s/%s: pod %s is deleted without its node", self._namespace, self._name, name)
                self._delete_pod(pod, 0)
                self._forced.add(pod.uid)
        there = {pod.uid for pod in self._pods.values()}
        self._deleted &= there
        self._forced &= there

    def _delete_pod(self, pod: PodFacts, grace_seconds: int | None) -> None:
        if not self._gateway.delete("Pod", self._namespace, pod.name, uid=pod.uid, grace_seconds=grace_seconds):
            self._ghosts.gone(pod.uid)

    def _as_done(self, decision: Decision) -> list[Event]:
        """The decision's events; of pods that were to be created only what was."""
        done = len(decision.create) - len(self._refused)
        if not decision.create or not self._refused:
            return list(decision.events)
        others = [event for event in decision.events if event.reason != CREATED]
        told = len(others) < len(decision.events) and done > 0
        return [*others, Event("Normal", CREATED, f"created {done} of {len(decision.create)} pods")] if told else others

    def _create(self, decision: Decision) -> list[Event]:
        """Create what is missing. Returns an event for each new reason for which pods are refused."""
        if not decision.create:
            return []
        absent = [key for key in decision.create if key.name not in self._pods]
        unfit, skipped = self._prepare(), tuple[str, ...]()
        if unfit:
            refused = {key.name: Refusal(unfit, "all") for key in absent}
        else:
            refused, skipped = create_slowly(absent, self._create_pod)
        after = f"not tried after the refusal of {next(iter(refused), '')}"
        self._refused = {name: refusal.why for name, refusal in refused.items()} | dict.fromkeys(skipped, after)
        reasons: dict[str, str] = {}
        for name, refusal in refused.items():
            reasons.setdefault(_FIGURE.sub("#", refusal.why.replace(name, "")), refusal.why)
        told, self._refusals_told = self._refusals_told, frozenset(reasons)
        count = f"{len(self._refused)} of {len(absent)} pods are not created: " if len(self._refused) > 1 else ""
        return [
            Event("Warning", "FailedCreatePod", f"{count}{why}") for kind, why in reasons.items() if kind not in told
        ]

    def _prepare(self) -> str:
        """Why something is refused without which pods would have no names, would not start or be open to strangers;
        empty if all is there now."""
        try:
            self._gateway.apply(build_service(self._job, self._uid))
            self._protection.provide(self._job, self._uid)
        except NameTakenError as error:
            return str(error)
        except GatewayError as error:
            if error.status not in REFUSALS:
                raise
            return str(error)
        return ""

    def _create_pod(self, key: WorkerKey) -> Refusal | None:
        """Why the pod is refused; None if it is there now. For several threads.

        It is not applied: a pod of an earlier job, which still trains or ends, would become this job's worker.
        """
        try:
            self._gateway.create(build_pod(self._job, self._uid, key))
        except ConflictError as error:
            found = self._gateway.read("Pod", self._namespace, key.name)
            taken = str(error) if found is None else self._why_taken(found)
            return Refusal(taken, "pod") if taken else None
        except GatewayError as error:
            if error.status not in REFUSALS:
                raise
            return Refusal(str(error), "all" if error.status == FORBIDDEN else "group")
        return None

    def _why_taken(self, body: Mapping[str, Any]) -> str:
        try:
            check_owner(body, self._name, self._uid)
        except NameTakenError as error:
            return str(error)
        return ""  # it is ours, and the watch has not shown it yet

    def _tell(self, events: Sequence[Event], now: float) -> None:
        """An event that is lost changes nothing, so the round goes on without it."""
        for event in events:
            try:
                self._gateway.create(build_event(self._body, event, now))
            except GatewayError as error:
                logger.warning("job %s/%s: event %s is lost: %s", self._namespace, self._name, event.reason, error)
                if error.status is None:
                    return

    def _report(self, decision: Decision, memory: Memory, now: float) -> None:
        self._known = status = next_status(self._known, self._job, self._seen, decision, memory, now)
        since = None if self._status_at is None or now < self._status_at else now - self._status_at
        if worth_writing(self._status, status, since):
            self._gateway.write_status(self._namespace, self._name, self._uid, status)
            self._status, self._status_at = status, now


def check_job(gateway: Gateway, body: Mapping[str, Any]) -> None:
    """Raises JobGoneError if this very job is no more, GatewayError if the API server fails."""
    metadata = body["metadata"]
    found = gateway.read(JOB_KIND, metadata["namespace"], metadata["name"])
    there = {} if found is None else found["metadata"]
    if there.get("uid") != metadata["uid"] or "deletionTimestamp" in there:
        raise JobGoneError(f"job {metadata['namespace']}/{metadata['name']} of UID {metadata['uid']} is gone")


def _receivers(plan: Plan, before: Plan | None) -> dict[str, int]:
    """Whose volumes must show the plan: the leader announces it to its team, newcomers wait for it themselves."""
    if before is not None and before.generation == plan.generation:
        return {plan.leader: plan.version}
    return {member.name: plan.version for member in plan.members}


def _behind(plan: Plan, workers: Sequence[WorkerSeen]) -> dict[str, int]:
    """Who does not follow the plan, or did not say so."""
    following = {w.name for w in workers if w.metrics is not None and w.metrics.plan_version >= plan.version}
    return {member.name: plan.version for member in plan.members if member.name not in following}
