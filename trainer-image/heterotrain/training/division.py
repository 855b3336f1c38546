"""How a job's samples are divided into steps, and a step's among the workers, under the plan in force."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from heterotrain.data import sampler
from heterotrain.data.sampler import Rules, Share
from heterotrain.job.plans import Plans
from heterotrain.state.batch_norm import WARNING
from heterotrain.state.training_state import TrainingState
from heterotrain.training.running_step import RunningStep

_FEW_STEPS = 5  # of an epoch, below which a smaller one among them is worth a remark


@dataclass(frozen=True, slots=True)
class Division:
    """One worker's side of it."""

    rules: Rules
    state: TrainingState
    plans: Plans

    def next_step(self) -> RunningStep:
        """The step at the position that the job has come to; nothing of it is done."""
        return RunningStep.at(self.state.position, self.plans.split, self.plans.rank, self.rules)

    def usual_samples(self) -> int:
        """Samples of a step that is not the last of its epoch."""
        batch = self.plans.split.global_batch_size
        return batch if self.rules.last_step == sampler.CARRY else min(batch, self.rules.length)

    def coming(self, running: RunningStep) -> Iterator[Share]:
        """This worker's shares from the micro-batch under way on, should the plan stay as it is."""
        split, rank = self.plans.split, self.plans.rank
        most = split.plan.members[rank].micro_batch_size
        shares = sampler.coming_shares(self.rules, self.state.position, split.batch_sizes, rank, most)
        return islice(shares, running.opened - 1, None)

    def commit(self, running: RunningStep) -> None:
        """The step is committed: the job has come further."""
        batch = self.plans.split.global_batch_size
        self.state.position = self.rules.advance(self.state.position, running.samples, batch)

    def remarks(self) -> Iterator[str]:
        """What a user should know of it before the first step."""
        plan, length = self.plans.in_force, self.rules.length
        batch = plan.global_batch_size
        carries = "training.lastStep: Carry fills each step from the next epoch"
        if self.rules.last_step == sampler.PARTIAL and self.plans.rank == 0:
            if length < batch:
                yield f"the data set has {length} samples, fewer than the global batch of {batch}; {carries}"
            elif length % batch and self.rules.steps_per_epoch(batch) <= _FEW_STEPS:
                yield (
                    f"one of {self.rules.steps_per_epoch(batch)} steps of each epoch has {length % batch} samples "
                    f"instead of {batch} and is not measured, which slows the balancing down; {carries}"
                )
        if self.rules.least > 1 and self.plans.rank == 0 and len(plan.members) > 1:
            yield WARNING
