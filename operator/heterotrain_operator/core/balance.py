"""Whether the workers finish together, as far as the plan in force was measured."""

from __future__ import annotations

from heterotrain.contract import Plan
from heterotrain_operator.core.batching.words import duration, percent
from heterotrain_operator.core.state import Memory

BALANCE_TOLERANCE = 0.10
"""Own time of the slowest above the mean, relative, up to which the job counts as balanced."""


def balance(plan: Plan, memory: Memory) -> tuple[bool | None, str]:
    """Whether the slowest own time is near the mean (None: not measured), and in which words."""
    if memory.plan_version != plan.version or len(memory.workers) != len(plan.members):
        return None, f"no own time is measured under plan {plan.version} yet"
    measured = [
        (known.mean_seconds, member.name)
        for member, known in zip(plan.members, memory.workers, strict=True)
        if member.batch_size > 0 and known.estimate_steps > 0
    ]
    if not measured:
        return None, f"no own time is measured under plan {plan.version} yet"
    mean = sum(seconds for seconds, _ in measured) / len(measured)
    seconds, name = max(measured)
    excess = seconds / mean - 1
    return (
        excess <= BALANCE_TOLERANCE,
        f"the slowest, {name}, takes {duration(seconds)}, {percent(excess)} above the mean of {duration(mean)}",
    )
