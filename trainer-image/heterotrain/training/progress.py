"""How far a job has come, and where it ends."""

from __future__ import annotations

from heterotrain.data.evaluation import Evaluation
from heterotrain.training.step_parts import StepParts


class TrainingProgress:
    """A view of what others change; it changes nothing. The same on all workers at every boundary between steps."""

    def __init__(self, parts: StepParts, evaluation: Evaluation, batch_size: int | None) -> None:
        """`batch_size` is the global batch that a worker knows before there is a plan; None if it may change."""
        self.rules = parts.rules
        self._state = parts.state
        self._plans = parts.context.plans
        self._losses = parts.group.losses
        self._evaluation = evaluation
        self._exchange = parts.group.exchange
        self._batch_size = batch_size

    @property
    def done(self) -> bool:
        """Whether the job's last step is committed."""
        return (
            self._losses.target_reached
            or self._evaluation.target_reached
            or self._exchange.done_agreed
            or self.rules.is_over(self._state.position)
        )

    @property
    def total_steps(self) -> int:
        """Steps of the whole job, if the global batch stays as it is; 0 if that is not known yet."""
        if self.rules.epochs is None:
            return self.rules.steps or 0
        batch = self._known_batch_size
        return 0 if batch is None else self.rules.steps_in_all(self._state.position, batch)

    @property
    def steps_per_epoch(self) -> int:
        """See `Session.steps_per_epoch`."""
        return self.rules.steps_per_epoch(self.global_batch_size)

    @property
    def global_batch_size(self) -> int:
        """Samples of a full step. Raises RuntimeError if they are not known yet."""
        batch = self._known_batch_size
        if batch is not None:
            return batch
        raise RuntimeError(
            "the global batch is known only once the loop over the batches has begun: it follows from the number of "
            "workers, training.mode is ASP, or batching.fixedGlobalBatch is false"
        )

    @property
    def _known_batch_size(self) -> int | None:
        return self._plans.step_size if self._plans.known else self._batch_size

    @property
    def world_size(self) -> int:
        """Workers of the active plan. Raises RuntimeError before there is one."""
        if not self._plans.known:
            raise RuntimeError("session.world_size is known only once the loop over the batches has begun")
        return self._plans.world_size
