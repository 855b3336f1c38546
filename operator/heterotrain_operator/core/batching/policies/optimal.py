"""Affine water-filling: the batches that make all own times equal under a fitted model, in two or three
plans.

The first plan (the job's `initial`) and the second (proportional, since one batch size tells no alpha) are the probe;
from then on the fit is known.

Where memory alone holds batches back, more is found out without any risk. One batch tells no slope of memory, and a
worker that is nearly full at its first batch may not even try one sample more. Where all are, nobody would ever see a
second batch. But half of a batch can be tried at any time: the worker computes the same part of the step in two passes,
its peak is that of half a batch, and from then on its line is known. It costs the fixed part of a step once more, to
workers that wait for the slowest in any case.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple

from heterotrain_operator.core.batching.likeness import noise_of
from heterotrain_operator.core.batching.policy import Policy, Promise, Proposal, Seat, multiples_of_seats
from heterotrain_operator.core.batching.retries import due_retry
from heterotrain_operator.core.batching.words import moved, percent, sizes, slowest
from heterotrain_operator.core.facts import bounds_of, listed
from heterotrain_operator.core.model import Job
from heterotrain_operator.core.prediction.memory_model import USABLE_PERCENT, batch_limit
from heterotrain_operator.core.prediction.noise import Noise
from heterotrain_operator.core.remembered.batching import Batching
from heterotrain_operator.core.split.allocation import Line, iteration_seconds, waterfill
from heterotrain_operator.core.split.expected import best_caution, expected_step
from heterotrain_operator.core.split.multiples import Bounds, infeasible, last_multiple, next_multiple

LEAST_SAVING = 0.02
"""Saving of the iteration's own time below which no move is worth its noise. See docs/life-of-a-decision.md."""

LEAST_SURE_SAVING = 0.05
"""The same where no noise could turn the move into a loss: more than rounding and a bound that wavers would move."""

EXPECTED_CAUTION = 3.0
"""Times what chance makes a split seem to save that it must save, where workers' noise differs. Tuned on 3 to 32
workers with variations of 2 to 30 %, independent and autocorrelated; 1 moved more often and saved as much."""

GREATEST_GROWTH = 4
"""Times that a batch may grow in one plan where nothing is known of memory, which may end beyond the sizes seen."""

LEAST_PART_KEPT = 0.7
"""Of the batch in proportion to its speed, what one plan leaves a worker at least whose own time is not sure. Under
noise that lasts a fit may say that fewer samples save next to nothing: workers that had become slow were left one
sample for intervals on end, where half were right. Tried: 0.5 and 0.7; and for all moves a lower share of what does not
depend on the batch, which followed drifts later."""

MOST_RAISED = 1.5
"""Times the batch in proportion to its speed that a split for noise gives a worker at most. Of hundreds of workers the
lines of a few say that more samples cost next to nothing, and these got three times as many and made the step longer
by a half. Tried: 1.5 and 2, which served 512 workers under recorded noise less. Workers of 2 to 30 % of noise need no
more than 1.4."""

UNSURE = 0.03
"""Relative error of an own time from which on it is not sure. Tried: 0.02 to 0.05. The error of the fit itself tells
less: it was a third of what the fit was off by."""


