"""How the members meet again after a failure, which may have cost a step that all of them repeat."""

from __future__ import annotations

import logging

from heterotrain import contract
from heterotrain.groups.assembly import MembershipError
from heterotrain.training.following import Following
from heterotrain.training.parts import Parts

log = logging.getLogger(__name__)

# A collective that keeps failing is no passing fault; the operator restarts the job from its checkpoint then.
_MOST_REPLAYS_OF_A_STEP = 5

# A peer may be in the middle of a step of its own when a collective fails.
_STEPS_TO_WAIT = 20

# For the others, once this worker has committed the job's last step.
_FINISHING_SECONDS = 10.0


class Reforming:
    """One worker's side of it, and how often the step under way has failed."""

    def __init__(self, parts: Parts, following: Following) -> None:
        self._config = parts.context.config
        self._plans = parts.context.plans
        self._metrics = parts.context.metrics
        self._subject = parts.subject
        self._state = parts.state
        self._group = parts.group
        self._accounts = parts.accounts
        self._clock = parts.clock
        self._saving = parts.saving
        self._leaving = parts.leaving
        self._progress = parts.progress
        self._following = following
        self._replays = 0

    def committed(self) -> None:
        """A step is committed, so that failures are those of the next one."""
        self._replays = 0

    def reform(self, *, repeats: bool = True) -> None:
        """Meet the members again after a failure, which may have cost a step that is repeated.

        Raises MembershipError if those who are needed do not come back in time: then a restart from the checkpoint is
        due.
        """
        step = self._state.position.step
        self._replays += repeats
        if self._replays > _MOST_REPLAYS_OF_A_STEP:
            raise MembershipError(f"step {step} failed {self._replays} times in a row: {self._group.broken}")
        config, state = self._config, self._metrics.state
        state.phase = contract.PHASE_REFORMING
        state.steps_replayed += repeats
        self._subject.optimizer.zero_grad()
        # It is not known yet how long the first step takes, with whatever is compiled in it.
        usual = self._accounts.slow_step_seconds * _STEPS_TO_WAIT or config.startup_deadline_seconds
        before = self._plans.active
        finishing = _FINISHING_SECONDS + (3 * config.heartbeat_timeout_seconds if self._saving.is_elastic else 0)
        self._group.form(finishing if self._progress.done else max(config.progress_timeout_seconds, usual))
        if self._group.broken:
            return
        members = self._plans.active.members
        log.info("group of %d workers formed again at step %d", len(members), self._state.position.step)
        if len(members) != len(before.members):
            self._replays = 0
        if self._following.is_behind:  # also behind a plan whose groups broke as this worker went over to them
            self._following.follow()
        if repeats:
            self._accounts.mark_as_replay()
        self._clock.restart()
        state.phase = contract.PHASE_TRAINING

    def recovered(self) -> bool:
        """Form the group again; False if the others are gone but this worker has committed the job's last step. Raises
        MembershipError, also if sums may be missing in that step."""
        try:
            self.reform(repeats=not self._plans.active.holds)
        except MembershipError:
            if not self._progress.done or self._group.may_lack_sums:
                if self._group.is_out and self._plans.is_left_out:
                    self._leaving.leave_the_others("the others have gone on without this worker, as it was to leave")
                raise
            self._leaving.finish(alone=True)
            return False
        return True
