"""The numbers of an optimizer's parameter groups: rates, momenta, decays. They belong to the step.

A script may set them by hand in its loop, which a worker without samples does not run: it takes them over from one
that does. All workers keep a checksum of those that their steps used.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import torch


class Hyperparameters:
    """Those of one optimizer; which there are is found out when `settle` is called, before the first step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.checksum = 0
        self._optimizer = optimizer
        self._places: list[tuple[int, str, int | None]] = []  # group, key, and place in a pair such as betas
        self._groups = 0

    def settle(self) -> None:
        """Schedules and the like have added theirs."""
        self._groups = len(self._optimizer.param_groups)
        self._places = []
        for number, group in enumerate(self._optimizer.param_groups):
            for key in sorted(group.keys() - {"params"}):
                value = group[key]
                if isinstance(value, (tuple, list)) and value and all(_is_number(each) for each in value):
                    self._places += [(number, key, index) for index in range(len(value))]
                elif _is_number(value):
                    self._places.append((number, key, None))

    @property
    def names(self) -> list[str]:
        """Of each number, the same on all workers of a job."""
        return [key if index is None else f"{key}[{index}]" for _, key, index in self._places]

    def values(self) -> list[float]:
        """All of them now. Raises RuntimeError if a parameter group was added since the loop began."""
        if len(self._optimizer.param_groups) != self._groups:
            raise RuntimeError(
                "a parameter group was added to the optimizer in the loop over the batches; a worker without samples "
                "in this step would not know of it. Add all groups before, with a learning rate of 0 until then"
            )
        groups = self._optimizer.param_groups
        return [float(groups[at][key] if index is None else groups[at][key][index]) for at, key, index in self._places]

    def take(self, values: Sequence[float]) -> None:
        """Set them as another worker has them."""
        for (number, key, index), value in zip(self._places, values, strict=True):
            group = self._optimizer.param_groups[number]
            found = group[key] if index is None else group[key][index]
            if float(found) == value:
                continue
            if index is not None:
                parts = list(group[key])
                parts[index] = type(found)(value)
                group[key] = type(group[key])(parts)
            elif isinstance(found, torch.Tensor):
                found.fill_(value)
            else:
                group[key] = type(found)(value)

    def used(self, step: int, values: Sequence[float]) -> None:
        """The optimizer made the step with these."""
        self.checksum = zlib.crc32(struct.pack(f"<q{len(values)}d", step, *values), self.checksum)

    def restart(self) -> None:
        """All workers begin the checksum together."""
        self.checksum = 0


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    return isinstance(value, (int, float)) or type(value).__module__ == "numpy"
