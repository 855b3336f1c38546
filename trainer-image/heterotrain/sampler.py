"""Which samples a step consumes, and which of them are this worker's; pure arithmetic on a shared order.

The set of samples of a step depends on seed, epoch and cursor alone, never on the split between workers. So every
sample is seen exactly once per epoch while batch sizes change in the middle of it, and any two splits train on the
same sequence of global batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch


@dataclass(frozen=True, slots=True)
class Position:
    """How far a job has come: steps committed in all, the epoch, and samples consumed in it. Equal on all ranks."""

    step: int = 0
    epoch: int = 0
    cursor: int = 0


@dataclass(frozen=True, slots=True)
class Share:
    """What a worker has to load for a step: the part [start, stop) of an epoch's order."""

    epoch: int
    start: int
    stop: int


def epoch_order(dataset_length: int, seed: int, epoch: int) -> torch.Tensor:
    """The order of an epoch, int64 of shape (dataset_length,); the same on every worker."""
    generator = torch.Generator().manual_seed(seed + epoch)
    return torch.randperm(dataset_length, generator=generator)


def step_samples(dataset_length: int, cursor: int, global_batch_size: int, least: int = 1) -> int:
    """Samples that the step at `cursor` consumes; other than the global batch only at the end of an epoch.

    With `least` 2 no step has one sample, on which BatchNorm fails: the step before the last gives one up, or takes the
    last one in if it has none to spare.
    """
    remaining = dataset_length - cursor
    missing = least - (remaining - global_batch_size)
    if 0 < missing < least:
        return global_batch_size - missing if global_batch_size - missing >= least else remaining
    return min(global_batch_size, remaining)


def rank_slice(batch_sizes: Sequence[int], rank: int, samples: int, least: int = 1) -> tuple[int, int]:
    """The part [start, stop) of a step's samples that belongs to `rank`.

    `batch_sizes` are the plan's, by rank. A full step is cut at their prefix sums; a partial one at prefix sums scaled
    down and floored, so that the parts are disjoint, cover the step, and keep the plan's proportions. A part of fewer
    than `least` samples goes to the next rank that has some, or to the one before.
    """
    total = sum(batch_sizes)
    cuts = [prefix * samples // total for prefix in accumulate(batch_sizes, initial=0)]
    if least > 1:
        cuts = list(accumulate(_gathered([stop - start for start, stop in pairwise(cuts)], least), initial=0))
    return cuts[rank], cuts[rank + 1]


def _gathered(parts: list[int], least: int) -> list[int]:
    for rank, part in enumerate(parts):
        if 0 < part < least:
            others = [*range(rank + 1, len(parts)), *range(rank - 1, -1, -1)]
            receiver = next((other for other in others if parts[other]), None)
            if receiver is not None:
                parts[receiver] += part
                parts[rank] = 0
    return parts


def micro_batches(start: int, stop: int, most: int, least: int = 1) -> list[tuple[int, int]]:
    """The parts, in order, in which a worker does its part [start, stop) of a step: the fewest of at most `most`
    samples each, as equal as can be.

    0 for `most` means no limit. If parts of at least `least` samples need it, fewer and larger ones. Without samples
    there is one part without samples.
    """
    samples = stop - start
    wanted = -(-samples // most) if most > 0 else 1
    parts = max(1, min(wanted, samples // least))
    cuts = [start + samples * part // parts for part in range(parts + 1)]
    return list(pairwise(cuts))


def advance(position: Position, samples: int, dataset_length: int) -> Position:
    """The position after a step over `samples` samples has been committed."""
    cursor = position.cursor + samples
    if cursor >= dataset_length:
        return Position(position.step + 1, position.epoch + 1, 0)
    return Position(position.step + 1, position.epoch, cursor)


def steps_in_all(position: Position, epochs: int, dataset_length: int, global_batch_size: int) -> int:
    """Steps at the end of `epochs`, if the global batch stays as it is and no step need be larger."""
    if position.epoch >= epochs:
        return position.step
    this_epoch = -((position.cursor - dataset_length) // global_batch_size)
    later = (epochs - position.epoch - 1) * -(-dataset_length // global_batch_size)
    return position.step + this_epoch + later


def coming_shares(
    position: Position,
    batch_sizes: Sequence[int],
    rank: int,
    dataset_length: int,
    *,
    epochs: int | None,
    steps: int | None,
    least: int = 1,
    most: int = 0,
) -> Iterator[Share]:
    """What `rank` has to load from the step at `position` to the job's end, should its plan stay as it is.

    A step has a share for each of its micro-batches (see there for `least` and `most`), none if it has no samples for
    this rank. The end is that of `epochs` and `steps`, whichever is first; None: without that end.
    """
    newest = position.epoch
    while (epochs is None or position.epoch < epochs) and (steps is None or position.step < steps):
        samples = step_samples(dataset_length, position.cursor, sum(batch_sizes), least)
        start, stop = rank_slice(batch_sizes, rank, samples, least)
        if start < stop:
            newest = position.epoch
            for part in micro_batches(position.cursor + start, position.cursor + stop, most, least):
                yield Share(position.epoch, *part)
        elif position.epoch > newest + 1:
            return  # a whole epoch had no samples for this rank
        position = advance(position, samples, dataset_length)
