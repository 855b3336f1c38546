"""What changes of the members cost: for how long the workers stood still, and how many changes of each kind there were.

A change is counted once all members report that they have gone over. Steps that were committed meanwhile are no
standstill, so what is left of the time beside them is; the estimate is as coarse as a step and the looks are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from heterotrain_operator.core.facts import Facts
from heterotrain_operator.core.lifecycle.following import stayers
from heterotrain_operator.core.lifecycle.membership import Change
from heterotrain_operator.core.memory.members import Transitions
from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.core.state import Memory

LEAST_SECONDS = 0.05
"""A shorter standstill is within what the estimate errs by."""

GREATEST_SECONDS = 600.0
"""A change that took longer waited for something else, and says little about the next one."""

NEWEST_WEIGHT = 0.5
"""Of the newest change in the moving average."""


def begun(facts: Facts, memory: Memory, change: Change, now: float) -> Memory:
    """The memory once a plan with other members was published."""
    kind = "swap" if change.joined and change.left else "join" if change.joined else "leave"
    if change.returned and not change.joined and len(change.left) == len(change.returned):
        kind = ""  # those that train are the same as before
    read = [worker.metrics for worker in stayers(facts) if worker.metrics is not None]
    transitions = replace(
        memory.transitions,
        switching=kind,
        switching_at=now,
        switching_step=max((metrics.step for metrics in read), default=-1),
        switching_seconds=_step_seconds(read) or memory.progress.slow_step_seconds,
    )
    return replace(memory, transitions=transitions)


def ended(facts: Facts, memory: Memory, now: float) -> Memory:
    """The memory after a look: a change that all have carried out is counted, and its standstill remembered."""
    if not memory.transitions.switching or facts.plan is None:
        return memory
    members = [worker.metrics for worker in facts.members if worker is not None and worker.metrics is not None]
    generations = [metrics.generation for metrics in members]
    if len(members) < len(facts.members) or min(generations) < facts.plan.generation:
        return memory
    step = max(metrics.step for metrics in members)
    return replace(memory, transitions=_counted(memory.transitions, step, now))


def _counted(before: Transitions, step: int, now: float) -> Transitions:
    """With the change that was under way, which ended by now, when so many steps (`step`) were committed."""
    steps = step - before.switching_step
    begun_at = before.switching_at if before.switching_at is not None else now
    after = before.counted()
    if before.switching_step < 0 or before.switching_seconds <= 0 or steps < 0:
        return after
    still = max(now - begun_at - steps * before.switching_seconds, LEAST_SECONDS)
    if still > GREATEST_SECONDS:
        return after
    known = before.transition_seconds or still
    mean = known + NEWEST_WEIGHT * (still - known)
    return replace(after, transition_seconds=mean, idle_seconds=before.idle_seconds + still)


def _step_seconds(read: Sequence[WorkerMetrics]) -> float:
    """A whole step under the plan before, as the members say; 0 if nobody's counters show it."""
    whole = [(each.own_seconds + each.wait_seconds) / each.steps for each in read if 1 <= each.steps < math.inf]
    sound = [seconds for seconds in whole if 0 < seconds < math.inf]
    return max(sound, default=0.0)
