"""What users read of one job: its status and its events, written when they are worth it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from heterotrain_operator.api import Problem
from heterotrain_operator.clusters.kube.api_server.gateway import Gateway, GatewayError
from heterotrain_operator.clusters.kube.observe.watched import Watched
from heterotrain_operator.clusters.kube.status.events import build_event
from heterotrain_operator.clusters.kube.status.invalid import invalid_status
from heterotrain_operator.clusters.kube.status.job_status import next_status
from heterotrain_operator.clusters.kube.status.schema import checked, tolerated
from heterotrain_operator.clusters.kube.status.worth import worth_writing
from heterotrain_operator.core.model import Decision, Event, Seen
from heterotrain_operator.core.state import Memory

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

    def refuse(self, body: Mapping[str, Any], problems: Sequence[Problem], now: float) -> None:
        """Say in the job's status why nothing is done about it; `now` in Unix seconds.

        Raises JobGoneError if it is no more, GatewayError if the API server fails.
        """
        metadata = body["metadata"]
        before = self._written if self._written is not None else body.get("status")
        status = invalid_status(before, metadata["generation"], problems, now)
        if status != before:
            self._gateway.write_status(metadata["namespace"], metadata["name"], metadata["uid"], status)
        self._written = self._known = status
        self._written_draft, self._written_at = None, now

    def record(self, watched: Watched, events: Sequence[Event], now: float) -> None:
        """Write events. One that is lost changes nothing, so the round goes on without it."""
        for event in events:
            try:
                self._gateway.create(build_event(watched.body, event, now))
            except GatewayError as error:
                where = (watched.namespace, watched.name)
                logger.warning("job %s/%s: event %s is lost: %s", *where, event.reason, error)
                if error.status is None:
                    return

    def write(self, watched: Watched, seen: Seen, decision: Decision, *, memory: Memory, now: float) -> None:
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
