"""Whether a job holds: a group has fewer members than it may train with, so no step is taken until others have joined.

Members that lose one go on by themselves within the second; only a plan makes them hold, so they may take some steps
before. Those are steps like any other, since the sum of the gradients is the same for any number of workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from heterotrain.contract import MEMBERS_MAY_END, PHASE_HOLDING
from heterotrain_operator.core.batching.adjust import aligned
from heterotrain_operator.core.facts import Facts
from heterotrain_operator.core.lifecycle import finishing, progress
from heterotrain_operator.core.lifecycle.open_slots import is_given_up
from heterotrain_operator.core.lifecycle.publishing import adjusted, is_predicted, next_version, rebalanced_plan
from heterotrain_operator.core.model import Decision, Event, Group, Job
from heterotrain_operator.core.outcomes import Health, decision, ending
from heterotrain_operator.core.state import Remembered

BELOW_MIN_REPLICAS = "BelowMinReplicas"
"""Why a job is Degraded that holds, and the reason of the event which says that it begins to."""


def held(job: Job, facts: Facts, memory: Remembered, now: float) -> tuple[Decision, Remembered] | None:
    """What is done about a job whose plan names exactly the workers that are there, if it holds, is to hold or is to
    hold no more; None if it trains. A job to which nobody comes any more fails, instead of holding for good.
    """
    plan = facts.plan
    assert plan is not None
    few = too_few(job, facts, memory, (member.group for member in plan.members))
    if not few and not plan.holds:
        return None
    if few and plan.holds and any(_can_be(job, memory, group) < _least_of(group) for group in job.groups):
        message = f"{few}, and no other worker is created: in each place as many have ended as backoffLimit allows"
        return ending(job, facts, memory, now, outcome="Failed", code="BackoffLimitExceeded", message=message)
    members = [worker for worker in facts.members if worker is not None]
    memory = aligned(memory, plan, now)
    phases = {None if each.metrics is None else each.metrics.phase for each in members}
    if facts.metrics_problem or phases == {PHASE_HOLDING}:
        memory = progress.held(members, facts.states, memory, now)
    else:
        memory = progress.observed(facts, members, memory, now)
        response = progress.after_hang(job, facts, members, memory, now)
        if response is not None:
            return response
    silent = "" if facts.metrics_problem else progress.silent(job, members, memory, now)
    degraded = "; ".join(filter(None, [f"training holds: {few}" if few else "", silent]))
    health = Health(degraded=degraded, degraded_code=BELOW_MIN_REPLICAS if few else "WorkersImpaired")
    if bool(few) == plan.holds:
        return decision(job, "Running", BELOW_MIN_REPLICAS, f"training holds: {few}", health=health), memory
    version = next_version(facts, memory)
    after = replace(rebalanced_plan(memory, plan, version, "step", plan.batch_sizes), holds=bool(few))
    # Who joined while nobody took a step was not measured.
    memory = adjusted(job, memory, plan, after, now, stage=None, predicted=[*map(is_predicted, memory.workers)])
    reason = f"plan {version}: training {f'holds, for {few}' if few else 'goes on'}"
    events = (begins_to_hold(few, version),) if few else (Event("Normal", "PlanPublished", reason),)
    code = BELOW_MIN_REPLICAS if few else "PlanPublished"
    return decision(job, "Running", code, reason, health=health, plan=after, events=events), memory


def begins_to_hold(few: str, version: int) -> Event:
    """That no step is taken under the plan of this version."""
    return Event("Warning", BELOW_MIN_REPLICAS, f"plan {version}: training holds until others have joined: {few}")


def _can_be(job: Job, memory: Remembered, group: Group) -> int:
    """How many members the group has or may still get."""
    return group.replicas - sum(place.group == group.name and is_given_up(job, place) for place in memory.pending)


def _least_of(group: Group) -> int:
    """Of a group that says nothing of it, any number may train."""
    return group.min_replicas or 0


def too_few(job: Job, facts: Facts, memory: Remembered, groups: Iterable[str]) -> str:
    """Which groups of the job have fewer members than they may train with, in words; empty if none has, if members need
    one another, and once members have finished, for nobody joins then who could let the others go on. `groups` names
    that of each member.
    """
    bounded = [group for group in job.groups if group.min_replicas]
    if not bounded or memory.protocol < MEMBERS_MAY_END or finishing.is_committed(memory):
        return ""
    counts = Counter(groups)
    return ", ".join(
        f"group {group.name} has {counts[group.name]} of at least {group.min_replicas} workers"
        for group in bounded
        if counts[group.name] < _least_of(group)
    )
