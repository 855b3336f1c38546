"""One job's world on a Kubernetes cluster, behind the port: what its pods do, and what is done to them.

What is read is what the indexed watch events say, so that an idle job costs the API server nothing. A stale
picture does no harm: names are deterministic, and plan and memory are written under a precondition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from heterotrain.contract import Plan
from heterotrain_operator.api import HeteroTrainingJob
from heterotrain_operator.clusters.kube.events import build_event
from heterotrain_operator.clusters.kube.gateway import JOB_KIND, NOT_FOUND, ConflictError, Gateway, GatewayError
from heterotrain_operator.clusters.kube.names import ANNOTATION_PLAN, plan_name
from heterotrain_operator.clusters.kube.nodes import Nodes
from heterotrain_operator.clusters.kube.observed import PodFacts, worker_seen
from heterotrain_operator.clusters.kube.plan_map import StoredPlan, build_plan_map, read_plan_map
from heterotrain_operator.clusters.kube.pods import build_pod
from heterotrain_operator.clusters.kube.service import build_service
from heterotrain_operator.clusters.kube.sources import Source
from heterotrain_operator.clusters.kube.status import next_status, worth_writing
from heterotrain_operator.clusters.port import PlanConflictError
from heterotrain_operator.core.model import Decision, Event, Seen
from heterotrain_operator.core.state import Memory

logger = logging.getLogger(__name__)

MEMORY_SECONDS = 60.0
"""Between writes of a memory in which only measurements changed: a successor measures again anyway."""

REFUSALS = frozenset({400, 403, 404, 409, 422})
"""HTTP statuses with which the API server refuses a pod for what it is, and will again."""


class KubeCluster:
    """One job on a cluster. `notice` says what the watch events show, then `observe` and `act` as the port."""

    def __init__(self, gateway: Gateway, nodes: Nodes, clock: Callable[[], float]) -> None:
        """`clock` gives Unix seconds."""
        self._gateway = gateway
        self._nodes = nodes
        self._clock = clock
        self._stored: StoredPlan | None = None
        self._known_versions: set[str] = set()
        self._memory: Memory | None = None
        self._persisted: Memory | None = None
        self._persisted_at = 0.0
        self._undelivered: dict[str, int] = {}
        self._deleted: set[str] = set()
        self._forced: set[str] = set()
        self._refused: dict[str, str] = {}
        self._service_applied = False
        self._status: Mapping[str, Any] | None = None
        self._status_at: float | None = None

    def notice(
        self,
        body: Mapping[str, Any],
        job: HeteroTrainingJob,
        pods: Sequence[PodFacts],
        plan_version: str,
        source: Source,
    ) -> None:
        """What is known of the job now: the object and its reading, its pods, the resource version of the plan's
        ConfigMap (empty: there is none), and where its metrics are.
        """
        self._body, self._job, self._source = body, job, source
        self._pods = {pod.name: pod for pod in pods}
        if self._status is None:
            self._status = body.get("status")
        if plan_version not in self._known_versions:
            self._stored = None

    # --- the port -------------------------------------------------------------------------------------------

    def observe(self) -> tuple[Seen, Memory | None]:
        """Pods, plan and metrics as they are now, and the memory of decisions. Raises GatewayError."""
        stored = self._read_plan()
        now = self._clock()
        readable = [pod for pod in self._pods.values() if pod.ready_to_scrape]
        reading = self._source.read(self._job, self._namespace, readable, now)
        workers = []
        for pod in self._pods.values():
            metrics = reading.metrics.get(pod.name)
            # A node is asked about only where something is wrong, since every question is a request.
            overdue = pod.deleting_since is not None and now >= pod.deleting_since
            silent = pod.ready_to_scrape and metrics is None
            lost = bool(pod.node) and (overdue or silent) and self._nodes.lost(pod.node, now)
            workers.append(worker_seen(pod, metrics, lost))
        self._seen = Seen(tuple(workers), stored.plan, reading.problem, tuple(self._refused.items()))
        return self._seen, self._memory

    def act(self, decision: Decision, memory: Memory) -> None:
        """Carry out a decision; what is done already is not done again.

        Raises PlanConflictError if plan or memory changed since `observe`, GatewayError if the API server fails.
        """
        now = self._clock()
        self._remember(decision, memory, now)
        self._deliver()
        self._delete(decision)
        refusals = self._create(decision)
        for event in (*decision.events, *refusals):
            self._tell(event, now)
        self._report(decision, memory, now)
        if decision.remove_job:
            self._gateway.delete(JOB_KIND, self._namespace, self._name, uid=self._uid)

    # --- inside ---------------------------------------------------------------------------------------------

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

    def _read_plan(self) -> StoredPlan:
        """Plan and its precondition: what was written last, unless somebody else wrote since."""
        stored = self._stored
        if stored is None:
            stored = read_plan_map(self._gateway.read("ConfigMap", self._namespace, plan_name(self._name)))
            self._keep(stored)
            for problem in filter(None, (stored.plan_problem, stored.memory_problem)):
                logger.warning("job %s/%s: %s", self._namespace, self._name, problem)
            self._persisted = stored.memory
            # What this process remembers is at least as new as what it wrote.
            if self._memory is None:
                self._memory = stored.memory
        return stored

    def _keep(self, stored: StoredPlan) -> None:
        self._stored = stored
        self._known_versions = {stored.resource_version}

    def _remember(self, decision: Decision, memory: Memory, now: float) -> None:
        """Write plan and memory, at once where the loss would matter, now and then otherwise."""
        stored = self._read_plan()
        self._memory = memory
        matters = self._persisted is None or not memory.same_but_measurements(self._persisted)
        due = memory != self._persisted and now - self._persisted_at >= MEMORY_SECONDS
        if decision.plan is None and stored.resource_version and not (matters or due):
            return
        plan = decision.plan if decision.plan is not None else stored.plan
        body = build_plan_map(self._job, self._uid, None if plan is None else plan.to_json(), memory.to_json())
        try:
            if not stored.resource_version:
                written = self._gateway.create(body)
            else:
                body["metadata"]["resourceVersion"] = stored.resource_version
                written = self._gateway.apply(body)
        except GatewayError as error:
            self._stored = None
            if isinstance(error, ConflictError) or error.status == NOT_FOUND:
                raise PlanConflictError(str(error)) from error
            raise
        self._keep(read_plan_map(written))
        self._persisted, self._persisted_at = memory, now
        if decision.plan is not None:
            self._undelivered = _receivers(decision.plan, stored.plan)

    def _deliver(self) -> None:
        """Touch the pods whose volumes must be refreshed at once."""
        for name, version in list(self._undelivered.items()):
            self._gateway.annotate("Pod", self._namespace, name, {ANNOTATION_PLAN: str(version)})
            del self._undelivered[name]

    def _delete(self, decision: Decision) -> None:
        for name in decision.delete:
            pod = self._pods.get(name)
            if pod is not None and pod.deleting_since is None and pod.uid not in self._deleted:
                self._gateway.delete("Pod", self._namespace, name, uid=pod.uid)
                self._deleted.add(pod.uid)
        for name in decision.force_delete:
            pod = self._pods.get(name)
            if pod is not None and pod.uid not in self._forced:
                logger.warning("job %s/%s: pod %s is deleted without its node", self._namespace, self._name, name)
                self._gateway.delete("Pod", self._namespace, name, uid=pod.uid, grace_seconds=0)
                self._forced.add(pod.uid)
        there = {pod.uid for pod in self._pods.values()}
        self._deleted &= there
        self._forced &= there

    def _create(self, decision: Decision) -> list[Event]:
        """Create what is missing. Returns an event for each pod that is refused for a new reason."""
        if not decision.create:
            return []
        if not self._service_applied:
            self._gateway.apply(build_service(self._job, self._uid))
            self._service_applied = True
        before, self._refused = self._refused, {}
        events = []
        for key in decision.create:
            if key.name in self._pods:
                continue
            try:
                self._gateway.apply(build_pod(self._job, self._uid, key))
            except GatewayError as error:
                if error.status not in REFUSALS:
                    raise
                self._refused[key.name] = str(error)
                if before.get(key.name) != str(error):
                    events.append(Event("Warning", "FailedCreatePod", str(error)))
        return events

    def _tell(self, event: Event, now: float) -> None:
        """An event that is lost changes nothing, so the round goes on without it."""
        try:
            self._gateway.create(build_event(self._body, event, now), generated=True)
        except GatewayError as error:
            logger.warning("job %s/%s: event %s is lost: %s", self._namespace, self._name, event.reason, error)

    def _report(self, decision: Decision, memory: Memory, now: float) -> None:
        status = next_status(self._status, self._job, self._seen, decision, memory, now)
        if worth_writing(self._status, status, None if self._status_at is None else now - self._status_at):
            self._gateway.write_status(self._namespace, self._name, self._uid, status)
            self._status, self._status_at = status, now


def _receivers(plan: Plan, before: Plan | None) -> dict[str, int]:
    """Whose volumes must show the plan: the leader announces it to its team, newcomers wait for it themselves."""
    if before is not None and before.generation == plan.generation:
        return {plan.leader: plan.version}
    return {member.name: plan.version for member in plan.members}
