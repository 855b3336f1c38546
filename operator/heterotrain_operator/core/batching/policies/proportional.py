"""Proportional control on measured own times: the papers' dynamic batching, in an order that keeps its
bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from heterotrain_operator.core.batching.policy import Policy, Promise, Proposal, Seat, multiples_of_seats
from heterotrain_operator.core.batching.words import moved, percent, slowest
from heterotrain_operator.core.model import Job
from heterotrain_operator.core.prediction.noise import Noise
from heterotrain_operator.core.remembered.batching import Batching
from heterotrain_operator.core.split.allocation import rounded_within, split_proportionally
from heterotrain_operator.core.split.multiples import Bounds, infeasible

LEAST_SAVING = 1e-6
"""Saving that every move is said to have at least, so that doubt can hold any of them back."""


def propose(job: Job, seats: Sequence[Seat], batching: Batching) -> Proposal:
    """`b_k <- b_k * mean(t) / t_k` on smoothed own times, then the dead-band, and the global batch within bounds.

    The dead-band applies to the change as bounds clip it, less what noise could explain of it; and once more to the
    change that would be published, since rescaling can undo nearly all of it. What is rescaled is not clipped before:
    one worker with a very long time would raise all others beyond their bounds, and make unequal ones equal. A worker
    at 0 samples, which the rule could never raise again, is given one if its bounds allow.

    Each move promises a step no slower than the one before it, for the rule alone diverges where own time grows faster
    than the square of the batch. So where a worker's time is seen to grow faster than its batch, it changes by as much
    less. Source: Taming III-C (T2 to T4), OmniLearn Alg. 1 and eq. 8; the order of the rules and the guards are our
    own. The papers' learned bounds (T5) are left out, see docs/life-of-a-decision.md.
    """
    estimates = [seat.estimate for seat in seats if seat.estimate is not None]
    if not estimates:
        return Proposal(None, "Proportional keeps the batches: nothing is measured")
    mean = math.fsum(estimate.mean_seconds for estimate in estimates) / len(estimates)
    noise = Noise(estimates)
    multiples = multiples_of_seats(seats)
    bounds = _bounds(job, [seat.bounds for seat in seats], multiples)
    wanted: list[float] = []
    surest = -math.inf
    for seat, (low, high) in zip(seats, bounds, strict=True):
        if seat.estimate is None or seat.batch == 0:
            wanted.append(float(min(max(low, 1), high)))
            continue
        ratio = mean / seat.estimate.mean_seconds
        wanted.append(seat.batch * ratio ** (1 / max(_elasticity(seat), 1.0)))
        change = abs(min(max(seat.batch * ratio, low), high) - seat.batch) / seat.batch
        surest = max(surest, change - noise.explains(seat.estimate))
    kept = f"Proportional keeps the batches: {slowest(seats)}"
    raised_from_none = any(seat.batch == 0 < want for seat, want in zip(seats, wanted, strict=True))
    if surest <= job.dead_band and not raised_from_none:
        why = f"no change exceeds the dead-band of {percent(job.dead_band)} by more than noise"
        return Proposal(None, f"{kept}; {why}")
    if POLICY.keeps_sum(job):
        batches = split_proportionally(wanted, job.global_batch, bounds, multiples)
    else:
        batches = rounded_within(wanted, bounds, multiples)
    published = max(abs(new - seat.batch) / max(seat.batch, 1) for seat, new in zip(seats, batches, strict=True))
    if published <= job.dead_band:
        why = f"within bounds no batch would change by more than the dead-band of {percent(job.dead_band)}"
        return Proposal(None, f"{kept}; {why}")
    saving = _saving(seats, batches)
    as_many = sum(batches) == sum(seat.batch for seat in seats)
    promise = Promise(max(estimate.mean_seconds for estimate in estimates)) if as_many else None
    return Proposal(batches, moved(seats, batches, saving), saving=max(saving, LEAST_SAVING), promise=promise)


def _elasticity(seat: Seat) -> float:
    """By how many per cent own time grows where the batch grows by one; 1 where that is not known yet."""
    prediction = seat.prediction
    if prediction is None or not prediction.is_sure:
        return 1.0
    seconds = prediction.line.at(seat.batch)
    return prediction.line.seconds_per_sample * seat.batch / seconds if seconds > 0 else 1.0


def _bounds(job: Job, users: list[Bounds], multiples: Sequence[int]) -> list[Bounds]:
    """The user's bounds, raised to at least one sample, unless infeasible then."""
    raised = [(max(low, min(1, high)), high) for low, high in users]
    if POLICY.keeps_sum(job) and infeasible(job.global_batch, raised, multiples) is not None:
        return users
    return raised


def _saving(seats: Sequence[Seat], batches: Sequence[int]) -> float:
    """Of the step's own time, if times were proportional to batches."""
    present = [(seat.estimate.mean_seconds, seat.batch) for seat in seats if seat.estimate is not None]
    pairs = [
        (seat.estimate.mean_seconds / seat.batch) * new
        for seat, new in zip(seats, batches, strict=True)
        if seat.estimate is not None and seat.batch > 0
    ]
    return 1 - max(pairs, default=0.0) / max((seconds for seconds, _ in present), default=1.0)


POLICY = Policy("proportional control on own times (Taming, OmniLearn)", propose, rescales_steps=True)
