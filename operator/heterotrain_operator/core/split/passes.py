"""Several passes where one does not fit: what a worker holds at once bounds a pass, not its part of the step.

The gradients of passes add up to those of the whole, so the model is the same, at the price of time. Hence only workers
that together cannot hold the global batch at once get more than they hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heterotrain.contract import Member, Plan
from heterotrain_operator.core.split.multiples import Bounds


def in_passes(total: int, at_once: Sequence[Bounds]) -> list[Bounds]:
    """Bounds of whole parts of a step of `total` samples, of workers that hold `at_once` at once.

    The greatest are multiplied with the fewest passes in which the workers hold `total` together.
    """
    most = sum(high for _, high in at_once)
    passes = -(-total // most) if most > 0 else 1
    if passes <= 1:
        return list(at_once)
    return [(low, max(low, min(total, high * passes))) for low, high in at_once]


def with_passes(plan: Plan, at_once: Sequence[Bounds]) -> Plan:
    """The plan that names what members hold at once, where that is less than their batch."""
    return replace(
        plan,
        members=tuple(
            replace(member, micro_batch_size=most if 0 < most < member.batch_size else 0)
            for member, (_, most) in zip(plan.members, at_once, strict=True)
        ),
    )


def at_once(member: Member) -> int:
    """Samples that a member computes at once under its plan, at most."""
    return min(member.batch_size, member.micro_batch_size or member.batch_size)
