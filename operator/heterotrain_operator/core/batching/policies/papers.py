"""Taming's and OmniLearn's dynamic batching as it is printed: without caution against noise and without rollback.

Both go by the job's own fields. Taming (III-C, III-C1) is this policy as it stands; OmniLearn (Alg. 1 and eq. 8) is the
same with `applyAt: epoch`, a `deadBand` of 0.10 and batches of 4 to 96 samples (fig. 8: 12 to 96, and
`fixedGlobalBatch: false`). `examples/papers` has a manifest of each. A changed CPU limit is not fed forward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from heterotrain_operator.core.batching.policy import Policy, Proposal, Seat, multiples_of_seats
from heterotrain_operator.core.batching.words import moved, percent, slowest
from heterotrain_operator.core.model import Job
from heterotrain_operator.core.prediction.throughput_cap import capped
from heterotrain_operator.core.remembered.batching import Batching
from heterotrain_operator.core.split.allocation import rounded_within, split_proportionally
from heterotrain_operator.core.split.multiples import infeasible


def propose(job: Job, seats: Sequence[Seat], batching: Batching) -> Proposal:
    """`b_k <- b_k * mean(t) / t_k`, clipped to the job's bounds, within the dead-band not at all; then rescaled to the
    global batch, if that is fixed.

    `t_k` is the moving average of own time over the iterations since the last adjustment, at the job's weight. Once a
    raise has lowered a worker's throughput, its batch before that bounds it for good, also when batches are rescaled
    (OmniLearn's then leave their bounds), unless the workers could not hold the global batch so. With `applyAt: epoch`
    it decides once an epoch, when the next one has begun. Source: Taming III-C (T2 to T5), OmniLearn Alg. 1 and eq. 8.
    """
    keeps = f"PapersProportional keeps the batches: {slowest(seats)}"
    memories = [seat.memory for seat in seats]
    if job.apply_at == "epoch":
        epoch = 1 + max(seat.epoch for seat in seats)  # 0 stands for a job that was not looked at yet
        looked = max(known.noted for known in memories)
        memories = [known._replace(noted=epoch) for known in memories]
        if looked == 0 or epoch <= looked:
            return Proposal(None, f"{keeps}, until epoch {looked or epoch} ends", tuple(memories))
    seconds = [_smoothed(seat) for seat in seats]
    measured = [each for each in seconds if each is not None]
    mean = math.fsum(measured) / max(len(measured), 1)
    wanted: list[float] = []
    bounds, multiples = [seat.bounds for seat in seats], multiples_of_seats(seats)
    learned = list(bounds)
    change = 0.0
    for rank, (seat, own) in enumerate(zip(seats, seconds, strict=True)):
        if own is None or seat.batch <= 0:
            wanted.append(float(seat.batch))
            continue
        cap = capped(seat.memory.throughput_cap, seat.batch, own)
        memories[rank] = memories[rank]._replace(throughput_cap=cap)
        low, high = seat.bounds
        most = max(min(high, cap.cap), low) if cap.cap > 0 else high
        learned[rank] = low, most
        wanted.append(min(max(seat.batch * mean / own, low), most))
        change = max(change, abs(wanted[-1] - seat.batch) / seat.batch)
    if change <= job.dead_band:
        why = f"a change of {percent(change, 1)} is within the dead-band of {percent(job.dead_band)}"
        return Proposal(None, f"{keeps}; {why}", tuple(memories))
    if POLICY.keeps_sum(job):
        bounds = bounds if infeasible(job.global_batch, learned, multiples) else learned
        batches = split_proportionally(wanted, job.global_batch, bounds, multiples)
    else:
        batches = rounded_within(wanted, bounds, multiples)
    return Proposal(batches, moved(seats, batches, None), tuple(memories))


def _smoothed(seat: Seat) -> float | None:
    """Own seconds of a step: the worker's moving average, or the mean if it exports none."""
    if seat.smoothed_seconds is not None and 0 < seat.smoothed_seconds < math.inf:
        return seat.smoothed_seconds
    return None if seat.estimate is None else seat.estimate.mean_seconds


POLICY = Policy(
    "proportional control as in Taming and OmniLearn, T2 to T5 to the letter",
    propose,
    whole_intervals=True,
    watches_throughput=True,
    rescales_steps=True,
)
