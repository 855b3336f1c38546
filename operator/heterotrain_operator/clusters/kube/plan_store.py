"""One job's plan and memory in their ConfigMap: read when somebody else may have written, written when it matters.

On the plan's way into the pods an annotation is touched, and the kubelet refreshes the pod's volumes at once. What it
refreshes them from may be old, so pods whose workers do not follow are touched again, for as long as a volume may be
late.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from heterotrain.contract import Plan
from heterotrain_operator.api import HeteroTrainingJob
from heterotrain_operator.api.rules.workers import CONFIG_MAP_BYTES
from heterotrain_operator.clusters.kube.api_server.gateway import REQUESTS_AT_ONCE, ConflictError, Gateway, GatewayError
from heterotrain_operator.clusters.kube.moments import timestamp
from heterotrain_operator.clusters.kube.objects.names import ANNOTATION_PLAN, ANNOTATION_TOUCHED, PLAN_KEY, plan_name
from heterotrain_operator.clusters.kube.objects.owned import check_owner
from heterotrain_operator.clusters.kube.objects.plan_map import StoredPlan, build_plan_map, bytes_in, read_plan_map
from heterotrain_operator.clusters.port import PlanConflictError
from heterotrain_operator.core.lifecycle.following import DELIVERY_SECONDS
from heterotrain_operator.core.lifecycle.publishing import MOST_COUNTED
from heterotrain_operator.core.model import WorkerSeen
from heterotrain_operator.core.state import Remembered

logger = logging.getLogger(__name__)

ABSENT = frozenset({""})
"""What a watch shows of a ConfigMap that is not there."""


class PlanStore:
    """Plan and memory of one job as this process read or wrote them last."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.memory: Remembered | None = None
        self._stored: StoredPlan | None = None
        self._shown: frozenset[str] = ABSENT
        self._known: frozenset[str] = frozenset()
        self._written: Remembered | None = None
        # As this process, which alone may write while it leads, found it or wrote it; both while a write had no answer.
        self._own: tuple[Plan, ...] = ()
        self.restored = False
        """Whether the plan that was read is our own in place of somebody else's, and is to be written."""
        self._in_doubt: Remembered | None = None
        """The memory of a write that had no answer, as it would be read."""

    @property
    def plan(self) -> Plan | None:
        """The plan as it was read or written last; None if there is none, or somebody else wrote since."""
        return self._stored.plan if self._stored is not None else None

    def shown(self, versions: Collection[str]) -> None:
        """The ConfigMap's resource version as the watch shows it, which may lag behind; none if it shows none."""
        self._shown = frozenset(versions) or ABSENT
        if self._stored is not None and self._stored.resource_version in self._shown:
            self._known = self._shown
        elif not self._shown <= self._known:
            self._stored = None

    def read(self, job: HeteroTrainingJob, uid: str) -> StoredPlan:
        """What is stored now, and in `memory` what was decided with last.

        Raises GatewayError, or NameTakenError if the ConfigMap is not the job's.
        """
        if self._stored is not None:
            return self._stored
        namespace, name = str(job.metadata.namespace), plan_name(job.metadata.name)
        body = self._gateway.read("ConfigMap", namespace, name)
        if body is not None:
            check_owner(body, job.metadata.name, uid)
        stored = read_plan_map(body)
        for problem in filter(None, (stored.plan_problem, stored.memory_problem)):
            logger.warning("ConfigMap %s/%s: %s", namespace, name, problem)
        # This process still has a memory that somebody took away, damaged or changed. After a write of ours with no
        # answer the stored one counts if it is what was sent: then the write has succeeded.
        if self.memory is None or (stored.memory is not None and stored.memory == self._in_doubt):
            self.memory = stored.memory
        self._written, self._in_doubt = stored.memory, None
        if self._own and stored.plan is not None and stored.plan not in self._own:
            logger.warning("ConfigMap %s/%s: %s: somebody else has changed it", namespace, name, PLAN_KEY)
            stored = replace(stored, plan=self._restored(stored.plan))
        if stored.plan is not None:
            self._own = (stored.plan,)
        self._stored, self._known = stored, self._shown | {stored.resource_version}
        return stored

    def write(self, job: HeteroTrainingJob, uid: str, plan: Plan | None, memory: Remembered) -> None:
        """Store a new plan (None: the stored one stays) and the memory; without a plan only if losing the memory would
        matter. Measurements alone do not: workers count from the beginning of the active plan, so another operator has
        them again at its first observation.

        Raises PlanConflictError if somebody else wrote meanwhile, GatewayError otherwise.
        """
        is_decided_with = self._stored is not None
        stored = self.read(job, uid)
        if self.restored and not is_decided_with:
            raise PlanConflictError(f"somebody else has changed the plan of job {job.metadata.name}")
        matters = self._written is None or not memory.same_but_measurements(self._written)
        knows_none = not self._own
        if plan is not None:
            self._own = (plan,) if stored.plan is None else (stored.plan, plan)
        self.restored = False
        if plan is not None or not stored.resource_version or matters:
            text = plan.to_json() if plan is not None else stored.plan.to_json() if stored.plan is not None else None
            try:
                self._keep(_fitting(job, uid, text, memory), stored.resource_version, plan or stored.plan)
            except PlanConflictError:
                if knows_none:  # whatever is there came before our first plan
                    self._own = ()
                raise
            self._written = memory
        self.memory = memory

    def _restored(self, foreign: Plan) -> Plan | None:
        """Our own plan in place of one that somebody else wrote, and some workers may follow: under a greater number.
        None where that leaves no room, or theirs is of another generation, in which workers refuse ours: then the
        plan is lost, and restored by what they follow.
        """
        memory, number = self.memory, foreign.version
        if memory is None or number >= MOST_COUNTED:
            return None
        own = next((plan for plan in self._own if plan.version == memory.plan_version), self._own[0])
        if foreign.generation != own.generation:
            self.memory = replace(memory, plan_version=max(memory.plan_version, number))
            return None
        plan = replace(own, version=max(own.version, memory.plan_version, number) + 1)
        self.memory, self.restored = replace(memory, plan_version=plan.version), True
        return plan

    def _keep(self, body: dict[str, Any], version: str, plan: Plan | None) -> None:
        """Write the ConfigMap if it is still of this version, or, if the version is empty, if there still is none.
        Without a plan of ours (None) it may go on holding somebody else's.
        """
        try:
            if version:
                body["metadata"]["resourceVersion"] = version
                written = self._gateway.apply(body)
            else:
                written = self._gateway.create(body)
        except GatewayError as error:
            self._stored = None
            if isinstance(error, ConflictError):
                raise PlanConflictError(str(error)) from error
            self._in_doubt = read_plan_map(body).memory
            raise
        self._stored = replace(read_plan_map(written), plan=plan)
        if plan is not None:
            self._own = (plan,)
        self._known = self._known | self._shown | {self._stored.resource_version}


