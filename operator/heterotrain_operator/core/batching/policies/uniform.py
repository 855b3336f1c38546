"""Equal batches: the baseline that every other policy is compared with."""

from __future__ import annotations

from collections.abc import Sequence

from heterotrain_operator.core.batching.policy import Policy, Proposal, Seat, Split, multiples_of_seats
from heterotrain_operator.core.memory.batching import Batching
from heterotrain_operator.core.model import Job
from heterotrain_operator.core.split.allocation import split_proportionally


def first(job: Job, seats: Sequence[Seat]) -> Split:
    """Equal shares of the global batch, as far as bounds allow. Raises ValueError if they cannot hold it."""
    batches = split_proportionally(
        [1.0] * len(seats), job.global_batch, [seat.bounds for seat in seats], multiples_of_seats(seats)
    )
    return Split(batches, f"equal shares of {job.global_batch} samples")


def propose(job: Job, seats: Sequence[Seat], batching: Batching) -> Proposal:
    """Equal shares, whatever the workers' times."""
    split = first(job, seats)
    return Proposal(split.batches, f"Uniform: {split.reason}")


POLICY = Policy("equal batches for all workers", propose, first)
