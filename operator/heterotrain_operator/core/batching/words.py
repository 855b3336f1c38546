"""Decisions in words and numbers, for events, conditions and the live table, and whether workers finish together."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from heterotrain.contract import Plan
from heterotrain_operator.core.batching.policy import Seat
from heterotrain_operator.core.facts import listed
from heterotrain_operator.core.state import Remembered

LISTED = 16
"""Batches that a message lists before it breaks off."""


def duration(seconds: float) -> str:
    """A short text with three significant digits: "212 ms", "1.25 s"."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:.0f} s"


def percent(fraction: float, digits: int = 0) -> str:
    """A fraction as "41 %"."""
    return f"{100 * fraction:.{digits}f} %"


def slowest(seats: Sequence[Seat]) -> str:
    """Who holds the others up: "cpu-2 takes 212 ms at 64 samples, the median is 98 ms"."""
    measured = [(seat.estimate.mean_seconds, seat) for seat in seats if seat.estimate is not None and seat.batch > 0]
    if not measured:
        return "no worker was measured yet"
    seconds, seat = max(measured, key=lambda pair: pair[0])
    takes = "takes, when it is slow," if seat.as_slow else "takes"
    text = f"{seat.name} {takes} {duration(seconds)} at {seat.batch} samples"
    if len(measured) > 1:
        text += f", the median is {duration(median(value for value, _ in measured))}"
    return text


def moved(seats: Sequence[Seat], batches: Sequence[int], saving: float | None) -> str:
    """A rebalancing: who was slow, how many samples move and to whom, and what that saves."""
    gains = [(new - seat.batch, seat.name) for seat, new in zip(seats, batches, strict=True) if new > seat.batch]
    given = sum(max(seat.batch - new, 0) for seat, new in zip(seats, batches, strict=True))
    if gains and given:
        receiver = max(gains, key=lambda pair: pair[0])[1]
        others = f" and {len(gains) - 1} more" if len(gains) > 1 else ""
        action = f"moving {given} samples to {receiver}{others}"
    else:
        change = sum(batches) - sum(seat.batch for seat in seats)
        action = f"{'adding' if change >= 0 else 'removing'} {abs(change)} samples per step"
    if saving is not None and saving > 0:
        action += f" saves {percent(saving)} of the step"
    return f"{slowest(seats)}; {action} (batches {sizes(batches)})"


def sizes(batches: Sequence[int]) -> str:
    """A list of batches that breaks off where nobody would read on."""
    return ", ".join(str(batch) for batch in batches[:LISTED]) + (", ..." if len(batches) > LISTED else "")


BALANCE_TOLERANCE = 0.10
"""Own time of the slowest above the mean, relative, up to which the job counts as balanced."""


def balance(plan: Plan, memory: Remembered) -> tuple[bool | None, str, float | None]:
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
