"""The decision about one job: from what is wanted, seen and remembered to what is done now, and why.

Pure and total: any observation has an answer, the same observation always the same one, and time is an
argument.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

from heterotrain.contract import Plan
from heterotrain_operator.core.batching.adjust import adjust, aligned
from heterotrain_operator.core.batching.adjustment import Adjustment
from heterotrain_operator.core.batching.balance import balance
from heterotrain_operator.core.batching.bounds import bounds_at_once
from heterotrain_operator.core.batching.quorum import unusable
from heterotrain_operator.core.facts import SETTLE_SECONDS, Facts, listed, missing, resized, stuck, survey
from heterotrain_operator.core.lifecycle import progress
from heterotrain_operator.core.lifecycle.failures import after_departures, after_failures, after_fatal, are_replaced
from heterotrain_operator.core.lifecycle.publishing import adjusted, next_version, rebalanced_plan
from heterotrain_operator.core.lifecycle.recovery import recovered
from heterotrain_operator.core.lifecycle.responses import Incident, removes_surplus, respond, respond_to_lasting
from heterotrain_operator.core.lifecycle.restarts import still_draining
from heterotrain_operator.core.lifecycle.startup import start
from heterotrain_operator.core.model import FINAL_PHASES, Decision, Event, Job, Seen, WorkerSeen, WorkerState
from heterotrain_operator.core.outcomes import Health, decision, ending, over
from heterotrain_operator.core.prediction.memory_limit import batch_limit
from heterotrain_operator.core.prediction.resource_use import name_of
from heterotrain_operator.core.split.passes import with_passes
from heterotrain_operator.core.state import Memory
from heterotrain_operator.core.stragglers import watch as stragglers


def decide(job: Job, seen: Seen, memory: Memory, now: float) -> tuple[Decision, Memory]:
    """What to do about a job now, and what to remember; `now` in Unix seconds.

    Acting on the decision and storing the memory are one act: with the memory that it returns, the same
    observation publishes no second plan and creates nothing twice.
    """
    facts, stored = survey(job, seen), memory
    if memory.created_at is None:
        memory = replace(memory, created_at=now)
    memory, news = progress.taken_over([worker for worker in facts.members if worker is not None], memory)
    decided, memory = _decide(job, facts, memory, now)
    if news is not None:
        decided = replace(decided, events=(news, *decided.events))
    limited = _batch_limits(decided.plan or seen.plan, memory)
    slowed = _slowed_by(decided.plan or seen.plan, memory)
    states = _worker_states(job, facts, memory)
    is_over = decided.phase in FINAL_PHASES
    standing = () if is_over else stragglers.verdicts(job, decided.plan or seen.plan, facts.members, memory)
    steered = decided.phase == "Running" and any(facts.members)
    decided = replace(
        decided,
        conditions=(*decided.conditions, *stragglers.condition(job, standing, steered=steered)),
        force_delete=stuck(seen, now),
        batch_limits=limited,
        slowed_by=slowed,
        worker_states=states,
        stragglers=standing,
    )
    return decided, memory.rounded(stored)


def _worker_states(job: Job, facts: Facts, memory: Memory) -> tuple[tuple[str, WorkerState], ...]:
    """The states of all workers, those that are wanted last; a job that is suspended or over wants none."""
    keys = () if job.suspend or memory.outcome else missing(job, facts)
    wanted = ((key.name, WorkerState.WANTED) for key in keys if key.name not in facts.states)
    return (*facts.states.items(), *wanted)


def _slowed_by(plan: Plan | None, memory: Memory) -> tuple[tuple[str, str], ...]:
    if not _is_of_members(plan, memory):
        return ()
    causes = (
        (m.name, name_of(worker.resource_use.cause)) for m, worker in zip(plan.members, memory.workers, strict=True)
    )
    return tuple((worker, cause) for worker, cause in causes if cause)


def _is_of_members(plan: Plan | None, memory: Memory) -> TypeGuard[Plan]:
    """Whether the memory's workers are the plan's members, by rank."""
    return plan is not None and plan.version == memory.plan_version and len(plan.members) == len(memory.workers)


def _batch_limits(plan: Plan | None, memory: Memory) -> tuple[tuple[str, int], ...]:
    if not _is_of_members(plan, memory):
        return ()
    known = ((m.name, batch_limit(worker.memory_use)) for m, worker in zip(plan.members, memory.workers, strict=True))
    return tuple((name, batch) for name, batch in known if batch is not None)


def _decide(job: Job, facts: Facts, memory: Memory, now: float) -> tuple[Decision, Memory]:
    if memory.outcome:
        return over(job, facts, memory, now)
    if not memory.draining and _all_finished(job, facts):
        message = f"all {len(facts.finished)} workers finished the job's last step"
        return ending(job, facts, memory, now, outcome="Succeeded", code="JobSucceeded", message=message)
    hopeless = after_fatal(job, facts, memory, now)
    if hopeless is not None:
        return hopeless
    if job.suspend:
        return _suspended(job, facts, memory, now)
    if memory.started_at is None:
        memory = replace(memory, started_at=now)
    if _outlived(job, memory, now):
        message = f"the job ran longer than its active deadline of {job.active_deadline_seconds:g} s"
        return ending(job, facts, memory, now, outcome="Failed", code="ActiveDeadlineExceeded", message=message)
    if memory.draining:
        draining = still_draining(job, facts, memory, now)
        if draining is not None:
            return draining
        memory = replace(memory, draining=False, restart_at=None, starting_at=now)
    if facts.lost or (facts.failed and not are_replaced(job, facts)):
        response = after_failures(job, facts, memory, now)
        if response is not None:
            return response
    if memory.plan_version > (facts.plan.version if facts.plan is not None else 0):
        since = now - (memory.published_at if memory.published_at is not None else now)
        if 0 <= since < SETTLE_SECONDS:
            reason = f"plan {memory.plan_version} was published and is not visible yet"
            return decision(job, "Running", "PlanPublished", reason), memory
    again = recovered(job, facts, memory, now)
    if again is not None:
        return again
    members = tuple(worker for worker in facts.members if worker is not None)
    if facts.plan is None or not members:
        return start(job, facts, memory, now)
    if len(members) < len(facts.members):
        return after_departures(job, facts, memory, now)
    return _running(job, facts, members, memory, now)


def _running(
    job: Job, facts: Facts, members: tuple[WorkerSeen, ...], memory: Memory, now: float
) -> tuple[Decision, Memory]:
    """The active plan names exactly the workers that are there: watch over them, and adjust their batches."""
    assert facts.plan is not None
    plan = facts.plan
    version = next_version(facts, memory)
    finishing = [worker.name for worker in members if facts.is_gone(worker)]
    change = resized(job, facts)
    if change is not None and not finishing:
        return respond_to_lasting(job, facts, memory, now, incident=Incident.WORKERS_RESIZED, message=change)
    memory = aligned(memory, plan, now)
    blind = facts.metrics_problem or progress.all_silent(members, facts.states)
    if blind:
        memory = progress.held(members, facts.states, memory, now)
        # Workers that end together fall silent together, for a moment.
        lasts = facts.metrics_problem or progress.silent(job, members, memory, now)
        silence = f"{blind}; plan {plan.version} stays" if lasts else ""
        health = Health(*balance(plan, memory), degraded=silence, degraded_code="MetricsUnavailable")
        reason = f"plan {plan.version} stays: {blind}"
        return decision(job, "Running", "MetricsUnavailable", reason, health=health), memory
    memory = progress.observed(members, facts.states, memory, now)
    hanging = progress.hung(job, members, facts.states, memory, now)
    if hanging is not None:
        response = respond(job, facts, memory, now, incident=Incident.WORKER_HUNG, message=hanging)
        if response is not None:
            return response
    silent = progress.silent(job, members, memory, now)
    planned = {member.name for member in plan.members}
    unplanned = tuple(name for name in facts.names if name not in planned) if removes_surplus(job) else ()
    if finishing:
        rest = [worker.name for worker in members if not facts.is_gone(worker)]
        reason = f"{listed(finishing)} finished; waiting for {listed(rest)}"
        health = Health(*balance(plan, memory), degraded=silent)
        return decision(job, "Running", "Finishing", reason, health=health, delete=unplanned), memory
    adjustment = adjust(job, plan, members, memory, now)
    watched, reports = stragglers.watched(
        job, plan, members, adjustment.seats, adjustment.memory, before=memory.workers
    )
    adjustment = replace(adjustment, memory=watched, events=(*adjustment.events, *reports))
    useless = unusable(plan, adjustment.memory)
    degraded = "; ".join(filter(None, [silent, useless, adjustment.degraded]))
    code = "CountersUnusable" if useless and not silent else "WorkersImpaired"
    health = Health(*balance(plan, adjustment.memory), degraded=degraded, degraded_code=code)
    return _carried_out(job, plan, adjustment, version, health=health, delete=unplanned, now=now)


def _carried_out(
    job: Job, plan: Plan, adjustment: Adjustment, version: int, *, health: Health, delete: tuple[str, ...], now: float
) -> tuple[Decision, Memory]:
    """Publish the batches of an adjustment, or in an observe-only job only report them."""
    memory, reason, events = adjustment.memory, adjustment.reason, adjustment.events
    if adjustment.batches is None:
        return decision(job, "Running", "Training", reason, health=health, delete=delete, events=events), memory
    renumbered = adjustment.batches == plan.batch_sizes
    if job.dry_run and not renumbered:
        reason = f"dry run, nothing changes: {reason}"
        events = (*events, Event("Normal", "DryRun", reason)) if adjustment.decided else events
        return decision(job, "Running", "DryRun", reason, health=health, delete=delete, events=events), memory
    after = rebalanced_plan(memory, plan, version, job.apply_at, adjustment.batches)
    bounds = bounds_at_once(job, [member.group for member in plan.members], memory.workers)
    if adjustment.at_once:
        bounds = [(low, wanted or most) for (low, most), wanted in zip(bounds, adjustment.at_once, strict=True)]
    after = with_passes(after, bounds)
    memory = adjusted(
        job,
        memory,
        plan,
        after,
        now,
        stage=adjustment.stage,
        promise=adjustment.promise,
        predicted=adjustment.predicted,
    )
    code = "PlanPublished" if renumbered else "BatchRebalanced"
    event = Event("Normal", code, f"plan {version}: {reason}")
    events = (*events, event)
    return decision(job, "Running", code, reason, health=health, plan=after, delete=delete, events=events), memory


def _all_finished(job: Job, facts: Facts) -> bool:
    """Every member of the active plan ended well; where none of them is there, every worker that is wanted."""
    if facts.failed or facts.live or not facts.finished:
        return False
    members = [worker for worker in facts.members if worker is not None]
    if members:
        return len(members) == len(facts.members)
    return len(facts.finished) >= sum(group.replicas for group in job.groups)


def _suspended(job: Job, facts: Facts, memory: Memory, now: float) -> tuple[Decision, Memory]:
    """No pods at all; the active deadline begins again when the job resumes. After the first look nothing new is
    remembered, because every change would be written, and every write causes another look.
    """
    reason = f"suspended; deleting {listed(facts.names)}" if facts.names else "suspended"
    if memory.draining and memory.reason == "Suspended":
        return decision(job, "Suspended", "JobSuspended", reason, delete=facts.names), memory
    memory = replace(
        memory,
        draining=True,
        restart_at=now,
        started_at=None,
        starting_at=now,
        pods_created_at=None,
        unexplained_at=None,
        reason="Suspended",
        message="the job was suspended",
    )
    event = Event("Normal", "JobSuspended", reason)
    return decision(job, "Suspended", "JobSuspended", reason, delete=facts.names, events=(event,)), memory


def _outlived(job: Job, memory: Memory, now: float) -> bool:
    deadline = job.active_deadline_seconds
    return deadline is not None and memory.started_at is not None and now - memory.started_at > deadline