def propose(job: Job, seats: Sequence[Seat], batching: Batching) -> Proposal:
    """Move to the water-filled split if that saves clearly more than nothing, and more than noise could
    explain.

    A worker of which nothing is known keeps its batch, and what it takes is left out. See docs/life-of-a-decision.md.
    """
    multiples = multiples_of_seats(seats)
    lines: list[Line] = []
    predicted: list[bool] = []
    probing = False
    bounds: list[Bounds] = []
    estimates = [seat.estimate for seat in seats if seat.estimate is not None]
    even_seconds = _even_seconds(seats)
    for seat in seats:
        prediction = None if seat.held else seat.prediction
        predicted.append(prediction is not None)
        if prediction is None:
            lines.append(Line(0.0, 1.0))
            bounds.append((seat.batch, seat.batch))
        else:
            lines.append(prediction.line)
            probing = probing or not prediction.is_sure
            low, high = _reachable(seat, job.global_batch / len(seats))
            bounds.append((_least_kept(seat, even_seconds, low, high), high))
    if infeasible(job.global_batch, bounds, multiples) is not None:
        bounds = [pair if pair[0] == pair[1] else seat.bounds for seat, pair in zip(seats, bounds, strict=True)]
    if not estimates or infeasible(job.global_batch, bounds, multiples) is not None:
        return Proposal(None, "Optimal keeps the batches: too few workers were measured to move samples")
    worst = max(estimates, key=lambda estimate: estimate.mean_seconds)
    variations, differ = noise_of([seat.memory for seat in seats])
    if differ:
        batches, seconds, saving = _least_expected(
            job,
            seats,
            lines,
            bounds,
            variations,
            caution_weight=batching.noise_caution_weight,
            even_seconds=even_seconds,
        )
        threshold, step = max(LEAST_SAVING, EXPECTED_CAUTION * _by_chance(seats, variations)), "expected step"
    else:
        batches = waterfill(lines, job.global_batch, bounds, multiples)
        seconds = iteration_seconds(list(compress(lines, predicted)), list(compress(batches, predicted)))
        saving, step = 1 - seconds / worst.mean_seconds, "step"
        noise = Noise(estimates)
        threshold = max(LEAST_SAVING, noise.explains(worst))
        if _is_sure(seats, lines, batches, seconds, noise):
            threshold = min(threshold, LEAST_SURE_SAVING)
    if saving <= threshold:
        best = BestSplit(batches, worst.mean_seconds, threshold)
        held = held_by_memory(job, seats, lines, bounds, best)
        if held is not None:
            why = f"Optimal keeps the batches: {slowest(seats)}; {held.reason}"
            return Proposal(None, why, at_once=held.at_once)
        again = _tried_again(job, seats, lines, bounds, worst.mean_seconds)
        if again is not None:
            return again
        likely = None
        if saving > LEAST_SAVING and not differ:
            promise = None if probing else Promise(seconds)
            likely = Proposal(batches, moved(seats, batches, saving), saving=saving, promise=promise)
        return Proposal(
            None,
            f"Optimal keeps the batches: {slowest(seats)}; the best split saves {percent(max(saving, 0.0), 1)} "
            f"of the {step}, which must exceed {percent(threshold, 1)} to repay a move beyond noise",
            likely=likely,
        )
    promise = None if probing and not differ else Promise(0.0 if probing else seconds, expected=differ)
    return Proposal(batches, moved(seats, batches, saving), saving=saving, promise=promise)


def _tried_again(
    job: Job, seats: Sequence[Seat], lines: Sequence[Line], bounds: Sequence[Bounds], present_seconds: float
) -> Proposal | None:
    """A few samples for a worker that has none, and whose retry is due; it promises nothing."""
    if all(seat.batch > 0 for seat in seats):
        return None
    known = [None if seat.prediction is None else line for seat, line in zip(seats, lines, strict=True)]
    due = due_retry(job, seats, known, present_seconds)
    if due is None:
        return None
    rank, samples, why = due
    multiples = multiples_of_seats(seats)
    pairs = [(samples, samples) if other == rank else pair for other, pair in enumerate(bounds)]
    if infeasible(job.global_batch, pairs, multiples) is not None:
        return None
    batches = waterfill(lines, job.global_batch, pairs, multiples)
    return Proposal(batches, f"{why} (batches {sizes(batches)})")


