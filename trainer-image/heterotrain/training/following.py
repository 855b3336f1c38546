"""What a worker does once another plan is active, from the step that begins there."""

from __future__ import annotations

import logging

from heterotrain import contract
from heterotrain.training.parts import Parts

log = logging.getLogger(__name__)


class Following:
    """Keeps what one worker does, exports and says in step with the active plan."""

    def __init__(self, parts: Parts) -> None:
        self._plans = parts.context.plans
        self._metrics = parts.context.metrics
        self._worker = parts.context.worker
        self._state = parts.state
        self._group = parts.group
        self._accounts = parts.accounts
        self._clock = parts.clock
        self._saving = parts.saving
        self._progress = parts.progress
        self._followed: contract.Plan | None = None

    @property
    def is_behind(self) -> bool:
        """Whether another plan is active than the one that this worker follows."""
        return self._plans.active != self._followed

    def follow(self) -> None:
        """Another plan is active than before."""
        self._saving.await_written()  # other batches may need the memory that its copy takes
        plan, state, position = self._plans.active, self._metrics.state, self._state.position
        self._followed = plan
        self._accounts.settle()
        self._metrics.follow(plan, self._plans.rank)
        self._accounts.mark("first")
        if state.phase == contract.PHASE_HOLDING and not plan.holds:
            state.phase = contract.PHASE_TRAINING
            self._clock.restart()
        state.step, state.epoch = position.step, position.epoch
        if self._saving.is_elastic:
            state.protocol = self._group.protocol  # over nccl another one than before the members had met
        state.total_steps = self._progress.total_steps
        if self._worker is not None:
            log.info(
                "step %d: following plan %d: %d of %d samples",
                position.step,
                plan.version,
                self._plans.batch_size,
                plan.global_batch_size,
            )
