"""Batches that are given from the start: equal ones, with which every other policy is compared, ones in proportion to
what the manifest says of the workers, and a profile.

`Profile`, for `heterotrain run`, is five plans that show each worker's own time at four and more batch sizes, all
workers loaded. The sums of the scaled plans differ from the global batch on purpose: scaling all batches alike keeps
every worker busy for about as long as the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from heterotrain_operator.core.batching.policy import Policy, Proposal, Seat, Split, multiples_of_seats
from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.core.remembered.batching import Batching
from heterotrain_operator.core.remembered_worker import RememberedWorker
from heterotrain_operator.core.split.allocation import split_proportionally
from heterotrain_operator.core.split.multiples import nearest_multiple


def equal_shares(job: Job, seats: Sequence[Seat]) -> Split:
    """Equal shares of the global batch, as far as bounds allow. Raises ValueError if they cannot hold it."""
    batches = split_proportionally(
        [1.0] * len(seats), job.global_batch, [seat.bounds for seat in seats], multiples_of_seats(seats)
    )
    return Split(batches, f"equal shares of {job.global_batch} samples")


def propose_equal(job: Job, seats: Sequence[Seat], batching: Batching) -> Proposal:
    """Equal shares, whatever the workers' times."""
    split = equal_shares(job, seats)
    return Proposal(split.batches, f"Uniform: {split.reason}")


UNIFORM = Policy("equal batches for all workers", propose_equal, equal_shares)


def static_shares(job: Job, seats: Sequence[Seat]) -> Split:
    """`b_k = B * X_k / sum(X)`, X being CPU cores, or floating-point operations per second where devices are
    mixed.

    X is the group's declared limit, not the worker's present one: static means that it does not follow. Where
    X of any worker is unknown the shares are equal, and the remark says so. Raises ValueError if bounds
    cannot hold the batch. Source: Taming III-B (with the factor K that its formula lacks), OmniLearn III-A.
    """
    groups = [seat.group for seat in seats]
    field, weights = _capacities(groups)
    unknown = sorted({group.name for group, weight in zip(groups, weights, strict=True) if weight is None})
    if unknown:
        split = equal_shares(job, seats)
        return Split(split.batches, f"{split.reason}, since groups {', '.join(unknown)} state no {field}")
    known = [weight for weight in weights if weight is not None]
    batches = split_proportionally(known, job.global_batch, [seat.bounds for seat in seats], multiples_of_seats(seats))
    return Split(batches, f"{job.global_batch} samples shared by {field}")


def propose_static(job: Job, seats: Sequence[Seat], batching: Batching) -> Proposal:
    """The same shares again: nothing measured changes them."""
    split = static_shares(job, seats)
    return Proposal(split.batches, f"Static: {split.reason}")


def _capacities(groups: Sequence[Group]) -> tuple[str, list[float | None]]:
    by_cores = [_positive(group.cpu_limit) for group in groups]
    by_flops = [_positive(group.flops) for group in groups]
    on_cpus_only = all(group.device == "cpu" for group in groups)
    if on_cpus_only and (None not in by_cores or None in by_flops):
        return "CPU limit", by_cores
    return "flops", by_flops


def _positive(value: float | None) -> float | None:
    return value if value is not None and 0 < value < float("inf") else None


STATIC = Policy("batches by CPU limit or flops, fixed from the start", propose_static, static_shares)


SCALES = (0.6, 1.3, 0.8)
"""Of the second plan's batches, in the plans after it."""

PROFILE_PLANS = 2 + len(SCALES)
"""Plans until the profile is complete: equal, proportional to speed, and the scaled ones."""


def propose_profile(job: Job, seats: Sequence[Seat], batching: Batching) -> Proposal:
    """The next plan of the profile, after `batching.stage` plans beyond the first; nothing once all were run."""
    stage = batching.stage
    if stage >= PROFILE_PLANS - 1:
        return Proposal(None, f"Profile is complete after {PROFILE_PLANS} plans")
    bounds = [seat.bounds for seat in seats]
    memories: tuple[RememberedWorker, ...] = tuple(seat.memory for seat in seats)
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
        batches = equal_shares(job, seats).batches
    reason = f"Profile, plan {stage + 2} of {PROFILE_PLANS}: {scale:g} times the batches of plan 2"
    return Proposal(batches, reason, memories, stage=stage + 1)


PROFILE = Policy(
    "own times at several batch sizes",
    propose_profile,
    equal_shares,
    keeps_global_batch=False,
    internal=True,
    whole_intervals=True,
)
