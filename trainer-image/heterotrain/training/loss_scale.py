"""The weight of this worker's loss, and what becomes known of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from heterotrain.gradients.counting import checked_count, sample_weight
from heterotrain.gradients.gradient_sum import touch
from heterotrain.gradients.losses import Losses
from heterotrain.gradients.mean_check import MeanCheck
from heterotrain.training.group import Team
from heterotrain.training.running_step import RunningStep
from heterotrain.training.subject import Subject


@dataclass(frozen=True, slots=True)
class LossScale:
    """`reduction` says whether the script's loss is a "mean" or a "sum"; `counted`: over what the script counts, not
    over samples."""

    subject: Subject
    team: Team
    losses: Losses
    reduction: str
    counted: bool
    mean_check: MeanCheck

    def scale(self, step: RunningStep, loss: torch.Tensor, count: float | torch.Tensor | None) -> torch.Tensor:
        """See `Session.scale`."""
        if not step.is_open or step.share is None:
            raise RuntimeError("session.scale() was called outside the loop over the batches")
        self.subject.check_frozen()
        if self.counted:
            scaled = self._by_count(step, loss, count)
        elif count is not None:
            raise ValueError("session.scale(): a count is of use only after session.prepare(..., counted=True)")
        else:
            samples = step.share.stop - step.share.start
            if self.mean_check.looks_left and self.reduction == "mean":
                self.mean_check.look(loss, samples)
            scaled = loss * sample_weight(samples, step.samples, self.reduction)
        self.losses.add(scaled)
        step.scaled = True
        return self.subject.passes.through(scaled)

    def nothing(self, step: RunningStep) -> None:
        """This worker has no samples in the step, and nothing to count."""
        if self.counted:
            self.team.tell_count(0, step.samples)
        step.scaled = True

    def _by_count(self, step: RunningStep, loss: torch.Tensor, count: float | torch.Tensor | None) -> torch.Tensor:
        if count is None:
            raise ValueError("session.scale() needs a count after session.prepare(..., counted=True)")
        if step.scaled:
            raise RuntimeError("session.scale() was called twice for one batch; scale the sum of its losses")
        number = checked_count(count)
        step.count += number
        if step.is_last_part:
            self.team.tell_count(step.count, step.samples)
        if not number:
            # The mean over nothing is no number, and its gradient would be none.
            return touch(self.subject.trained, self.subject.device)
        alone = self.team.generation is None
        return loss * sample_weight(number, number if alone else step.samples, self.reduction)
