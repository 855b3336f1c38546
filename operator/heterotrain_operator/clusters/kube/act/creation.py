"""Pods that a decision creates, with what they need beforehand, and what is remembered of refusals."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from heterotrain_operator.clusters.kube.act.protection import Protection
from heterotrain_operator.clusters.kube.act.slow_start import Refusal, create_slowly
from heterotrain_operator.clusters.kube.api_server.gateway import (
    FORBIDDEN,
    REFUSALS,
    ConflictError,
    Gateway,
    GatewayError,
)
from heterotrain_operator.clusters.kube.objects.owned import NameTakenError, check_owner
from heterotrain_operator.clusters.kube.objects.pods import build_pod
from heterotrain_operator.clusters.kube.objects.service import build_service
from heterotrain_operator.clusters.kube.observe.watched import Watched
from heterotrain_operator.core.model import Decision, Event, WorkerKey

CREATED = "SuccessfulCreatePod"

_FIGURE = re.compile(r"\d+")
"""What differs between two refusals of the same kind, as by how much a quota is exceeded."""


class Creation:
    """Creates one job's pods. `refused` are those that the last decision wanted and did not get, and why."""

    def __init__(self, gateway: Gateway, protection: Protection) -> None:
        self._gateway = gateway
        self._protection = protection
        self.refused: Mapping[str, str] = {}
        self._reported: frozenset[str] = frozenset()

    def carry_out(self, decision: Decision, watched: Watched, present: Collection[str]) -> list[Event]:
        """Create what the decision names and is not `present`. Returns the decision's events, with what was done in
        them, and one for each new reason for which pods are refused.

        Raises GatewayError.
        """
        if not decision.create:
            return list(decision.events)
        absent = [key for key in decision.create if key.name not in present]
        unfit, skipped = self._prepare(watched), tuple[str, ...]()
        if unfit:
            refusals = {key.name: Refusal(unfit, "all") for key in absent}
        else:
            refusals, skipped = create_slowly(
                absent, lambda key: self._create(watched, key, beside_training=decision.beside_training)
            )
        after = f"not tried after the refusal of {next(iter(refusals), '')}"
        self.refused = {name: refusal.why for name, refusal in refusals.items()} | dict.fromkeys(skipped, after)
        return [*self._as_done(decision), *self._reasons(refusals, wanted=len(absent))]

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

    def _prepare(self, watched: Watched) -> str:
        """Why something is refused without which pods would have no names, would not start or would be open to
        everybody; empty if all is there now.
        """
        try:
            self._gateway.apply(build_service(watched.job, watched.uid))
            self._protection.provide(watched.job, watched.uid)
        except NameTakenError as error:
            return str(error)
        except GatewayError as error:
            if error.status not in REFUSALS:
                raise
            return str(error)
        return ""

    def _create(self, watched: Watched, key: WorkerKey, *, beside_training: bool) -> Refusal | None:
        """Why the pod is refused; None if it is there now. For several threads.

        It is not applied: a pod of an earlier job, which still trains or ends, would become this job's worker.
        """
        try:
            self._gateway.create(build_pod(watched.job, watched.uid, key, beside_training=beside_training))
        except ConflictError as error:
            found = self._gateway.read("Pod", watched.namespace, key.name)
            taken = str(error) if found is None else _why_taken(found, watched)
            return Refusal(taken, "pod") if taken else None
        except GatewayError as error:
            if error.status not in REFUSALS:
                raise
            return Refusal(str(error), "all" if error.status == FORBIDDEN else "group")
        return None


def _why_taken(body: Mapping[str, Any], watched: Watched) -> str:
    try:
        check_owner(body, watched.name, watched.uid)
    except NameTakenError as error:
        return str(error)
    return ""  # it is ours, and the watch has not shown it yet
