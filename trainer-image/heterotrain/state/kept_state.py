"""All that a script's loop may change of a training, kept so that it can be put back as if the loop had not run.

Copies of parameters lie in the host's memory, where there is more of it than on a GPU.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from heterotrain.state.buffers import KeptBuffers
from heterotrain.state.randomness import KeptRandomness

_CPU = torch.device("cpu")


class KeptState:
    """Model, optimizer, registered objects and random numbers as they are when it is made."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        registered: Mapping[str, Any],
        device: torch.device,
    ) -> None:
        self._parameters = {each: each.detach().to(_CPU, copy=True) for each in module.parameters()}
        self._trained = {each: each.requires_grad for each in module.parameters()}
        self._buffers = KeptBuffers(module)
        self._buffers.keep()
        self._modes = {each: each.training for each in module.modules()}
        self._optimizer = optimizer
        self._states = {each: _Kept(state) for each, state in optimizer.state.items()}
        self._groups = [
            {key: _Kept(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups
        ]
        self._registered = [(each, copy.deepcopy(each.state_dict())) for each in registered.values()]
        self._randomness = KeptRandomness(device)

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back. Gradients are gone, and tensors that were there before are the same objects."""
        for parameter, kept in self._parameters.items():
            parameter.copy_(kept)
            parameter.grad = None
            parameter.requires_grad_(self._trained[parameter])
        self._buffers.restore()
        for module, training in self._modes.items():
            module.training = training
        for each, state in self._registered:
            each.load_state_dict(state)
        # After the registered objects, among which schedules may set rates when they are loaded.
        self._optimizer.state.clear()
        self._optimizer.state.update({each: kept.restored() for each, kept in self._states.items()})
        del self._optimizer.param_groups[len(self._groups) :]
        for group, kept_group in zip(self._optimizer.param_groups, self._groups, strict=True):
            for key in group.keys() - kept_group.keys() - {"params"}:
                del group[key]
            group.update({key: kept.restored() for key, kept in kept_group.items()})
        self._randomness.restore()


class _Kept:
    """A value of an optimizer: tensors are filled again, for others may hold them, all else is copied."""

    def __init__(self, value: Any) -> None:
        self._value = value
        self._parts = {key: _Kept(each) for key, each in value.items()} if isinstance(value, dict) else None
        self._copy = None if self._parts is not None else copy.deepcopy(value)

    def restored(self) -> Any:
        """The value as it was."""
        if self._parts is not None:
            self._value.clear()
            self._value.update({key: each.restored() for key, each in self._parts.items()})
            return self._value
        if isinstance(self._value, torch.Tensor) and isinstance(self._copy, torch.Tensor):
            return self._value.copy_(self._copy)
        return self._copy