def _least_expected(
    job: Job,
    seats: Sequence[Seat],
    lines: Sequence[Line],
    bounds: Sequence[Bounds],
    variations: Sequence[float],
    *,
    caution_weight: float,
    even_seconds: float,
) -> tuple[tuple[int, ...], float, float]:
    """The split whose expected step is shortest, that step (seconds) and the share of the present one that it saves. In
    it steady workers take longer on average than those that take much longer now and then, as far as `caution_weight`
    (0 to 1) says; so far what it saves by that is believed, too.
    """
    slopes = [line.seconds_per_sample for line in lines]
    rates = [1 / slope if low < high and slope > 0 else 0.0 for slope, (low, high) in zip(slopes, bounds, strict=True)]
    caution = caution_weight * best_caution(rates, variations)
    bounds = [
        (low, _most_raised(seat, even_seconds, low, high)) for seat, (low, high) in zip(seats, bounds, strict=True)
    ]
    measured = [seat.estimate is not None or seat.batch == 0 for seat in seats]
    before = [0.0 if seat.estimate is None else seat.estimate.mean_seconds for seat in seats]
    present = expected_step(before, variations)

    def split(caution: float) -> tuple[tuple[int, ...], float, float]:
        held_back = [
            Line(fixed * (1 + caution * variation), slope * (1 + caution * variation))
            for (fixed, slope), variation in zip(lines, variations, strict=True)
        ]
        batches = waterfill(held_back, job.global_batch, bounds, multiples_of_seats(seats))
        after = [
            line.at(batch) if batch > 0 and counts else 0.0
            for line, batch, counts in zip(lines, batches, measured, strict=True)
        ]
        seconds = expected_step(after, variations)
        return batches, seconds, 1 - seconds / present

    batches, seconds, saving = split(caution)
    if caution_weight < 1:
        without_caution = min(max(split(0.0)[2], 0.0), saving)
        saving = without_caution + caution_weight * (saving - without_caution)
    return batches, seconds, saving


def _most_raised(seat: Seat, even_seconds: float, low: int, high: int) -> int:
    """The most samples that a split for noise gives a worker, where ones in proportion to speeds would take so long."""
    if seat.estimate is None or seat.batch == 0:
        return high
    part = MOST_RAISED * max(even_seconds / seat.estimate.mean_seconds, 1.0)
    return max(low, min(next_multiple(math.ceil(part * seat.batch), seat.group.multiple_of), high))


def _by_chance(seats: Sequence[Seat], variations: Sequence[float]) -> float:
    """What errors of the means make a split of the same workers seem to save.

    Around the best split the expected step is flat, over a width of about the variation: so errors count by their
    squares.
    """
    return max(
        seat.estimate.relative_error**2 / variation
        for seat, variation in zip(seats, variations, strict=True)
        if seat.estimate is not None
    )


def _is_sure(
    seats: Sequence[Seat], lines: Sequence[Line], batches: Sequence[int], seconds: float, noise: Noise
) -> bool:
    """Whether whoever gains samples stays below the `seconds` of the iteration, however much of it noise explains.

    So it is where bounds keep a worker from all the samples that it could take, those of memory mostly. Without bounds
    all end together, and an error of one is an error of the iteration.
    """
    return all(
        seat.estimate is not None and line.at(batch) * (1 + noise.explains(seat.estimate)) <= seconds
        for seat, line, batch in zip(seats, lines, batches, strict=True)
        if batch > seat.batch
    )


def _reachable(seat: Seat, uniform_share: float) -> Bounds:
    """The batches that one plan may reach: the bounds, with the fitted one of memory among them; without it, so much
    more as is no leap into the dark.
    """
    low, high = seat.bounds
    if seat.memory.memory_use.greatest_batch is not None:
        return low, high
    grown = max(GREATEST_GROWTH * seat.batch, round(uniform_share))
    tried = seat.memory.memory_use.greatest_growth
    if tried is not None:
        grown = min(grown, max(tried, seat.batch))
    return low, max(low, min(high, grown))


def _even_seconds(seats: Sequence[Seat]) -> float:
    """The time that all would take with the same samples in proportion to their speeds."""
    measured = [(seat.batch, seat.estimate.mean_seconds) for seat in seats if seat.estimate is not None]
    rate = sum([batch / seconds for batch, seconds in measured])
    return sum([batch for batch, _ in measured]) / rate if rate > 0 else math.inf


def _least_kept(seat: Seat, even_seconds: float, low: int, high: int) -> int:
    """The fewest samples that one plan leaves a worker, where samples in proportion to speeds would take so long."""
    if seat.estimate is None or seat.estimate.relative_error < UNSURE:
        return low
    part = LEAST_PART_KEPT * min(even_seconds / seat.estimate.mean_seconds, 1.0)
    return max(low, min(last_multiple(int(part * seat.batch), seat.group.multiple_of), high))


POLICY = Policy("affine water-filling on fitted own times", propose, weighs_noise=True)


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
