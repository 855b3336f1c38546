"""How far a job has come, where it ends, and who is told."""

from __future__ import annotations

from dataclasses import dataclass

from heterotrain.data.evaluation import Evaluation
from heterotrain.data.sampler import Rules
from heterotrain.gradients.losses import Losses
from heterotrain.job.plans import Plans
from heterotrain.reporting.metrics import WorkerMetrics
from heterotrain.state.training_state import TrainingState
from heterotrain.training.exchange import Exchange


@dataclass(frozen=True, slots=True)
class Progress:
    """The same on all ranks at every boundary between steps. `told_batch_size` is the global batch that a worker knows
    before there is a plan; None if it may change."""

    rules: Rules
    state: TrainingState
    plans: Plans
    losses: Losses
    evaluation: Evaluation
    exchange: Exchange
    metrics: WorkerMetrics
    told_batch_size: int | None

    @property
    def done(self) -> bool:
        """Whether the job's last step is committed."""
        by_target = self.losses.target_reached or self.evaluation.target_reached
        return by_target or self.exchange.done_agreed or self.rules.is_over(self.state.position)

    @property
    def total_steps(self) -> int:
        """Of the whole job, if the global batch stays as it is; 0 if nothing tells that yet."""
        if self.rules.epochs is None:
            return self.rules.steps or 0
        if not self.plans.known and self.told_batch_size is None:
            return 0
        return self.rules.steps_in_all(self.state.position, self.global_batch_size)

    @property
    def steps_per_epoch(self) -> int:
        """See `Session.steps_per_epoch`."""
        return self.rules.steps_per_epoch(self.global_batch_size)

    @property
    def global_batch_size(self) -> int:
        """Samples of a full step. Raises RuntimeError if nothing tells it yet."""
        if self.plans.known:
            return self.plans.split.global_batch_size
        if self.told_batch_size is not None:
            return self.told_batch_size
        raise RuntimeError(
            "the global batch is known only once the loop over the batches has begun: it follows from the number of "
            "workers, or batching.fixedGlobalBatch is false"
        )

    @property
    def world_size(self) -> int:
        """Workers of the plan in force. Raises RuntimeError before there is one."""
        if not self.plans.known:
            raise RuntimeError("session.world_size is known only once the loop over the batches has begun")
        return len(self.plans.in_force.members)

    @property
    def loss(self) -> float:
        """The mean global loss of the steps of the last exchange; NaN before."""
        return self.metrics.state.loss

    def show(self) -> None:
        """Tell the metrics how far it is."""
        shown, position = self.metrics.state, self.state.position
        shown.step, shown.epoch = position.step, position.epoch

    def show_total(self) -> None:
        """And where it ends, which changes with the plan alone."""
        self.metrics.state.total_steps = self.total_steps
