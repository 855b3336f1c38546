"""Five plans that show each worker's own time at four and more batch sizes, all workers loaded; for
`heterotrain run`.

The sums of the scaled plans differ from the global batch on purpose: scaling all batches alike keeps every
worker busy for about as long as the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from heterotrain_operator.core.batching.policies import uniform
from heterotrain_operator.core.batching.policy import Policy, Proposal, Seat, multiples_of_seats
from heterotrain_operator.core.memory.batching import Batching
from heterotrain_operator.core.model import Job
from heterotrain_operator.core.split.allocation import split_proportionally
from heterotrain_operator.core.split.multiples import nearest_multiple
from heterotrain_operator.core.worker_memory import WorkerMemory

SCALES = (0.6, 1.3, 0.8)
"""Of the second plan's batches, in the plans after it."""

PROFILE_PLANS = 2 + len(SCALES)
"""Plans until the profile is complete: equal, proportional to speed, and the scaled ones."""


def propose(job: Job, seats: Sequence[Seat], batching: Batching) -> Proposal:
    """The next plan of the profile, after `batching.stage` plans beyond the first; nothing once all were run."""
    stage = batching.stage
    if stage >= PROFILE_PLANS - 1:
        return Proposal(None, f"Profile is complete after {PROFILE_PLANS} plans")
    bounds = [seat.bounds for seat in seats]
    memories: tuple[WorkerMemory, ...] = tuple(seat.memory for seat in seats)
    if stage == 0:
        speeds = [seat.batch / seat.estimate.mean_seconds if seat.estimate is not None else 0.0 for seat in seats]
        batches = split_proportionally(speeds, job.global_batch, bounds, multiples_of_seats(seats))
        memories = tuple(known._replace(noted=batch) for known, batch in zip(memories, batches, strict=True))
        if batches != tuple(seat.batch for seat in seats):
            reason = f"Profile, plan 2 of {PROFILE_PLANS}: batches proportional to measured speed"
            return Proposal(batches, reason, memories, stage=1)
        stage = 1  # equal workers: the first plan is the second, too
    scale = SCALES[stage - 1]
    batches = tuple(
        min(max(nearest_multiple(scale * known.noted, seat.group.multiple_of), low), high)
        for seat, known, (low, high) in zip(seats, memories, bounds, strict=True)
    )
    if sum(batches) < 1:
        batches = uniform.first(job, seats).batches
    reason = f"Profile, plan {stage + 2} of {PROFILE_PLANS}: {scale:g} times the batches of plan 2"
    return Proposal(batches, reason, memories, stage=stage + 1)


POLICY = Policy(
    "own times at several batch sizes",
    propose,
    uniform.first,
    keeps_global_batch=False,
    internal=True,
    whole_intervals=True,
)
