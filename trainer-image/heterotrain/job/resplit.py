"""The plan of those that are left: the global batch stays what it is, and each has its part of what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heterotrain.contract import Member, Plan


def resplit(plan: Plan, members: Sequence[Member]) -> Plan:
    """The plan with these members instead, each with a batch as many times as large as it was, in whole samples.

    Members whose batches are all 0 get equal ones. A member computes no more samples at once than before: the rest
    takes further passes. Who has ended is the operator's word alone, and not handed on.
    """
    if tuple(members) == plan.members:
        return plan
    total = plan.global_batch_size
    weights = [member.batch_size for member in members]
    if not any(weights):
        weights = [1] * len(members)
    shares = zip(members, _proportional(weights, total), strict=True)
    return replace(plan, members=tuple(_with_batch(*each) for each in shares), evicted=())


def _with_batch(member: Member, batch_size: int) -> Member:
    at_once = member.micro_batch_size or member.batch_size
    passes = 0 < at_once < batch_size
    return replace(member, batch_size=batch_size, micro_batch_size=at_once if passes else 0)


def _proportional(weights: Sequence[int], total: int) -> list[int]:
    """Whole numbers of this sum, by the method of largest remainders; of equal remainders the first."""
    whole = sum(weights)
    parts = [weight * total // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda place: -(weights[place] * total % whole))
    for place in by_remainder[: total - sum(parts)]:
        parts[place] += 1
    return parts
