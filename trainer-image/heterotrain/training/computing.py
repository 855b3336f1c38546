"""What a worker computes of a batch, however its gradients travel: micro-batches, scaled losses, and their passes."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from heterotrain.data.sampler import Share
from heterotrain.gradients.counting import checked_count, sample_weight
from heterotrain.gradients.gradient_sum import touch
from heterotrain.gradients.losses import Losses
from heterotrain.gradients.mean_check import MeanCheck
from heterotrain.state.training_state import TrainingState
from heterotrain.training.running_step import RunningStep
from heterotrain.training.subject import Subject


class Computing(ABC):
    """The batch that the script has; a part of a `StepProtocol`."""

    def __init__(self, subject: Subject, state: TrainingState, losses: Losses) -> None:
        self._subject = subject
        self._state = state
        self._losses = losses
        self._mean_check = MeanCheck()
        self._step = RunningStep()
        self._has_looked = False  # at what the model holds once the script's loop has run

    @property
    def share(self) -> Share | None:
        """The samples that the script computes on now; None if this worker has none in the running step."""
        return self._step.share

    @property
    def is_open(self) -> bool:
        """Whether the script has a batch that it has not committed yet."""
        return self._step.is_open

    def _open(self, step: RunningStep) -> None:
        """The script gets the first micro-batch of this step."""
        subject = self._subject
        self._step = step
        subject.accumulator.drop()
        step.open_part()
        subject.passes.open(first_part=True, last_part=step.is_last_part)

    def next_part(self) -> bool:
        """Go to this worker's next micro-batch of the running step; False if there is none.

        Raises RuntimeError if the script has not committed the batch that it has.
        """
        step = self._step
        if step.is_open:
            raise RuntimeError(
                "optimizer.step() was not called for the batch before; every batch must be committed once"
            )
        if not step.has_next_part:
            return False
        step.open_part()
        self._subject.passes.open(first_part=False, last_part=step.is_last_part)
        return True

    def scale(self, loss: torch.Tensor, count: float | torch.Tensor | None) -> torch.Tensor:
        """See `Session.scale`."""
        step, subject = self._step, self._subject
        share = step.share
        if not step.is_open or share is None:
            raise RuntimeError("session.scale() was called outside the loop over the batches")
        subject.check_frozen()
        if subject.loss.counted:
            scaled = self._scaled_by_count(step, loss, count)
        elif count is not None:
            raise ValueError("session.scale(): a count is of use only after session.prepare(..., counted=True)")
        else:
            samples = share.stop - share.start
            if self._mean_check.looks_left and subject.loss.reduction == "mean":
                self._mean_check.look(loss, samples)
            scaled = loss * sample_weight(samples, step.samples, subject.loss.reduction)
        self._losses.add(scaled)
        step.scaled = True
        return subject.passes.through(scaled)

    def _scaled_by_count(
        self, step: RunningStep, loss: torch.Tensor, count: float | torch.Tensor | None
    ) -> torch.Tensor:
        if count is None:
            raise ValueError("session.scale() needs a count after session.prepare(..., counted=True)")
        if step.scaled:
            raise RuntimeError("session.scale() was called twice for one batch; scale the sum of its losses")
        number = checked_count(count)
        step.count += number
        divisor = self._counted(step, number)
        if not number:
            # The mean over nothing is no number, and its gradient would be none.
            return touch(self._subject.trained, self._subject.device)
        return loss * sample_weight(number, divisor, self._subject.loss.reduction)

    @abstractmethod
    def _counted(self, step: RunningStep, number: float) -> float:
        """So much was counted in the micro-batch under way; over how much its loss is to be a mean."""

    def _check_computed(self) -> RunningStep:
        """The step whose batch the script commits. Raises RuntimeError if there is none, or the script has not done
        with it what it has to; MisfitError if the model's tensors have changed."""
        step, subject = self._step, self._subject
        if not step.is_open:
            raise RuntimeError("optimizer.step() was called without a new batch")
        if not step.scaled:
            raise RuntimeError("the loss did not go through session.scale(); its gradient would be weighted wrongly")
        subject.passes.check_done()
        if not self._has_looked and step.share is not None:
            self._has_looked = True
            self._state.check_names()
        step.is_open = False
        return step

    def _forget(self) -> None:
        """The step is given up: nothing of it stays."""
        self._step = RunningStep()
        self._subject.passes.close()
        self._subject.accumulator.drop()
        self._subject.optimizer.zero_grad()
        self._subject.drop_gradients_of_lacking()
