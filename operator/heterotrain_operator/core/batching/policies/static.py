"""Open-loop batches from what the manifest says of the workers, before anything is measured."""

from __future__ import annotations

from collections.abc import Sequence

from heterotrain_operator.core.batching.policies import uniform
from heterotrain_operator.core.batching.policy import Policy, Proposal, Seat, Split, multiples_of_seats
from heterotrain_operator.core.memory.batching import Batching
from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.core.split.allocation import split_proportionally


def first(job: Job, seats: Sequence[Seat]) -> Split:
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
        split = uniform.first(job, seats)
        return Split(split.batches, f"{split.reason}, since groups {', '.join(unknown)} state no {field}")
    known = [weight for weight in weights if weight is not None]
    batches = split_proportionally(known, job.global_batch, [seat.bounds for seat in seats], multiples_of_seats(seats))
    return Split(batches, f"{job.global_batch} samples shared by {field}")


def propose(job: Job, seats: Sequence[Seat], batching: Batching) -> Proposal:
    """The same shares again: nothing measured changes them."""
    split = first(job, seats)
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


POLICY = Policy("batches by CPU limit or flops, fixed from the start", propose, first)
