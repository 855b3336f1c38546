"""How far a job has come, where it ends, and who is told."""

from __future__ import annotations

from dataclasses import dataclass

from heterotrain import sampler
from heterotrain.contract import TrainingConfig
from heterotrain.evaluation import Evaluation
from heterotrain.losses import Losses
from heterotrain.metrics import WorkerMetrics
from heterotrain.plans import Plans
from heterotrain.training_state import TrainingState


@dataclass(frozen=True, slots=True)
class Progress:
    """The same on all ranks at every boundary between steps."""

    config: TrainingConfig
    dataset_length: int
    state: TrainingState
    plans: Plans
    losses: Losses
    evaluation: Evaluation
    metrics: WorkerMetrics

    @property
    def done(self) -> bool:
        """Whether the job's last step is committed."""
        config, position = self.config, self.state.position
        by_steps = config.steps is not None and position.step >= config.steps
        by_epochs = config.epochs is not None and position.epoch >= config.epochs
        return by_steps or by_epochs or self.losses.target_reached or self.evaluation.target_reached

    def show(self) -> None:
        """Tell the metrics."""
        shown, position, config = self.metrics.state, self.state.position, self.config
        shown.step, shown.epoch = position.step, position.epoch
        if config.steps is not None:
            shown.total_steps = config.steps
        elif config.epochs is not None:
            batch = self.plans.in_force.global_batch_size
            shown.total_steps = sampler.steps_in_all(position, config.epochs, self.dataset_length, batch)
