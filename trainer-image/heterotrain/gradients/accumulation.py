"""Gradients of micro-batches, added up on this worker before they travel.

A worker whose part of a step does not fit into its memory does it in several passes, and only the last one sums
gradients over the workers. Before that each gradient is taken away from its parameter as soon as it is there: whatever
the script does in its loop to gradients (clear them, clip them) then meets none, and takes effect in the last pass, on
their sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle


class Accumulator:
    """The gradients of a step's micro-batches so far. While `collecting`, gradients never stay at their parameters."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._kept: dict[torch.Tensor, torch.Tensor] = {}
        self._handles: list[RemovableHandle] = []

    @property
    def collecting(self) -> bool:
        """Whether the running micro-batch is not the step's last."""
        return bool(self._handles)

    @property
    def holds_gradients(self) -> bool:
        """Whether anything is to be added to the coming gradients."""
        return bool(self._kept)

    def collect(self) -> None:
        """Take the gradients of the coming backward away."""
        if self.collecting:
            return
        for parameter in self._module.parameters():
            if parameter.requires_grad:
                # What is there belongs to the step before, and may lie in a bucket that is about to be filled again.
                parameter.grad = None
                register: Callable[..., RemovableHandle] = parameter.register_post_accumulate_grad_hook
                self._handles.append(register(self._keep))

    def release(self) -> None:
        """Leave the gradients of the coming backward where they are."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def drop(self) -> None:
        """Forget what was added up: the step is committed, or begins again."""
        self.release()
        self._kept.clear()

    def add_to(self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        """Add what was kept of `parameters` to their `gradients` of the last micro-batch, in place."""
        for parameter, gradient in zip(parameters, gradients, strict=True):
            kept = self._kept.pop(parameter, None)
            if kept is not None:
                gradient.add_(kept)

    def scale(self, factor: float) -> None:
        """Multiply what was added up so far."""
        for kept in self._kept.values():
            kept.mul_(factor)

    def give_back(self) -> None:
        """Put what was kept where a script looks for it, together with what is there."""
        for parameter, kept in self._kept.items():
            parameter.grad = kept if parameter.grad is None else parameter.grad.add_(kept)
        self._kept.clear()

    def _keep(self, parameter: torch.Tensor) -> None:
        gradient, parameter.grad = parameter.grad, None
        if gradient is None:
            return
        kept = self._kept.get(parameter)
        if kept is None:
            self._kept[parameter] = gradient
        else:
            kept.add_(gradient)
