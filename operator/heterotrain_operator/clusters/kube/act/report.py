"""What users read of one job: its status and its events, written when they are worth it: at once with what matters to
people, now and then with figures alone.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from heterotrain.contract import PHASE_TRAINING
from heterotrain_operator.clusters.kube.api_server.gateway import Gateway, GatewayError
from heterotrain_operator.clusters.kube.objects.names import FIELD_MANAGER
from heterotrain_operator.clusters.kube.observe.watched import Watched
from heterotrain_operator.clusters.kube.status.job_status import next_status, refused_status
from heterotrain_operator.clusters.kube.status.schema import checked, tolerated
from heterotrain_operator.clusters.kube.status.worker_status import PAUSE_PHASES, Entry
from heterotrain_operator.core.model import Condition, Decision, Event, Seen
from heterotrain_operator.core.state import Remembered

FIGURES_SECONDS = 30.0
"""Shortest time between two writes that carry nothing but new figures."""

_QUIET = frozenset({"step", "epoch", "evaluation", "imbalancePercent", "cost", "updatesPerSecond"})
_QUIET_OF_WORKER = frozenset(
    {
        "ownMilliseconds",
        "waitingPercent",
        "cpuThrottledPercent",
        "cpuWaitPercent",
        "maxBatchSize",
        "updates",
        "staleness",
        "discarded",
        "waitedSeconds",
    }
)
_FIGURE = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")


def worth_writing(
    previous: Mapping[str, Any] | None, new: Mapping[str, Any], seconds_since_last_write: float | None
) -> bool:
    """Whether a status is to be written: at once if more than figures changed, else every `FIGURES_SECONDS` at most.

    While the job runs, reasons and messages of its conditions count as figures, and so does whether it is balanced:
    they speak of each measurement. `seconds_since_last_write` None: it is not known, as after the operator's restart.
    """
    previous = previous or {}
    if previous == new:
        return False
    if _without_figures(previous) != _without_figures(new):
        return True
    return seconds_since_last_write is None or seconds_since_last_write >= FIGURES_SECONDS


def _without_figures(status: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a status whose change is worth a write at once."""
    running = status.get("phase") == "Running"
    rest = {name: value for name, value in status.items() if name not in _QUIET}
    rest["reason"] = "" if running else _worded(status.get("reason"))
    rest["workers"] = [_worker_without_figures(entry) for entry in _list(status, "workers")]
    rest["conditions"] = [_condition_without_figures(each, running) for each in _list(status, "conditions")]
    return rest


def _condition_without_figures(condition: Mapping[str, Any], running: bool) -> dict[str, Any]:
    if not running:
        return {**condition, "message": _worded(condition.get("message"))}
    rest = {**condition, "reason": "", "message": ""}
    if condition.get("type") == "Balanced" and condition.get("reason") != "NotMeasured":
        # A job at the edge of the tolerance crosses it with every measurement.
        rest |= {"status": "", "lastTransitionTime": ""}
    return rest


def _worker_without_figures(entry: Mapping[str, Any]) -> Entry:
    phase = entry.get("phase")
    return {
        **{name: value for name, value in entry.items() if name not in _QUIET_OF_WORKER},
        "straggler": "straggler" in entry,
        "message": _worded(entry.get("message")),
        "phase": PHASE_TRAINING if phase in PAUSE_PHASES else phase,
    }


def _list(status: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    return status.get(name) or ()


def _worded(text: str | None) -> str:
    """A text without its figures."""
    return _FIGURE.sub("#", text or "")


LONGEST_MESSAGE = 1024
"""Characters; the API server refuses more."""


def build_event(job: Mapping[str, Any], event: Event, now: float) -> dict[str, Any]:
    """The core/v1 Event about a job, given by apiVersion, kind and metadata; `now` in Unix seconds."""
    metadata = job["metadata"]
    moment = datetime.fromtimestamp(int(now), tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": job["apiVersion"],
            "kind": job["kind"],
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": event.kind,
        "reason": event.reason,
        "message": event.message[:LONGEST_MESSAGE],
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }


logger = logging.getLogger(__name__)


class Report:
    """Remembers the status as this process found or wrote it.

    Most rounds find nothing that is worth a write. So drafts are compared, and only one that differs from the draft of
    the written status is checked against the schema.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._written: Mapping[str, Any] | None = None
        self._written_draft: Mapping[str, Any] | None = None
        self._known: Mapping[str, Any] | None = None  # as it was found last, worth a write or not
        self._written_at: float | None = None

    def take_in(self, status: Mapping[str, Any] | None) -> None:
        """The status as the watch shows it, which counts until this process has written one."""
        if self._written is None:
            self._written = status
            self._known = tolerated(status or {})

    def refuse(self, body: Mapping[str, Any], why: Condition, now: float) -> None:
        """Say in the job's status why nothing is done about it; `now` in Unix seconds.

        Raises JobGoneError if it is no more, GatewayError if the API server fails.
        """
        metadata = body["metadata"]
        before = self._written if self._written is not None else body.get("status")
        status = refused_status(before, metadata["generation"], why, now)
        if status != before:
            self._gateway.write_status(metadata["namespace"], metadata["name"], metadata["uid"], status)
        self._written = self._known = status
        self._written_draft, self._written_at = None, now

    def record(self, body: Mapping[str, Any], events: Sequence[Event], now: float) -> None:
        """Write events about a job. One that is lost changes nothing, so the round goes on without it."""
        for event in events:
            try:
                self._gateway.create(build_event(body, event, now))
            except GatewayError as error:
                where = (body["metadata"]["namespace"], body["metadata"]["name"])
                logger.warning("job %s/%s: event %s is lost: %s", *where, event.reason, error)
                if error.status is None:
                    return

    def write(self, watched: Watched, seen: Seen, decision: Decision, *, memory: Remembered, now: float) -> None:
        """Write the status after a decision, if it is worth it. Raises as `refuse`."""
        draft = next_status(self._known, watched.job, seen, decision, memory, now)
        since = None if self._written_at is None or now < self._written_at else now - self._written_at
        if self._written_draft is not None and not worth_writing(self._written_draft, draft, since):
            self._known = draft
            return
        self._known = status = checked(draft)
        if worth_writing(self._written, status, since):
            self._gateway.write_status(watched.namespace, watched.name, watched.uid, status)
            self._written, self._written_at = status, now
        if status == self._written:
            self._written_draft = draft
