"""How far a job has come, where it ends, and who is told."""

from __future__ import annotations

from dataclasses import dataclass

from heterotrain.evaluation import Evaluation
from heterotrain.exchange import Exchange
from heterotrain.losses import Losses
from heterotrain.metrics import WorkerMetrics
from heterotrain.plans import Plans
from heterotrain.sampler import Rules
from heterotrain.training_state import TrainingState


@dataclass(frozen=True, slots=True)
class Progress:
    """The same on all ranks at every boundary between steps."""

    rules: Rules
    state: TrainingState
    plans: Plans
    losses: Losses
    evaluation: Evaluation
    exchange: Exchange
    metrics: WorkerMetrics

    @property
    def done(self) -> bool:
        """Whether the job's last step is committed."""
        by_target = self.losses.target_reached or self.evaluation.target_reached
        return by_target or self.exchange.done_agreed or self.rules.is_over(self.state.position)

    @property
    def total_steps(self) -> int:
        """Of the whole job, if the global batch stays as it is; 0 if there is no plan yet to tell it."""
        if not self.plans.known:
            return (self.rules.steps or 0) if self.rules.epochs is None else 0
        return self.rules.steps_in_all(self.state.position, self.plans.split.global_batch_size)

    def show(self) -> None:
        """Tell the metrics."""
        shown, position = self.metrics.state, self.state.position
        shown.step, shown.epoch, shown.total_steps = position.step, position.epoch, self.total_steps
