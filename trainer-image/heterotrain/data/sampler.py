"""Which samples a step consumes, and which of them are this worker's; pure arithmetic on a shared order.

The set of samples of a step depends on seed, epoch and cursor alone, never on the split between workers. So every
sample is seen exactly once per epoch while batch sizes change in the middle of it, and any two splits train on the
same sequence of global batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

PARTIAL, DROP, CARRY = "Partial", "Drop", "Carry"
"""What becomes of an epoch's samples that do not fill a step: a smaller step, none, or the next epoch's first step."""


class Position(NamedTuple):
    """How far a job has come: steps committed in all, the epoch, and samples consumed in it. Equal on all ranks.

    `reached_in`: the step before began in an earlier epoch, and reached into this one.
    """

    step: int = 0
    epoch: int = 0
    cursor: int = 0
    reached_in: bool = False

    @property
    def begins(self) -> bool:
        """Whether no step has begun in this epoch yet."""
        return self.cursor == 0 or self.reached_in


class Share(NamedTuple):
    """What a worker has to load for a step: the part [start, stop) of an epoch's order, and beyond the epoch's end, of
    the next ones'."""

    epoch: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Rules:
    """How a job's samples make steps; `length` is in samples an epoch. `least` is the fewest samples that a worker may
    compute on; `last_step` one of the three above; `epochs` and `steps` end the job, whichever is first, None: never.
    An `endless` job has the end that it would have, and goes on.
    """

    length: int
    least: int = 1
    last_step: str = PARTIAL
    epochs: int | None = None
    steps: int | None = None
    endless: bool = False

    def samples(self, position: Position, global_batch_size: int) -> int:
        """Samples that the step at `position` consumes; other than the global batch only where the samples end.

        With `least` 2 no step has one sample, on which BatchNorm fails: the step before the last gives one up, or takes
        the last one in if it has none to spare.
        """
        remaining = self.length - position.cursor
        if self.last_step == CARRY:
            if self.epochs is None or self.endless:
                return global_batch_size
            remaining += (self.epochs - position.epoch - 1) * self.length
        if self.last_step == DROP and remaining >= global_batch_size:
            return global_batch_size  # the rest is left out
        missing = self.least - (remaining - global_batch_size)
        if 0 < missing < self.least:
            return global_batch_size - missing if global_batch_size - missing >= self.least else remaining
        return min(global_batch_size, remaining)

    def usual_samples(self, global_batch_size: int) -> int:
        """Samples of the first step, hence of most: only steps at the end of an epoch, or of the job, have others."""
        return self.samples(Position(), global_batch_size)

    def smaller_steps(self, global_batch_size: int) -> tuple[int, ...]:
        """Samples of those steps of an epoch that have fewer than the global batch: its last one, or with `least` 2 its
        last two. None where samples are carried into the next epoch."""
        if self.last_step == CARRY:
            return ()
        full_for_sure = max(0, self.steps_per_epoch(global_batch_size) - 2)
        position, found = Position(cursor=full_for_sure * global_batch_size), []
        while position.epoch == 0:
            found.append(self.samples(position, global_batch_size))
            position = self.advance(position, found[-1], global_batch_size)
        return tuple(samples for samples in found if samples < global_batch_size)

    def advance(self, position: Position, samples: int, global_batch_size: int) -> Position:
        """The position after a step over `samples` samples has been committed."""
        cursor = position.cursor + samples
        epoch = position.epoch + cursor // self.length
        cursor %= self.length
        if self.last_step == DROP and epoch == position.epoch and self.length - cursor < global_batch_size:
            epoch, cursor = epoch + 1, 0
        return Position(position.step + 1, epoch, cursor, reached_in=cursor > 0 and epoch > position.epoch)

    def is_over(self, position: Position) -> bool:
        """Whether this position is the end of the job."""
        by_epochs = self.epochs is not None and position.epoch >= self.epochs
        return not self.endless and (by_epochs or (self.steps is not None and position.step >= self.steps))

    def steps_per_epoch(self, global_batch_size: int) -> int:
        """Steps of a whole epoch; where samples are carried into the next one, the most that it may have."""
        if self.last_step == DROP:
            return max(1, self.length // global_batch_size)
        return -(-self.length // global_batch_size)

    def steps_in_all(self, position: Position, global_batch_size: int) -> int:
        """Steps at the end of the job, if the global batch stays as it is and no step need be larger; 0 if it has no
        end."""
        if self.epochs is None:
            return self.steps or 0
        if position.epoch >= self.epochs:
            return position.step
        later = self.epochs - position.epoch - 1
        remaining = self.length - position.cursor
        if self.last_step == CARRY:
            found = -(-(remaining + later * self.length) // global_batch_size)
        elif self.last_step == DROP:
            found = max(1, remaining // global_batch_size) + later * self.steps_per_epoch(global_batch_size)
        else:
            found = -(-remaining // global_batch_size) + later * self.steps_per_epoch(global_batch_size)
        found += position.step
        return found if self.steps is None else min(found, self.steps)


def epoch_order(dataset_length: int, seed: int, epoch: int) -> torch.Tensor:
    """The order of an epoch, int64 of shape (dataset_length,); the same on every worker."""
    import torch  # noqa: PLC0415 - all else here is arithmetic, also for those who have no torch

    generator = torch.Generator().manual_seed(seed + epoch)
    return torch.randperm(dataset_length, generator=generator)


def rank_slices(batch_sizes: Sequence[int], samples: int, least: int = 1) -> list[tuple[int, int]]:
    """The parts [start, stop) of a step's samples, by rank.

    `batch_sizes` are the plan's, by rank. A full step is cut at their prefix sums; a partial one at prefix sums scaled
    down and floored, so that the parts are disjoint, cover the step, and keep the plan's proportions. A part of fewer
    than `least` samples goes to the next rank that has some, or to the one before.
    """
    total = sum(batch_sizes)
    cuts = [prefix * samples // total for prefix in accumulate(batch_sizes, initial=0)]
    if least > 1:
        cuts = list(accumulate(_gathered([stop - start for start, stop in pairwise(cuts)], least), initial=0))
    return list(pairwise(cuts))


def rank_slice(batch_sizes: Sequence[int], rank: int, samples: int, least: int = 1) -> tuple[int, int]:
    """The one that belongs to `rank`."""
    return rank_slices(batch_sizes, samples, least)[rank]


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
    return list(micro_batches_one_by_one(start, stop, most, least))


def micro_batches_one_by_one(start: int, stop: int, most: int, least: int = 1) -> Iterator[tuple[int, int]]:
    """The same, for parts of whole data sets, of which a list would be long."""
    samples = stop - start
    wanted = -(-samples // most) if most > 0 else 1
    parts = max(1, min(wanted, samples // least))
    return pairwise(start + samples * part // parts for part in range(parts + 1))


def coming_shares(
    rules: Rules, position: Position, batch_sizes: Sequence[int], rank: int, most: int = 0
) -> Iterator[Share]:
    """What `rank` has to load from the step at `position` to the job's end, should its plan stay as it is.

    A step has a share for each of its micro-batches (see there for `most`), none if it has no samples for this rank.
    """
    newest, whole = position.epoch, sum(batch_sizes)
    known: dict[int, list[tuple[int, int]]] = {}  # steps have few different sizes
    while not rules.is_over(position):
        samples = rules.samples(position, whole)
        if samples not in known:
            start, stop = rank_slice(batch_sizes, rank, samples, rules.least)
            known[samples] = micro_batches(start, stop, most, rules.least) if start < stop else []
        if known[samples]:
            newest, cursor = position.epoch, position.cursor
            for start, stop in known[samples]:
                yield Share(newest, cursor + start, cursor + stop)
        elif position.epoch > newest + 1:
            return  # a whole epoch had no samples for this rank
        position = rules.advance(position, samples, whole)
