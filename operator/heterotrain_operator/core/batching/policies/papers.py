"""The papers' dynamic batching as it is printed, for comparison: without caution against noise and without rollback.

Sources: Tyagi and Sharma, "Taming Resource Heterogeneity in Distributed ML Training with Dynamic Batching" (III-C and
III-C1), rescaled to the global batch as in Tyagi and Sharma, "OmniLearn: A Framework for Distributed Deep Learning over
Heterogeneous Clusters" (Alg. 1 and eq. 8; dead-band and bounds of its section on the implementation). A changed CPU
limit is not fed forward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from heterotrain_operator.core.batching.policy import Policy, Proposal, Seat, multiples_of_seats
from heterotrain_operator.core.batching.words import moved, percent, slowest
from heterotrain_operator.core.model import Job
from heterotrain_operator.core.prediction.throughput_cap import capped
from heterotrain_operator.core.remembered.batching import Batching
from heterotrain_operator.core.remembered_worker import RememberedWorker
from heterotrain_operator.core.split.allocation import split_proportionally
from heterotrain_operator.core.split.multiples import Bounds


class Control(NamedTuple):
    """Batches by the papers' rule, None within the dead-band; what to remember of each worker, and the greatest
    relative change.
    """

    batches: tuple[int, ...] | None
    memories: tuple[RememberedWorker, ...]
    change: float


def controlled(job: Job, seats: Sequence[Seat], papers_bounds: Sequence[Bounds], dead_band: float) -> Control:
    """`b_k <- b_k * mean(t) / t_k`, clipped to the papers' bounds, within the dead-band not at all; then rescaled to
    the global batch, by which batches may leave those bounds again, but never the job's.

    `t_k` is the moving average over the iterations since the last adjustment, at the job's weight. Once a raise has
    lowered a worker's throughput, its batch before that bounds it for good.
    """
    seconds = [_smoothed(seat) for seat in seats]
    measured = [each for each in seconds if each is not None]
    mean = math.fsum(measured) / max(len(measured), 1)
    wanted: list[float] = []
    memories: list[RememberedWorker] = []
    change = 0.0
    for seat, own, (low, high) in zip(seats, seconds, papers_bounds, strict=True):
        known = seat.memory.throughput_cap
        if own is None or seat.batch <= 0:
            wanted.append(float(seat.batch))
            memories.append(seat.memory)
            continue
        cap = capped(known, seat.batch, own)
        most = min(high, cap.cap) if cap.cap > 0 else high
        wanted.append(min(max(seat.batch * mean / own, low), max(most, low)))
        memories.append(seat.memory if cap is known else seat.memory._replace(throughput_cap=cap))
        change = max(change, abs(wanted[-1] - seat.batch) / seat.batch)
    if change <= dead_band:
        return Control(None, tuple(memories), change)
    bounds = [seat.bounds for seat in seats]
    batches = split_proportionally(wanted, job.global_batch, bounds, multiples_of_seats(seats))
    return Control(batches, tuple(memories), change)


def propose_proportional(job: Job, seats: Sequence[Seat], batching: Batching) -> Proposal:
    """Control within the job's bounds and dead-band, whose default is the papers' 0.05."""
    batches, memories, change = controlled(job, seats, [seat.bounds for seat in seats], job.dead_band)
    if batches is None:
        why = f"a change of {percent(change, 1)} is within the dead-band of {percent(job.dead_band)}"
        return Proposal(None, f"PapersProportional keeps the batches: {slowest(seats)}; {why}", memories)
    return Proposal(batches, moved(seats, batches, None), memories)


def _smoothed(seat: Seat) -> float | None:
    """Own seconds of a step: the worker's moving average, or the mean if it exports none."""
    if seat.smoothed_seconds is not None and 0 < seat.smoothed_seconds < math.inf:
        return seat.smoothed_seconds
    return None if seat.estimate is None else seat.estimate.mean_seconds


PROPORTIONAL = Policy(
    "proportional control as in Taming, T2 to T5 to the letter",
    propose_proportional,
    internal=True,
    whole_intervals=True,
    watches_throughput=True,
)


DEAD_BAND = 0.10
LEAST_BATCH, GREATEST_BATCH = 4, 96
"""The paper's, for 32 samples per worker."""


def propose_omnilearn(job: Job, seats: Sequence[Seat], batching: Batching) -> Proposal:
    """Control once in each epoch, when the next one has begun."""
    epoch = 1 + max(seat.epoch for seat in seats)  # 0 stands for a job that was not looked at yet
    looked = max(seat.memory.noted for seat in seats)
    if epoch <= looked:
        return Proposal(None, f"OmniLearn keeps the batches until epoch {looked} ends: {slowest(seats)}")
    if looked == 0:
        memories = tuple(seat.memory._replace(noted=epoch) for seat in seats)
        return Proposal(None, f"OmniLearn keeps the batches until epoch {epoch} ends: {slowest(seats)}", memories)
    control = controlled(job, seats, [(LEAST_BATCH, GREATEST_BATCH)] * len(seats), DEAD_BAND)
    memories = tuple(memory._replace(noted=epoch) for memory in control.memories)
    if control.batches is None:
        why = f"a change of {percent(control.change, 1)} is within the dead-band of {percent(DEAD_BAND)}"
        return Proposal(None, f"OmniLearn keeps the batches: {slowest(seats)}; {why}", memories)
    return Proposal(control.batches, moved(seats, control.batches, None), memories)


OMNILEARN = Policy(
    "OmniLearn's Alg. 1 and eq. 8, at boundaries of epochs",
    propose_omnilearn,
    internal=True,
    whole_intervals=True,
    watches_throughput=True,
)
