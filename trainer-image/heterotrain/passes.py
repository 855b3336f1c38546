"""The backward passes of a step on one worker: which of them is the one whose gradients travel.

A step has one for each micro-batch and each loss that the script says it takes apart. All but the last add their
gradients up on this worker. A pass begins when backward reaches what `session.scale()` returned, so nothing else that
the script does needs to be known of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd import Variable

from heterotrain.accumulation import Accumulator
from heterotrain.gradient_sum import GradientSum


class Passes:
    """`wanted` backward passes belong to each batch that the script gets."""

    def __init__(self, module: nn.Module, accumulator: Accumulator, wanted: int) -> None:
        self.gradients: GradientSum | None = None  # None alone
        self.wanted = wanted
        self.done = 0
        self._accumulator = accumulator
        self._last_part = True
        self._running = False
        self._first_of_step = True
        self._is_open = False
        # One parameter stands for all: looking at each would be felt. The first is the farthest from any loss.
        self._sample = next((each for each in module.parameters() if each.requires_grad), None)
        if self._sample is not None:
            register: Callable[..., object] = self._sample.register_post_accumulate_grad_hook
            register(self._check_scaled)

    def open(self, *, first_part: bool, last_part: bool) -> None:
        """The script gets the next of the step's batches."""
        self.done = 0
        self._running = False
        self._last_part = last_part
        self._first_of_step = first_part
        self._is_open = True
        if self.gradients is None or (last_part and self.wanted == 1):
            self._accumulator.release()
        else:
            self._accumulator.collect()

    def close(self) -> None:
        """The step is over on this worker, whatever became of it."""
        self._is_open = False

    def through(self, scaled: torch.Tensor) -> torch.Tensor:
        """The loss, whose backward is then a pass."""
        rest = self.gradients.rest() if self.gradients is not None and self._last_part else None
        if rest is not None:
            scaled = scaled + rest.to(scaled.device, scaled.dtype)
        if scaled.requires_grad:
            register: Callable[..., object] = scaled.register_hook
            register(self._begin)
        return scaled

    def without_samples(self) -> None:
        """All of a worker's passes that has no samples in this step."""
        self._accumulator.release()
        self.done = self.wanted
        if self.gradients is not None:
            self._running = True
            self.gradients.without_samples()
            self._running = False

    def _begin(self, _gradient: torch.Tensor) -> None:
        if self._running:
            return  # several scaled losses in one backward
        if self.done >= self.wanted:
            raise RuntimeError(
                f"backward() was called {self.done + 1} times for one batch. Add the losses up and call it once; or "
                f"say session.prepare(..., backward_passes={self.done + 1}), if each batch takes as many"
            )
        if self._first_of_step and not self.done and not self._accumulator.collecting:
            self._check_cleared()
        self._running = True
        if self._last_part and self.done == self.wanted - 1:
            self._accumulator.release()
            if self.gradients is not None:
                self.gradients.begin()
        engine: Any = Variable._execution_engine  # torch has no public way to learn of a backward's end
        engine.queue_callback(self._end)

    def _end(self) -> None:
        self._running = False
        self.done += 1

    def _check_scaled(self, _parameter: torch.Tensor) -> None:
        if self._is_open and not self._running:
            raise RuntimeError(
                "backward() reached the model's parameters from a loss that did not go through session.scale(); its "
                "gradient would be weighted wrongly. For gradients of inputs use torch.autograd.grad()"
            )

    def _check_cleared(self) -> None:
        sample = None if self._sample is None else self._sample.grad
        # A look at what is on a GPU would make the host wait for it.
        if sample is not None and sample.device.type == "cpu" and bool(torch.count_nonzero(sample)):
            raise RuntimeError(
                "gradients of the batch before were there still when backward() began; call optimizer.zero_grad() once "
                "for every batch"
            )
