"""Pods that a decision creates and deletes, with what they need beforehand, and what is remembered of refusals.

Both go on in bounded goes, between which the thread is others'. Pods are created as the controller of Kubernetes' own
Jobs does: one, two, four, eight ... side by side, as long as none is refused. What refuses one pod will mostly refuse
the next: under a quota of a hundred, a thousand workers cost one refusal a try.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

from heterotrain import contract
from heterotrain_operator.api import HeteroTrainingJob
from heterotrain_operator.clusters.kube.api_server.gateway import (
    FORBIDDEN,
    REFUSALS,
    REQUESTS_AT_ONCE,
    ConflictError,
    Gateway,
    GatewayError,
    missing_right,
)
from heterotrain_operator.clusters.kube.objects.names import secret_name
from heterotrain_operator.clusters.kube.objects.owned import NameTakenError, check_owner, controller_uid
from heterotrain_operator.clusters.kube.objects.pods import build_pod, build_service, secret_in
from heterotrain_operator.clusters.kube.objects.protection import Document, Peers, build_policy, build_secret
from heterotrain_operator.clusters.kube.observe.pod_facts import PodFacts
from heterotrain_operator.clusters.kube.observe.watched import Watched
from heterotrain_operator.core.model import SHORT_GRACE_SECONDS, Decision, Event, WorkerKey

CHANCE_BYTES = 8
"""Of the random part of a Secret's name."""

MAX_AT_ONCE = 8
"""Requests of one job at the same time; the API server and this process's connections serve other jobs, too."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a pod is refused, and which others would be: all (as by a quota), those of its group (for what the template
    says), or none but this one (whose name is taken).
    """

    why: str
    concerns: Literal["all", "group", "pod"]


class Protection:
    """Makes sure that one job has its Secret and its NetworkPolicy."""

    def __init__(self, gateway: Gateway, metrics_from: Peers | None) -> None:
        """`metrics_from` are NetworkPolicyPeers that may read workers' metrics; None: no policies are made."""
        self._gateway = gateway
        self._metrics_from = metrics_from
        self.secret = ""
        """Name of the Secret once it is there."""

    def provide(self, job: HeteroTrainingJob, uid: str, workers: Iterable[str]) -> None:
        """Before the job's pods are created, which need the secret; `uid` is the job's, `workers` are its pods so far.

        Raises NameTakenError if the policy's name is taken, GatewayError if the API server refuses or fails.
        """
        self._provide_secret(job, uid, self.secret or self._shared(job, uid, workers))
        if self._metrics_from is not None:
            self._provide_policy(build_policy(job, uid, self._metrics_from), job, uid)

    def _shared(self, job: HeteroTrainingJob, uid: str, workers: Iterable[str]) -> str:
        """Name of the Secret that the workers have from the operator before; empty if there are none."""
        for worker in workers:
            found = self._gateway.read("Pod", str(job.metadata.namespace), worker)
            if found is not None and controller_uid(found["metadata"]) == uid and secret_in(found):
                return secret_in(found)
        return ""

    def _provide_secret(self, job: HeteroTrainingJob, uid: str, known: str) -> None:
        # The operator may read no Secret. One under a name that nobody could know before it was there is the job's.
        name = known or secret_name(job.metadata.name, secrets.token_hex(CHANCE_BYTES))
        try:
            self._gateway.create(build_secret(job, uid, name, secrets.token_hex(contract.SECRET_BYTES)))
        except ConflictError as error:
            # A quota that others change at the same time answers with a conflict, too.
            if not (known and error.exists):
                raise
        self.secret = name

    def _provide_policy(self, policy: Document, job: HeteroTrainingJob, uid: str) -> None:
        metadata = policy["metadata"]
        found = self._gateway.read("NetworkPolicy", metadata["namespace"], metadata["name"])
        try:
            if found is not None:
                check_owner(found, job.metadata.name, uid)
        except NameTakenError as error:
            if not error.earlier:  # the policy of an earlier job is the same, and may be taken over
                raise
        self._gateway.apply(policy)


CREATED = "SuccessfulCreatePod"

_FIGURE = re.compile(r"\d+")
"""What differs between two refusals of the same kind, as by how much a quota is exceeded."""


