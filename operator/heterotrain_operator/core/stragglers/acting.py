"""Whether what a job wants to be done about stragglers is worth it: of each worker, for how many intervals in a row.

A single interval convinces nobody. Rebalancing needs no advice, since the policy does it by itself; with an action that
hastens it (`actions.py`) it only waits for less (`batching/patience.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heterotrain.contract import Plan
from heterotrain_operator.core.model import Job
from heterotrain_operator.core.state import Memory
from heterotrain_operator.core.stragglers.remedies import LEAST_GAIN
from heterotrain_operator.core.stragglers.verdict import Grounds, Outlooks, Verdict

ENOUGH_INTERVALS = 2
"""Intervals in a row after which it is done."""

MOST_COUNTED = 100
"""More intervals in a row say nothing more."""


def advised(job: Job, plan: Plan, memory: Memory, standing: Sequence[Verdict]) -> Memory:
    """The memory after an interval with these standing verdicts; its workers are the plan's members, by rank."""
    action = job.stragglers.action
    named = {verdict.worker for verdict in standing}
    others = {member.group for member in plan.members if member.name not in named}
    wanted = {
        verdict.worker
        for verdict in standing
        if is_worth(action, verdict) and (action != "Replace" or is_fault(verdict, verdict.group in others))
    }
    if not wanted and not any(known.evidence.advised for known in memory.workers):
        return memory
    workers = []
    for member, known in zip(plan.members, memory.workers, strict=True):
        count = min(known.evidence.advised + 1, MOST_COUNTED) if member.name in wanted else 0
        changed = count != known.evidence.advised
        workers.append(known.with_evidence(known.evidence._replace(advised=count)) if changed else known)
    return replace(memory, workers=tuple(workers))


def is_worth(action: str, verdict: Verdict) -> bool:
    """Whether the action is what helps this straggler's job, by the predictions."""
    if action == "Replace":
        return verdict.replacement_pays
    return action == "Remove" and verdict.outlooks is not None and gains_without(verdict.outlooks)


def is_fault(verdict: Verdict, has_healthy_peers: bool) -> bool:
    """Whether another worker of its group is likely faster. Of one that is only too slow at its least batch that is not
    known where its whole group is: machines of a group may be slow by design.
    """
    return verdict.grounds is not Grounds.LEAST_BATCH or has_healthy_peers


def gains_without(ahead: Outlooks) -> bool:
    """Whether the others are faster without the worker than with its batch balanced; they have the same global batch,
    so the throughput rises as the step gets shorter.
    """
    return ahead.removed is not None and ahead.removed < ahead.rebalanced * (1 - LEAST_GAIN)
