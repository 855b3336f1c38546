"""The numbers of an optimizer's parameter groups: rates, momenta, decays. They belong to the step.

A script may set them by hand in its loop. A worker without samples does not run that loop, and takes the numbers over
from one that does. All workers keep a checksum of the numbers that their steps used.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch

# How a step is computed, which may be another way on each kind of device, changes nothing of what is computed.
_NO_HYPERPARAMETERS = frozenset({"params", "fused", "foreach", "capturable", "differentiable"})


class Hyperparameters:
    """The hyperparameters of one optimizer; `settle`, before the first step, finds out which there are."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.checksum = 0
        self._optimizer = optimizer
        self._used: list[Any] = []  # at the newest step
        self._are_plain = False
        self._places: list[tuple[int, str, int | None]] = []  # group, key, and place in a pair such as betas
        self._groups: list[Callable[[Any], tuple[Any, ...]]] = []  # what reads the plain numbers of each
        self._pairs: list[tuple[int, str, int]] = []

    def settle(self) -> None:
        """All hyperparameters are there now, also those that schedules have added."""
        plain: list[tuple[int, str, int | None]] = []
        self._groups, self._pairs = [], []
        for number, group in enumerate(self._optimizer.param_groups):
            for key in sorted(group.keys() - _NO_HYPERPARAMETERS):
                value = group[key]
                if isinstance(value, (tuple, list)) and value and all(_is_number(each) for each in value):
                    self._pairs += [(number, key, index) for index in range(len(value))]
                elif _is_number(value):
                    plain.append((number, key, None))
            keys = [key for at, key, _ in plain if at == number]
            # Reading them one by one would cost too much. For one key itemgetter returns no tuple, so it gets it twice.
            self._groups.append(itemgetter(*keys, *keys[:1]) if keys else lambda _: ())
            plain += [(number, keys[0], None)] if keys else []
        self._places = [*plain, *self._pairs]

    @property
    def names(self) -> list[str]:
        """The name of each number; the same on all workers of a job."""
        return [key if index is None else f"{key}[{index}]" for _, key, index in self._places]

    def values(self) -> list[Any]:
        """Their present values in the order of `names`, as `float()` takes them. Raises RuntimeError if a parameter
        group was added since the loop began."""
        groups = self._optimizer.param_groups
        if len(groups) != len(self._groups):
            raise RuntimeError(
                "a parameter group was added to the optimizer in the loop over the batches; a worker without samples "
                "in this step would not know of it. Add it before the loop, or between two epochs of session.epochs()"
            )
        values: list[Any] = []
        for read, group in zip(self._groups, groups, strict=True):
            values += read(group)
        return values + [groups[at][key][index] for at, key, index in self._pairs] if self._pairs else values

    def take(self, values: Sequence[float]) -> None:
        """Set the numbers to those of another worker."""
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

    def used(self, step: int, values: Sequence[Any]) -> None:
        """The optimizer steps with these values. The checksum covers each change of the values, and its step."""
        if self._are_plain and values == self._used:
            return  # most steps end here; a tensor may have been changed in place
        numbers = list(map(float, values))
        self._are_plain = not any(isinstance(each, torch.Tensor) for each in values)
        if numbers != self._used:
            self._used = numbers
            self.checksum = zlib.crc32(struct.pack(f"<q{len(numbers)}d", step, *numbers), self.checksum)

    def saw(self, checksum: int) -> None:
        """Cover something else that must be the same on all workers: the order of an epoch's samples."""
        self.checksum = zlib.crc32(struct.pack("<q", checksum), self.checksum)

    def restart(self) -> None:
        """All workers begin the checksum together."""
        self.checksum = 0
        self._used = []


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    return isinstance(value, (int, float)) or type(value).__module__ == "numpy"
