"""Learning rates that follow the batch: multiplied while the optimizer steps, and put back behind it.

So schedules, checkpoints and the script see the rates that they have set, whatever the batch does meanwhile.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from heterotrain.contract import TrainingConfig

NONE, LINEAR, SQRT = "None", "Linear", "Sqrt"


@dataclass(frozen=True, slots=True)
class RateScaling:
    """The rule by which a job's rates follow its global batch; they were chosen for `own_batch` samples.

    Sources: Goyal et al., "Accurate, Large Minibatch SGD", section 2.1 (Linear); Krizhevsky, "One weird trick for
    parallelizing convolutional neural networks", section 5 (Sqrt). Raises ValueError for another rule, or without that
    batch.
    """

    rule: str = NONE
    own_batch: int = 0

    def __post_init__(self) -> None:
        if self.rule not in (NONE, LINEAR, SQRT):
            raise ValueError(f"learning_rate_scaling: expected {NONE}, {LINEAR} or {SQRT}, found {self.rule!r}")
        if self.is_active and self.own_batch < 1:
            raise ValueError(f"learning_rate_own_batch: expected at least 1, found {self.own_batch}")

    @classmethod
    def of(cls, config: TrainingConfig) -> RateScaling:
        """That of a job; raises ValueError as the class does."""
        return cls(config.learning_rate_scaling, config.learning_rate_own_batch)

    @property
    def is_active(self) -> bool:
        """Whether rates may change with the batch."""
        return self.rule != NONE

    def factor(self, samples: int) -> float:
        """By what rates are multiplied at a batch of so many samples; 1.0 without a rule."""
        if not self.is_active:
            return 1.0
        ratio = samples / self.own_batch
        return ratio if self.rule == LINEAR else math.sqrt(ratio)

    def __str__(self) -> str:
        return f"{self.rule} from {self.own_batch} samples" if self.is_active else self.rule


@contextlib.contextmanager
def rates(optimizer: torch.optim.Optimizer, factor: float) -> Iterator[None]:
    """Inside, the rates of all parameter groups are `factor` times what they are before and after.

    A rate that is a tensor is changed in place, for a compiled or captured step reads that very tensor. One that a hook
    of the optimizer sets in between stays as it is set. Groups without a rate, as some optimizers have, stay as they
    are.
    """
    if factor == 1.0:
        yield
        return
    numbers, tensors = _scaled(optimizer, factor)
    try:
        yield
    finally:
        for group, own, scaled in numbers:
            if group["lr"] is scaled:
                group["lr"] = own
        for tensor, before, version in tensors:
            if tensor._version == version:  # reading its value would wait for a GPU
                tensor.copy_(before)


def _scaled(
    optimizer: torch.optim.Optimizer, factor: float
) -> tuple[list[tuple[dict[str, Any], Any, Any]], list[tuple[torch.Tensor, torch.Tensor, int]]]:
    """Multiply the rates. Of each number its group, what it was and what it is now; of each tensor, which several
    groups may share, what it was and its version now."""
    numbers, tensors = [], {}
    for group in optimizer.param_groups:
        own = group.get("lr")
        if isinstance(own, torch.Tensor):
            tensors[id(own)] = own.detach()
        elif own is not None:
            group["lr"] = own * factor
            numbers.append((group, own, group["lr"]))
    before = [each.clone() for each in tensors.values()]
    return numbers, [
        (each, old, each.mul_(factor)._version) for each, old in zip(tensors.values(), before, strict=True)
    ]
