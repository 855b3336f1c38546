"""Which samples a step consumes, and which of them are this worker's; pure arithmetic on a shared order.

The set of samples of a step depends on seed, epoch and cursor alone, never on the split between workers. So every
sample is seen exactly once per epoch while batch sizes change in the middle of it, and any two splits train on the
same sequence of global batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch


@dataclass(frozen=True, slots=True)
class Position:
    """How far a job has come: steps committed in all, the epoch, and samples consumed in it. Equal on all ranks."""

    step: int = 0
    epoch: int = 0
    cursor: int = 0


def epoch_order(dataset_length: int, seed: int, epoch: int) -> torch.Tensor:
    """The order of an epoch, int64 of shape (dataset_length,); the same on every worker."""
    generator = torch.Generator().manual_seed(seed + epoch)
    return torch.randperm(dataset_length, generator=generator)


def step_samples(dataset_length: int, cursor: int, global_batch_size: int) -> int:
    """Samples that the step at `cursor` consumes; fewer than the global batch only at the end of an epoch."""
    return min(global_batch_size, dataset_length - cursor)


def rank_slice(batch_sizes: Sequence[int], rank: int, samples: int) -> tuple[int, int]:
    """The part [start, stop) of a step's samples that belongs to `rank`.

    `batch_sizes` are the plan's, by rank. A full step is cut at their prefix sums; a partial one at prefix sums scaled
    down and floored, so that the parts are disjoint, cover the step, and keep the plan's proportions.
    """
    total = sum(batch_sizes)
    prefix = list(accumulate(batch_sizes, initial=0))
    return prefix[rank] * samples // total, prefix[rank + 1] * samples // total


def advance(position: Position, samples: int, dataset_length: int) -> Position:
    """The position after a step over `samples` samples has been committed."""
    cursor = position.cursor + samples
    if cursor >= dataset_length:
        return Position(position.step + 1, position.epoch + 1, 0)
    return Position(position.step + 1, position.epoch, cursor)


def steps_in_all(position: Position, epochs: int, dataset_length: int, global_batch_size: int) -> int:
    """Steps at the end of `epochs`, if the global batch stays as it is."""
    if position.epoch >= epochs:
        return position.step
    this_epoch = -((position.cursor - dataset_length) // global_batch_size)
    later = (epochs - position.epoch - 1) * -(-dataset_length // global_batch_size)
    return position.step + this_epoch + later
