"""What a decision says worker by worker, beside what is done about the job: its state, its limits, what slows it.

None of it decides anything about the job; the ends of single pods rest on what was decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

from heterotrain.contract import Plan
from heterotrain_operator.core.facts import Facts, missing, stuck
from heterotrain_operator.core.lifecycle import replacing
from heterotrain_operator.core.lifecycle.following import leavers, replaced_in_silence
from heterotrain_operator.core.lifecycle.open_slots import awaited_keys
from heterotrain_operator.core.lifecycle.responses import is_elastic
from heterotrain_operator.core.model import FINAL_PHASES, Decision, Job, Seen, WorkerKey, WorkerSeen, WorkerState
from heterotrain_operator.core.prediction.memory_model import batch_limit
from heterotrain_operator.core.prediction.resource_use import name_of
from heterotrain_operator.core.scaling.look import blocked, seen_of
from heterotrain_operator.core.scaling.sizes import differences
from heterotrain_operator.core.state import Remembered
from heterotrain_operator.core.stragglers import watch as stragglers


def worker_report(job: Job, seen: Seen, facts: Facts, decided: Decision, memory: Remembered, *, now: float) -> Decision:
    """The same decision with what it says of each worker; `memory` is the one after it."""
    plan = decided.plan or seen.plan  # the one that is active after the decision
    members = facts.members if decided.plan is None else _members_of(decided.plan, facts)
    is_over = decided.phase in FINAL_PHASES
    standing = () if is_over else stragglers.verdicts(job, plan, members, memory)
    steered = decided.phase == "Running" and any(facts.members)
    return replace(
        decided,
        conditions=(
            *decided.conditions,
            *stragglers.condition(job, standing, steered=steered),
            *blocked(job, memory, now),
        ),
        short_grace=_short_grace(facts, memory, decided),
        force_delete=stuck(seen, now),
        batch_limits=_batch_limits(plan, memory),
        slowed_by=_slowed_by(plan, memory),
        worker_states=_worker_states(job, facts, memory, plan),
        stragglers=standing,
        replacing=tuple((each.replaces, replacing.newcomer_name(job, each)) for each in memory.remedies.replacing),
        resized=tuple((group, delta) for group, delta in differences(memory.sizes).items() if delta),
        scaling=seen_of(job, memory, now),
    )


def _worker_states(
    job: Job, facts: Facts, memory: Remembered, plan: Plan | None
) -> tuple[tuple[str, WorkerState], ...]:
    """The states of all workers, those that are wanted last; a job that is suspended or over wants none. `plan` is
    the one that is active after the decision.
    """
    if is_elastic(job):
        keys: Sequence[WorkerKey] = awaited_keys(job, memory)
    else:
        keys = missing(job, facts)
    if job.suspend or memory.outcome.is_final:
        keys = ()
    over = leavers(facts, memory, plan)
    there = ((name, WorkerState.LEAVING if name in over else state) for name, state in facts.states.items())
    wanted = ((key.name, WorkerState.WANTED) for key in keys if key.name not in facts.states)
    return (*there, *wanted)


def _short_grace(facts: Facts, memory: Remembered, decided: Decision) -> tuple[str, ...]:
    """Workers to delete, by name, that cannot use their whole grace: the decision says that they hang, or they were
    replaced since they answer nobody. Where nobody is left to end a worker, as on a node that does not answer, its
    grace says when its pod is deleted by force, and stays.
    """
    names = {*decided.short_grace, *replaced_in_silence(facts, memory)} & {*decided.delete}
    return tuple(worker.name for worker in facts.live if worker.name in names and not worker.node_lost)


def _members_of(plan: Plan, facts: Facts) -> tuple[WorkerSeen | None, ...]:
    seen = {(worker.name, worker.uid): worker for worker in facts.workers}
    return tuple(seen.get((member.name, member.uid)) for member in plan.members)


def _slowed_by(plan: Plan | None, memory: Remembered) -> tuple[tuple[str, str], ...]:
    if not _is_of_members(plan, memory):
        return ()
    causes = [
        (member.name, name_of(worker.resource_use.cause))
        for member, worker in zip(plan.members, memory.workers, strict=True)
        if worker.resource_use.cause
    ]
    return tuple((worker, cause) for worker, cause in causes if cause)


def _is_of_members(plan: Plan | None, memory: Remembered) -> TypeGuard[Plan]:
    """Whether the memory's workers are the plan's members, by rank."""
    return plan is not None and plan.version == memory.plan_version and len(plan.members) == len(memory.workers)


def _batch_limits(plan: Plan | None, memory: Remembered) -> tuple[tuple[str, int], ...]:
    if not _is_of_members(plan, memory):
        return ()
    known = ((m.name, batch_limit(worker.memory_use)) for m, worker in zip(plan.members, memory.workers, strict=True))
    return tuple((name, batch) for name, batch in known if batch is not None)
