"""The backward passes of a step on one worker: which of them is the one whose gradients travel.

A step has one for each micro-batch and each loss that the script says it takes apart. All but the last add their
gradients up on this worker. A pass begins when backward reaches what `session.scale()` returned, so nothing else that
the script does has to be known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd import Variable
from torch.utils.hooks import RemovableHandle

from heterotrain.gradients.accumulation import Accumulator
from heterotrain.gradients.gradient_sum import GradientSum

_LOOKS = 2  # losses in which backwards inside the backward are looked for
_MOST_NODES = 20_000  # of a loss's graph that are looked at


class Passes:
    """`wanted` backward passes belong to each batch that the script gets."""

    def __init__(self, module: nn.Module, accumulator: Accumulator, wanted: int) -> None:
        self.gradients: GradientSum | None = None  # None alone
        self.wanted = wanted
        self.done = 0
        self._accumulator = accumulator
        self._last_part = True
        self._running = False
        self._summing = False  # the backward under way is the step's last
        self._module = module
        self._first_of_step = True
        self._is_open = False
        self._samples: list[nn.Parameter] = []
        self._handles: list[RemovableHandle] = []
        self._looks_left = _LOOKS

    def settle(self) -> None:
        """The script has frozen what it wants to freeze.

        A few parameters stand for all, since looking at each would cost too much: the first, which is the farthest from
        any loss, the last, and one between.
        """
        free = [each for each in self._module.parameters() if each.requires_grad]
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._samples = list(dict.fromkeys(free[place] for place in (0, len(free) // 2, -1))) if free else []
        for each in self._samples:
            register: Callable[..., RemovableHandle] = each.register_post_accumulate_grad_hook
            self._handles.append(register(self._check_scaled))

    def open(self, *, first_part: bool, last_part: bool) -> None:
        """The script gets the next of the step's batches."""
        self.done = 0
        self._running = self._summing = False
        self._last_part = last_part
        self._first_of_step = first_part
        self._is_open = True
        if last_part and self.wanted == 1:
            self._accumulator.release()
        else:
            self._accumulator.collect()

    def close(self) -> None:
        """The step is over on this worker, whatever became of it."""
        self._is_open = False

    def through(self, scaled: torch.Tensor) -> torch.Tensor:
        """Make the backward of a scaled loss a pass. Raises RuntimeError if it would run further backwards inside."""
        if self._looks_left:
            self._looks_left -= 1
            _check_no_backward_inside(scaled)
        rest = self.gradients.rest() if self.gradients is not None and self._last_part else None
        if rest is not None:
            scaled = scaled + rest.to(scaled.device, scaled.dtype)
        if scaled.requires_grad:
            register: Callable[..., object] = scaled.register_hook
            register(self._begin)
        return scaled

    def check_done(self) -> None:
        """Raises RuntimeError if the batch did not have all of its passes."""
        if self._running:
            raise RuntimeError("backward() did not come to its end; a batch in which it raises an exception is lost")
        if self.done != self.wanted:
            raise RuntimeError(
                f"backward() was called {self.done} times through what session.scale() returned, where "
                f"{self.wanted} was expected (session.prepare(..., backward_passes=...))"
            )

    def without_samples(self) -> None:
        """Do all passes of a worker that has no samples in this step."""
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
            self._summing = True
            self._accumulator.release()
            if self.gradients is not None:
                self.gradients.begin()
        engine: Any = Variable._execution_engine  # torch has no public way to learn of a backward's end
        engine.queue_callback(self._end)

    def _end(self) -> None:
        self._running = False
        self.done += 1
        if self._summing:
            self._summing = False
            if self.gradients is None:
                self._accumulator.give_back()
            else:
                self.gradients.end()

    def _check_scaled(self, _parameter: torch.Tensor) -> None:
        if self._is_open and not self._running:
            raise RuntimeError(
                "backward() reached the model's parameters from a loss that did not go through session.scale(); its "
                "gradient would be weighted wrongly. For gradients of inputs use torch.autograd.grad()"
            )

    def _check_cleared(self) -> None:
        for parameter in self._samples:
            gradient = parameter.grad
            # A look at what is on a GPU would make the host wait for it.
            if gradient is None or gradient.device.type != "cpu" or not bool(torch.count_nonzero(gradient)):
                continue
            raise RuntimeError(
                "gradients of the batch before were there still when backward() began; call optimizer.zero_grad() once "
                "for every batch"
            )


def _check_no_backward_inside(loss: torch.Tensor) -> None:
    waiting: list[Any] = [loss.grad_fn]
    seen: set[Any] = {None}
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.name() == "CheckpointFunctionBackward":
            raise RuntimeError(
                "torch.utils.checkpoint runs a backward of its own inside backward() here, where gradients are not "
                "summed; call it with use_reentrant=False, and Hugging Face's gradient_checkpointing_enable() with "
                'gradient_checkpointing_kwargs={"use_reentrant": False}'
            )
        waiting.extend(following for following, _ in node.next_functions)
