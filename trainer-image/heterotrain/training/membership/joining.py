"""How a worker becomes a member of its job: it waits for a plan that names it, and meets the others."""

from __future__ import annotations

import logging

from heterotrain import contract
from heterotrain.groups.assembly import JobOverError, MembershipError
from heterotrain.groups.generation import STOP_SECONDS
from heterotrain.job.worker import Worker
from heterotrain.training.gathering import Meeting
from heterotrain.training.parts import Parts

log = logging.getLogger(__name__)


class OvertakenPlanError(MembershipError):
    """This worker does not train yet, and the plan that it waits for is not the newest any more."""


class Joining:
    """One worker's way into its job, and whether it still has to wait, whenever it waits for the others."""

    def __init__(self, parts: Parts) -> None:
        self._context = parts.context
        self._plans = parts.context.plans
        self._stop = parts.context.stop
        self._group = parts.group
        self._saving = parts.saving
        self._leaving = parts.leaving

    def await_membership(self, worker: Worker) -> None:
        """Wait until a plan holds this very worker, then meet the others."""
        config, state = self._context.config, self._context.metrics.state
        meeting = Meeting(
            job=worker.job_uid or worker.job,
            spare_port=worker.metrics_port,
            backend=config.backend,
            elastic=worker.elastic,
            silence_seconds=config.heartbeat_timeout_seconds,
            held_seconds=config.progress_timeout_seconds,
            check_stop=self._check_wanted,
            is_asked_to_stop=lambda: self._stop.requested,
            secret=worker.secret,
        )
        while True:
            state.phase = contract.PHASE_WAITING
            self._plans.await_first(worker, self._check_stop)
            state.phase = contract.PHASE_STARTING
            try:
                self._group.join(meeting, config.startup_deadline_seconds)
                while self._group.broken and self._group.is_new and self._plans.active.continues:
                    self._group.form(config.startup_deadline_seconds)  # the others train, and may prepare once more
                return
            except OvertakenPlanError as error:
                log.info("%s", error)
            except JobOverError:
                self._leaving.leave_the_others("the job is done")

    def _check_wanted(self) -> None:
        """While this worker waits for others: whether it still has to. A member of those who go on without one another
        has to for some time, since whoever is left at last writes the checkpoint."""
        is_member = self._saving.is_elastic and not self._group.is_new
        if not is_member or self._stop.seconds > STOP_SECONDS:
            self._check_stop()
        if self._group.is_new and self._plans.overtaken:
            raise OvertakenPlanError(f"plan {self._plans.active.version} has been replaced; waiting for the next")

    def _check_stop(self) -> None:
        if self._stop.requested:
            self._group.leave_early("it was asked to stop before all had met")
            self._leaving.leave_on_request()
