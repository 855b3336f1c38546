"""How a job's samples are divided into steps, and a step's among the workers, under the plan in force."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from heterotrain import sampler
from heterotrain.batch_norm import WARNING
from heterotrain.contract import TrainingConfig
from heterotrain.plans import Plans
from heterotrain.running_step import RunningStep
from heterotrain.sampler import Share
from heterotrain.training_state import TrainingState


@dataclass(frozen=True, slots=True)
class Division:
    """`least` is the fewest samples that any worker may compute on; more than one with BatchNorm."""

    config: TrainingConfig
    state: TrainingState
    plans: Plans
    dataset_length: int
    least: int

    def next_step(self) -> RunningStep:
        """The step at the position that the job has come to; nothing of it is done."""
        return RunningStep.at(
            self.state.position, self.plans.in_force, self.plans.rank, self.dataset_length, self.least
        )

    def coming(self, running: RunningStep) -> Iterator[Share]:
        """This worker's shares from the micro-batch under way on, should the plan stay as it is."""
        plan, rank = self.plans.in_force, self.plans.rank
        shares = sampler.coming_shares(
            self.state.position,
            plan.batch_sizes,
            rank,
            self.dataset_length,
            epochs=self.config.epochs,
            steps=self.config.steps,
            least=self.least,
            most=plan.members[rank].micro_batch_size,
        )
        return islice(shares, running.opened - 1, None)

    def commit(self, running: RunningStep) -> None:
        """The step is committed: the job has come further."""
        self.state.position = sampler.advance(self.state.position, running.samples, self.dataset_length)

    def remarks(self) -> Iterator[str]:
        """What a user should know of it before the first step."""
        plan = self.plans.in_force
        if self.dataset_length < plan.global_batch_size:
            yield (
                f"the data set has {self.dataset_length} samples, fewer than the global batch of "
                f"{plan.global_batch_size}: no step is full, so none is measured and batches never change"
            )
        if self.least > 1 and self.plans.rank == 0 and len(plan.members) > 1:
            yield WARNING
