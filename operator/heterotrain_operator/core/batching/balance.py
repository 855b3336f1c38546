"""Whether the workers finish together, as far as was measured under the active plan."""

from __future__ import annotations

from heterotrain.contract import Plan
from heterotrain_operator.core.batching.words import duration, percent
from heterotrain_operator.core.facts import listed
from heterotrain_operator.core.state import Memory

BALANCE_TOLERANCE = 0.10
"""Own time of the slowest above the mean, relative, up to which the job counts as balanced."""


def balance(plan: Plan, memory: Memory) -> tuple[bool | None, str, float | None]:
    """Whether the slowest own time is near the mean, in which words, and by what part of the mean it is above it.

    None unless all members that have samples are measured under this plan. This is the one place that says so: the
    condition, the status and the exported figure are of the same moment.
    """
    unmeasured = f"no own time is measured under plan {plan.version} yet"
    if memory.plan_version != plan.version or len(memory.workers) != len(plan.members):
        return None, unmeasured, None
    working = [
        (known.step_time, member.name)
        for member, known in zip(plan.members, memory.workers, strict=True)
        if member.batch_size > 0
    ]
    lacking = [name for known, name in working if not known.is_measured]
    if lacking or not working:
        some = len(lacking) < len(working)
        return (
            None,
            f"no own time of {listed(lacking)} is measured under plan {plan.version}" if some else unmeasured,
            None,
        )
    mean = sum([known.mean_seconds for known, _ in working]) / len(working)
    seconds, name = max([(known.mean_seconds, name) for known, name in working])
    excess = max(seconds / mean - 1, 0.0)
    return (
        excess <= BALANCE_TOLERANCE,
        f"the slowest, {name}, takes {duration(seconds)}, {percent(excess)} above the mean of {duration(mean)}",
        excess,
    )