@dataclass(slots=True)
class _Wanted:
    """What one decision wants created: `left` are to be tried still, the next `together` of them side by side, and
    `tried` and `skipped` are those that were refused, and not tried after that.
    """

    decision: Decision
    watched: Watched
    present: Collection[str]
    left: list[WorkerKey]
    number: int
    together: int = 0
    tried: dict[str, Refusal] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

    def skip(self) -> None:
        """Try nobody whom an earlier refusal concerns."""
        everybody = any(refusal.concerns == "all" for refusal in self.tried.values())
        groups = {key.group for key in self.decision.create if self._concerns_group(key.name)}
        kept = [] if everybody else [key for key in self.left if key.group not in groups]
        names = {key.name for key in kept}
        self.skipped += [key.name for key in self.left if key.name not in names]
        self.left = kept

    def _concerns_group(self, name: str) -> bool:
        return name in self.tried and self.tried[name].concerns == "group"


class Creation:
    """Creates one job's pods. `refused` are those that the last decision wanted and did not get, and why."""

    def __init__(self, gateway: Gateway, protection: Protection) -> None:
        self._gateway = gateway
        self._protection = protection
        self.refused: Mapping[str, str] = {}
        self._reported: frozenset[str] = frozenset()
        self._wanted: _Wanted | None = None

    def begin(self, decision: Decision, watched: Watched, present: Collection[str]) -> None:
        """Take what the decision names and is not `present`; nothing is sent yet."""
        absent = [key for key in decision.create if key.name not in present]
        self._wanted = _Wanted(decision, watched, present, absent, len(absent))

    def forget(self) -> None:
        """Create nothing that is left."""
        self._wanted = None

    @property
    def unfinished(self) -> bool:
        """Whether pods are left to be created."""
        return self._wanted is not None and bool(self._wanted.left)

    def go_on(self) -> None:
        """Create some of those that are left, or what they need beforehand. Raises GatewayError."""
        wanted, self._wanted = self._wanted, None  # after a failure the next decision names those that are left
        assert wanted is not None
        if not wanted.together:
            unfit = self._prepare(wanted.watched, wanted.present)
            wanted.tried = {key.name: Refusal(unfit, "all") for key in wanted.left if unfit}
            wanted.left = [] if unfit else wanted.left
            wanted.together = 1
        else:
            batch, wanted.left = wanted.left[: wanted.together], wanted.left[wanted.together :]
            with ThreadPoolExecutor(min(MAX_AT_ONCE, len(batch)), thread_name_prefix="create") as threads:
                for key, refusal in zip(batch, threads.map(lambda key: self._create(wanted, key), batch), strict=True):
                    if refusal is not None:
                        wanted.tried[key.name] = refusal
            wanted.skip()
            wanted.together = min(2 * wanted.together, REQUESTS_AT_ONCE)
        self._wanted = wanted

    def finish(self) -> list[Event]:
        """The decision's events, with what was done in them, and one for each new reason for which pods are refused."""
        wanted, self._wanted = self._wanted, None
        assert wanted is not None and not wanted.left
        if not wanted.decision.create:
            return list(wanted.decision.events)
        after = f"not tried after the refusal of {next(iter(wanted.tried), '')}"
        self.refused = {name: refusal.why for name, refusal in wanted.tried.items()}
        self.refused |= dict.fromkeys(wanted.skipped, after)
        return [*self._as_done(wanted.decision), *self._reasons(wanted.tried, wanted=wanted.number)]

    def _as_done(self, decision: Decision) -> list[Event]:
        """The decision's events; of pods that were to be created only what was."""
        if not self.refused:
            return list(decision.events)
        done = len(decision.create) - len(self.refused)
        others = [event for event in decision.events if event.reason != CREATED]
        if len(others) == len(decision.events) or done <= 0:
            return others
        return [*others, Event("Normal", CREATED, f"created {done} of {len(decision.create)} pods")]

    def _reasons(self, refusals: Mapping[str, Refusal], *, wanted: int) -> list[Event]:
        """An event for each reason that was not reported the last time."""
        reasons: dict[str, str] = {}
        for name, refusal in refusals.items():
            reasons.setdefault(_FIGURE.sub("#", refusal.why.replace(name, "")), refusal.why)
        before, self._reported = self._reported, frozenset(reasons)
        count = f"{len(self.refused)} of {wanted} pods are not created: " if len(self.refused) > 1 else ""
        return [
            Event("Warning", "FailedCreatePod", f"{count}{why}") for kind, why in reasons.items() if kind not in before
        ]

    def _prepare(self, watched: Watched, present: Collection[str]) -> str:
        """Why something is refused without which pods would have no names, would not start or would be open to
        everybody; empty if all is there now.
        """
        try:
            self._gateway.apply(build_service(watched.job, watched.uid))
            self._protection.provide(watched.job, watched.uid, present)
        except NameTakenError as error:
            return str(error)
        except GatewayError as error:
            if error.status not in REFUSALS:
                raise
            return missing_right(error) or str(error)
        return ""

    def _create(self, wanted: _Wanted, key: WorkerKey) -> Refusal | None:
        """Why the pod is refused; None if it is there now. For several threads.

        It is not applied: a pod of an earlier job, which still trains or ends, would become this job's worker.
        """
        watched, secret = wanted.watched, self._protection.secret
        beside_training = wanted.decision.beside_training
        pod = build_pod(watched.job, watched.uid, key, secret=secret, beside_training=beside_training)
        try:
            self._gateway.create(pod)
        except ConflictError as error:
            found = self._gateway.read("Pod", watched.namespace, key.name)
            taken = str(error) if found is None else _why_taken(found, watched)
            if found is not None and not taken and secret_in(found) not in ("", secret):
                # An operator that lost the Lease meanwhile has created it with a secret of its own.
                self._gateway.delete("Pod", watched.namespace, key.name, uid=found["metadata"]["uid"])
                taken = f"pod {key.name} of another operator does not know the others, and is deleted"
            return Refusal(taken, "pod") if taken else None
        except GatewayError as error:
            if error.status not in REFUSALS:
                raise
            return Refusal(missing_right(error) or str(error), "all" if error.status == FORBIDDEN else "group")
        return None