def _fitting(job: HeteroTrainingJob, uid: str, plan_json: str | None, memory: Remembered) -> dict[str, Any]:
    """The ConfigMap. The memory of single workers is left out if it is larger than admission allowed for."""
    body = build_plan_map(job, uid, plan_json, memory.to_json())
    if bytes_in(body) <= CONFIG_MAP_BYTES:
        return body
    logger.warning("ConfigMap %s is too small for what is remembered of the job's workers", body["metadata"]["name"])
    return build_plan_map(job, uid, plan_json, replace(memory, workers=()).to_json())


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
        """Touch some of the pods; the others are left to the next time. Raises GatewayError."""
        for name, again in list(self._undelivered.items())[:REQUESTS_AT_ONCE]:
            touched = {ANNOTATION_PLAN: str(self._version)}
            if again:
                touched[ANNOTATION_TOUCHED] = again
            self._gateway.annotate("Pod", namespace, name, touched)
            del self._undelivered[name]

    @property
    def unfinished(self) -> bool:
        """Whether pods are left."""
        return bool(self._undelivered)

    def _begin(self, plan: Plan, receivers: Sequence[str], now: float) -> None:
        self._undelivered = dict.fromkeys(receivers, "")
        self._receivers, self._version = frozenset(receivers), plan.version
        self._since = self._touched_at = now


def _receivers(plan: Plan, before: Plan | None) -> list[str]:
    """Whose volumes must show the plan: the leader, or the parameter server, announces it to the others; newcomers wait
    for it themselves, and everybody for another server's address.
    """
    announcer = plan.leader if plan.server is None else plan.server.name
    if before is not None and (before.generation, before.server) == (plan.generation, plan.server):
        return [announcer]
    return list(dict.fromkeys([announcer, *(member.name for member in plan.members)]))


def _not_following(plan: Plan, workers: Sequence[WorkerSeen]) -> list[str]:
    """Who does not follow the plan, or did not report that, by rank; a parameter server first."""
    following = {w.name for w in workers if w.metrics is not None and w.metrics.plan_version >= plan.version}
    return [each.name for each in (plan.server, *plan.members) if each is not None and each.name not in following]
