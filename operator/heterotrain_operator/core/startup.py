"""From no workers to the first plan of a generation: create what is missing, wait until all are ready, publish.

A plan names addresses and identities, so it can only be made when every wanted worker is there to be named. And only
when its script is done with whatever it loads and builds first, or those that are would wait for it in a collective.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heterotrain.contract import PHASE_PREPARING, Member, Plan
from heterotrain_operator.core.allocation import split_proportionally
from heterotrain_operator.core.batching import POLICIES, Seat, Split
from heterotrain_operator.core.batching import static as static_policy
from heterotrain_operator.core.batching import uniform as uniform_policy
from heterotrain_operator.core.facts import Facts, bounds_of, group_of, listed, missing, surplus
from heterotrain_operator.core.levels import feasibility
from heterotrain_operator.core.model import Decision, Event, Job, JobPhase, WorkerSeen
from heterotrain_operator.core.outcomes import Health, decision, ending
from heterotrain_operator.core.passes import in_passes, with_passes
from heterotrain_operator.core.publishing import known_workers, next_version, started_plan
from heterotrain_operator.core.safe import bounds_at_once, safe_bounds
from heterotrain_operator.core.state import Memory, WorkerMemory
from heterotrain_operator.core.steering import SETTLE_SECONDS


def start(job: Job, facts: Facts, memory: Memory, now: float) -> tuple[Decision, Memory]:
    """Bring the job from whatever is there to the first plan of its next generation."""
    phase: JobPhase = "Restarting" if memory.generation > 0 or memory.restarts > 0 else "Created"
    if memory.starting_at is None:
        memory = replace(memory, starting_at=now)
    keys = missing(job, facts)
    unwanted = (*(worker.name for worker in surplus(job, facts)), *facts.strangers)
    leaving = frozenset(unwanted)
    awaited = [worker for worker in facts.workers if worker.name not in leaving]
    why_not = _infeasible(job)
    unready = [*(f"{key.name} ({facts.refused.get(key.name, 'not there')})" for key in keys), *_unready(awaited)]
    if not why_not and not unready and not unwanted:
        return _publish(job, facts, memory, now)
    # Where their metrics are read from may be to blame, and not the workers.
    source = facts.metrics_problem or facts.metrics_note
    blind = f"; {source}" if source else ""
    health = Health(degraded=facts.metrics_problem, degraded_code="MetricsUnavailable")
    waited = now - (memory.starting_at if memory.starting_at is not None else now)
    if waited > job.startup_deadline_seconds:
        what = why_not or f"not ready: {listed(unready or list(unwanted))}{blind}"
        message = f"the job did not start within {job.startup_deadline_seconds:g} s; {what}"
        return ending(job, facts, memory, now, outcome="Failed", code="StartupDeadlineExceeded", message=message)
    if why_not:
        return decision(job, phase, "Infeasible", why_not, health=Health(degraded=why_not), delete=unwanted), memory
    if not keys or (memory.pods_created_at is not None and now - memory.pods_created_at < SETTLE_SECONDS):
        reason = f"waiting for {listed(unready)}{blind}" if unready else f"{listed(list(unwanted))} must go first"
        return decision(job, phase, "WaitingForWorkers", reason, health=health, delete=unwanted), memory
    memory = replace(memory, pods_created_at=now)
    fresh = [key.name for key in keys if key.name not in facts.refused]
    if not fresh:
        reason = f"waiting for {listed(unready)}"
        return decision(job, phase, "WaitingForWorkers", reason, create=keys, delete=unwanted), memory
    reason = f"creating {listed(fresh)}"
    event = Event("Normal", "SuccessfulCreatePod", reason)
    return decision(job, phase, "CreatingWorkers", reason, create=keys, delete=unwanted, events=(event,)), memory


def _infeasible(job: Job) -> str | None:
    groups = [group for group in job.groups for _ in range(group.replicas)]
    if not groups:
        return "the groups want no workers"
    names = [f"group {group.name}" for group in groups]
    return feasibility(job.global_batch, in_passes(job.global_batch, [bounds_of(job, each) for each in groups]), names)


def _unready(workers: Sequence[WorkerSeen]) -> list[str]:
    """Workers that cannot be members yet, each with the reason."""
    reasons = []
    for worker in workers:
        if worker.deleting_since is not None:
            reasons.append(f"{worker.name} (being deleted)")
        elif worker.phase != "Running":
            reasons.append(f"{worker.name} ({': '.join(filter(None, [worker.phase, worker.message.strip()]))})")
        elif worker.metrics is None:
            reasons.append(f"{worker.name} (Running, but its metrics do not answer)")
        elif not worker.address:
            reasons.append(f"{worker.name} (Running, but without an address)")
        elif worker.metrics.phase == PHASE_PREPARING:
            reasons.append(f"{worker.name} (Running, but its script is not at its loop yet)")
    return reasons


def _publish(job: Job, facts: Facts, memory: Memory, now: float) -> tuple[Decision, Memory]:
    workers = facts.workers
    known = known_workers(memory, facts.plan)
    knowledge = [known.get(worker.name, WorkerMemory()) for worker in workers]
    groups = [worker.group for worker in workers]
    bounds = safe_bounds(job, groups, knowledge)
    seats = [
        Seat(worker.name, group_of(job, worker.group), 0, pair) for worker, pair in zip(workers, bounds, strict=True)
    ]
    split = _first_split(job, facts.plan, seats)
    generations = [memory.generation, *(w.metrics.generation for w in workers if w.metrics is not None)]
    if facts.plan is not None:
        generations.append(facts.plan.generation)
    plan = Plan(
        version=next_version(facts, memory),
        generation=max(generations) + 1,
        apply_at=job.apply_at,
        members=tuple(
            Member(worker.name, worker.uid, worker.address, worker.group, batch)
            for worker, batch in zip(workers, split.batches, strict=True)
        ),
    )
    plan = with_passes(plan, bounds_at_once(job, groups, knowledge))
    plural = "" if len(workers) == 1 else "s"
    reason = f"plan {plan.version} starts generation {plan.generation} of {len(workers)} worker{plural}: {split.reason}"
    event = Event("Normal", "PlanPublished", reason)
    memory = started_plan(memory, facts.plan, plan, now)
    return decision(job, "Running", "PlanPublished", reason, plan=plan, events=(event,)), memory


def _first_split(job: Job, before: Plan | None, seats: Sequence[Seat]) -> Split:
    """After a restart of the same workers their last batches, if they still fit; else what policy or job
    start with.
    """
    policy = POLICIES.get(job.policy)
    if before is not None and [member.name for member in before.members] == [seat.name for seat in seats]:
        fits = all(
            seat.bounds[0] <= batch <= seat.bounds[1] for seat, batch in zip(seats, before.batch_sizes, strict=True)
        )
        free = not job.fixed_global_batch or (policy is not None and not policy.keeps_global_batch)
        if fits and before.global_batch_size >= 1 and (free or before.global_batch_size == job.global_batch):
            return Split(before.batch_sizes, f"the batches of plan {before.version}")
        if before.global_batch_size == job.global_batch and job.fixed_global_batch:
            batches = split_proportionally(before.batch_sizes, job.global_batch, [seat.bounds for seat in seats])
            return Split(batches, f"the batches of plan {before.version}, as far as bounds allow")
    if policy is not None and policy.first is not None:
        return policy.first(job, seats)
    return static_policy.first(job, seats) if job.initial == "Static" else uniform_policy.first(job, seats)
