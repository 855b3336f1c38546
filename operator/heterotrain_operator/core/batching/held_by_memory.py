"""Batches that only memory holds back: who is held, what that costs, and how to find out more without any risk.

One batch tells no slope of memory, and a worker that is nearly full at its first batch may not even try one sample
more. Where all are, nobody would ever see a second batch. But half of a batch can be tried at any time: the worker
computes the same part of the step in two passes, its peak is that of half a batch, and from then on its line is known.
It costs the fixed part of a step once more, to workers that wait for the slowest in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from heterotrain_operator.core.batching.policy import Seat, multiples_of_seats
from heterotrain_operator.core.batching.words import percent
from heterotrain_operator.core.facts import bounds_of, listed
from heterotrain_operator.core.model import Job
from heterotrain_operator.core.prediction.memory_limit import batch_limit
from heterotrain_operator.core.prediction.memory_model import USABLE_PERCENT
from heterotrain_operator.core.split.levels import Bounds
from heterotrain_operator.core.split.waterfill import Line, iteration_seconds, waterfill

NEAR = 0.9
"""A smaller batch seen that is more than this part of the present one tells too little of the slope: half a batch is
tried still. After that the smallest batch is at most half of the present one, so nobody is tried twice. With 0.6, lines
that were good enough lost their lower batch, which is what is known to fit after a failure."""


@dataclass(frozen=True, slots=True)
class HeldByMemory:
    """That memory holds batches back: the share of the step that a split without that would save, why, in words, and by
    rank the samples to compute at once to learn more (0: as many as fit; empty: nothing can be learnt so).
    """

    saving: float
    reason: str
    at_once: tuple[int, ...]


class BestSplit(NamedTuple):
    """The best split within the present bounds, the own seconds of the slowest now, and the share of the step that a
    move must save.
    """

    batches: tuple[int, ...]
    present_seconds: float
    least_saving: float


def held_by_memory(
    job: Job,
    seats: Sequence[Seat],
    lines: Sequence[Line],
    reachable: Sequence[Bounds],
    best: BestSplit,
) -> HeldByMemory | None:
    """What memory alone keeps from saving more than is worth a move; None if it does not. `lines` and `reachable` are
    the own times and the bounds, by rank, that the policy counts with, and `best` is its split within them.

    Where some workers can find out more, it is what these hold back, with all others as they are bounded now.
    """
    every = [rank for rank, seat in enumerate(seats) if _is_bounded(seat)]
    # A bound that the best split does not touch keeps nothing back.
    if not any(best.batches[rank] >= reachable[rank][1] for rank in every):
        return None
    moving = [rank for rank, (low, high) in enumerate(reachable) if low < high]

    def without(lifted: Sequence[int]) -> tuple[float, list[int]]:
        """The share of the step that is saved where memory bounds none of these ranks, and which of them gain."""
        free = list(reachable)
        for rank in lifted:
            low, high = reachable[rank]
            free[rank] = low, max(high, min(bounds_of(job, seats[rank].group)[1], job.global_batch))
        batches = waterfill(lines, job.global_batch, free, multiples_of_seats(seats))
        # Who keeps its batch is no part of the comparison: nothing is known of its time.
        seconds = iteration_seconds([lines[rank] for rank in moving], [batches[rank] for rank in moving])
        return 1 - seconds / best.present_seconds, [rank for rank in lifted if batches[rank] > reachable[rank][1]]

    learning = [rank for rank in every if _can_be_halved(seats[rank])]
    saving, held = without(learning) if learning else (0.0, [])
    if held and saving > best.least_saving:
        names = listed([seats[rank].name for rank in held])
        more = f"; what half a batch takes is measured in two passes of {names}"
        at_once = tuple(seat.batch - seat.batch // 2 if rank in held else 0 for rank, seat in enumerate(seats))
        return HeldByMemory(saving, _in_words(seats, held, saving) + more, at_once)
    saving, held = without(every)
    if not held or saving <= best.least_saving:
        return None
    return HeldByMemory(saving, _in_words(seats, held, saving), ())


def _in_words(seats: Sequence[Seat], held: Sequence[int], saving: float) -> str:
    fullest = seats[max(held, key=lambda rank: _used(seats[rank]))]
    use = fullest.memory.memory_use
    peak = use.high_mib if use.high_batch == fullest.batch else use.low_mib
    return (
        f"memory holds the batches of {listed([seats[rank].name for rank in held])} back ({fullest.name} takes {peak} "
        f"of {use.limit_mib} MiB at {fullest.batch} samples); without that the best split would save {percent(saving)} "
        "of the step"
    )


def _is_bounded(seat: Seat) -> bool:
    use = seat.memory.memory_use
    return not seat.held and seat.batch > 0 and use.limit_mib > 0 and use.low_batch > 0


def _used(seat: Seat) -> float:
    use = seat.memory.memory_use
    return max(use.low_mib, use.high_mib) / use.limit_mib


def _can_be_halved(seat: Seat) -> bool:
    use = seat.memory.memory_use
    most = batch_limit(use)
    if most is not None and most < seat.batch:
        return False  # it does its part in several passes already
    if max(use.low_mib, use.high_mib) * 100 > use.limit_mib * USABLE_PERCENT:
        return False  # whatever its slope is, it may not take more
    return seat.batch // 2 >= max(seat.memory.least_batch, 1) and use.low_batch > NEAR * seat.batch