def _why_taken(body: Mapping[str, Any], watched: Watched) -> str:
    try:
        check_owner(body, watched.name, watched.uid)
    except NameTakenError as error:
        return str(error)
    return ""  # it is ours, and the watch has not shown it yet


logger = logging.getLogger(__name__)


class Deletion:
    """Deletes one job's pods, and remembers by UID those whose deletion was asked for and that are still shown."""

    def __init__(self, gateway: Gateway, gone: Callable[[str], None]) -> None:
        """`gone` takes the UID of a pod that was not there any more."""
        self._gateway = gateway
        self._gone = gone
        self.asked: set[str] = set()
        self._forced: set[str] = set()
        self._due: list[tuple[PodFacts, int | None, set[str]]] = []

    def begin(self, decision: Decision, pods: Mapping[str, PodFacts]) -> None:
        """Take what the decision names of the `pods`, which are by name; nothing is sent yet.

        A `deletecollection` would not do: its selector cannot name the job that a pod belongs to.
        """
        shown = {pod.uid for pod in pods.values()}
        self.asked &= shown
        self._forced &= shown
        named = [pods[name] for name in decision.delete if name in pods]
        forced = [pods[name] for name in decision.force_delete if name in pods]
        self._due = [(p, _grace_seconds(p, decision), self.asked) for p in named if p.deleting_since is None]
        self._due += [(p, 0, self._forced) for p in forced]
        self._due = [due for due in self._due if due[0].uid not in due[2]]

    def forget(self) -> None:
        """Delete nothing that is left."""
        self._due = []

    @property
    def unfinished(self) -> bool:
        """Whether pods are left to be deleted."""
        return bool(self._due)

    def go_on(self) -> None:
        """Delete some of those that are left. Raises GatewayError."""
        due, left = self._due[:REQUESTS_AT_ONCE], self._due[REQUESTS_AT_ONCE:]
        self._due = []  # after a failure the next decision names those that are left
        for pod, grace_seconds, asked in due:
            if asked is self._forced:
                logger.warning("job %s/%s: pod %s is deleted without its node", pod.namespace, pod.job, pod.name)
            self._delete(pod, grace_seconds)
            asked.add(pod.uid)
        self._due = left

    def _delete(self, pod: PodFacts, grace_seconds: int | None) -> None:
        if not self._gateway.delete("Pod", pod.namespace, pod.name, uid=pod.uid, grace_seconds=grace_seconds):
            self._gone(pod.uid)


def _grace_seconds(pod: PodFacts, decision: Decision) -> int | None:
    """The grace to ask for; None: the pod's own, which may be shorter, and which alone may be none at all."""
    is_short = pod.name in decision.short_grace and pod.grace_seconds > SHORT_GRACE_SECONDS
    return SHORT_GRACE_SECONDS if is_short else None
