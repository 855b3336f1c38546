"""The decision about one job: from what is wanted, seen and remembered to what is done now, and why.

Pure and total: any observation has an answer, the same observation always the same one, and time is an
argument.
"""

from __future__ import annotations

from dataclasses import replace

from heterotrain.contract import Plan
from heterotrain_operator.core.batching import growth
from heterotrain_operator.core.batching.adjust import adjust, aligned
from heterotrain_operator.core.batching.bounds import bounds_at_once
from heterotrain_operator.core.batching.quorum import unusable
from heterotrain_operator.core.batching.rebalance import Adjustment
from heterotrain_operator.core.batching.words import balance
from heterotrain_operator.core.facts import SETTLE_SECONDS, Facts, listed, resized, survey
from heterotrain_operator.core.lifecycle import (
    elastic,
    finishing,
    progress,
    removing,
    replacing,
    serving,
    transitions,
)
from heterotrain_operator.core.lifecycle.failures import (
    after_departures,
    after_failures,
    after_fatal,
    are_replaced,
    of_members,
)
from heterotrain_operator.core.lifecycle.following import awaited, leavers, noticed
from heterotrain_operator.core.lifecycle.holding import held
from heterotrain_operator.core.lifecycle.membership import (
    can_change,
    has_lost_state,
    returning,
    with_protocol,
)
from heterotrain_operator.core.lifecycle.publishing import adjusted, next_version, rebalanced_plan
from heterotrain_operator.core.lifecycle.recovery import recovered
from heterotrain_operator.core.lifecycle.responses import (
    Incident,
    is_elastic,
    removes_surplus,
    respond_to_lasting,
    still_draining,
)
from heterotrain_operator.core.lifecycle.startup import start
from heterotrain_operator.core.model import Decision, Event, Job, Seen, WorkerSeen
from heterotrain_operator.core.outcomes import Health, decision, ending, over
from heterotrain_operator.core.remembered.job import Finish, Outcome
from heterotrain_operator.core.scaling import sizes
from heterotrain_operator.core.scaling.look import looked
from heterotrain_operator.core.split.passes import with_passes
from heterotrain_operator.core.state import Remembered
from heterotrain_operator.core.stragglers import watch as stragglers
from heterotrain_operator.core.stragglers.verdict import ACTIONS
from heterotrain_operator.core.worker_report import worker_report


def decide(job: Job, seen: Seen, memory: Remembered, now: float) -> tuple[Decision, Remembered]:
    """What to do about a job now, and what to remember; `now` in Unix seconds.

    Acting on the decision and storing the memory are one act: with the memory that it returns, the same
    observation publishes no second plan and creates nothing twice.
    """
    facts, stored = survey(job, seen), memory
    if memory.start.created_at is None:
        memory = replace(memory, start=replace(memory.start, created_at=now))
    groups = job.groups if job.server is None else (*job.groups, job.server)
    memory = replace(memory, cost=memory.cost.counted(groups, facts.everybody, now))
    memory, news = progress.taken_over([each for each in (*facts.members, facts.server) if each is not None], memory)
    memory = noticed(facts, with_protocol(facts, memory), now)
    if not memory.budget.draining:
        memory = finishing.noted(facts, memory, now)
    memory, arrived = transitions.joined(job, facts, stored, memory, now)
    memory = sizes.still_resized(job, removing.still_removed(job, memory))
    job, memory, given_up = sizes.taken_back(sizes.sized(job, memory), facts, memory, now)
    job, memory = growth.at_present(job, facts, memory)
    if job.failure_policy == "RestartAll" and can_change(facts, memory):
        job = replace(job, failure_policy="Elastic")
    decided, memory = _decide(job, facts, memory, now)
    decided = serving.named(job, facts, decided)
    remedied = memory.remedies.replacing or memory.sizes.removed or memory.sizes.resized
    if memory.budget.draining and (remedied or memory.transitions.switching):  # all places begin again
        memory = replace(
            memory,
            remedies=replace(memory.remedies, replacing=()),
            sizes=memory.sizes.begun_again(),
            transitions=memory.transitions.settled(),
        )
    if memory.remedies.replacing and (memory.outcome.is_final or (facts.plan is not None and not is_elastic(job))):
        decided, memory = replacing.ended_all(job, facts, decided, memory, now)
    if news is not None or arrived or given_up:
        decided = replace(decided, events=(*filter(None, [news]), *arrived, *given_up, *decided.events))
    return worker_report(job, seen, facts, decided, memory, now=now), memory.rounded(stored)


def _decide(job: Job, facts: Facts, memory: Remembered, now: float) -> tuple[Decision, Remembered]:
    if memory.outcome.is_final:
        return over(job, facts, memory, now)
    # What becomes of a worker that is to replace a straggler concerns nobody else before it is a member.
    permanent = after_fatal(job, replacing.hidden_from(job, facts, memory), memory, now)
    if permanent is not None:
        return permanent
    ended = finishing.judged(job, facts, memory, now)
    if ended is not None:
        return ended
    if job.suspend:
        return _suspended(job, facts, memory, now)
    if memory.start.started_at is None:
        memory = replace(memory, start=replace(memory.start, started_at=now))
    if _outlived(job, memory, now):
        message = f"the job ran longer than its active deadline of {job.active_deadline_seconds:g} s"
        return ending(job, facts, memory, now, outcome="Failed", code="ActiveDeadlineExceeded", message=message)
    if memory.budget.draining:
        draining = still_draining(job, facts, memory, now)
        if draining is not None:
            return draining
        memory = replace(
            memory,
            budget=replace(memory.budget, draining=False, restart_at=None),
            start=replace(memory.start, starting_at=now),
        )
    if finishing.is_committed(memory):
        return elastic.without_lost(job, facts, memory, now)
    changes = is_elastic(job)
    counting = of_members(facts, memory)
    if not changes and (counting.lost or (counting.failed and not are_replaced(job, counting))):
        response = after_failures(job, counting, memory, now)
        if response is not None:
            return response
    if memory.plan_version > (facts.plan.version if facts.plan is not None else 0):
        since = now - (memory.published_at if memory.published_at is not None else now)
        if 0 <= since < SETTLE_SECONDS:
            reason = f"plan {memory.plan_version} was published and is not visible yet"
            return decision(job, "Running", "PlanPublished", reason), memory
    return serving.with_server(job, facts, memory, now, _of_workers)


def _of_workers(job: Job, facts: Facts, memory: Remembered, now: float) -> tuple[Decision, Remembered]:
    """What is done about the workers of a job that goes on."""
    if is_elastic(job):
        return _carried_on(job, facts, memory, now)
    again = recovered(job, facts, memory, now)
    if again is not None:
        return again
    members = tuple(worker for worker in facts.members if worker is not None)
    if facts.plan is None or not members:
        return start(job, facts, memory, now)
    if len(members) < len(facts.members):
        return after_departures(job, facts, memory, now)
    if has_lost_state(facts):
        why = f"no member has the state that plan {facts.plan.version} carries on"
        return respond_to_lasting(job, facts, memory, now, incident=Incident.STATE_LOST, message=why)
    change = resized(job, facts)
    if change is not None:
        return respond_to_lasting(job, facts, memory, now, incident=Incident.WORKERS_RESIZED, message=change)
    planned = {member.name for member in (*facts.plan.members, facts.server) if member is not None}
    useful = planned | set(leavers(facts, memory, facts.plan))  # who leaves trains until the others have gone over
    unplanned = tuple(name for name in facts.names if name not in useful) if removes_surplus(job) else ()
    return _running(job, facts, members, memory, now, unplanned=unplanned)


def _carried_on(job: Job, facts: Facts, memory: Remembered, now: float) -> tuple[Decision, Remembered]:
    """The same of a job whose members change while they train, and beside that what is done about the members."""
    everybody, memory = facts, transitions.carried_out(facts, memory, now)
    if 0 <= memory.budget.script_error_step < memory.progress.progress_step:
        # The others have got past it, and need no restart for that.
        memory = replace(memory, budget=memory.budget.raised_at(-1))
    settled = not awaited(job, facts, memory, now)
    standing = stragglers.verdicts(job, facts.plan, facts.members, memory) if _acts(job, memory) else ()
    swaps = replacing.planned_swaps(job, facts, memory, now, standing, settled=settled)
    removed = removing.planned_removal(job, facts, swaps.memory, standing if settled else ())
    leaving = {*swaps.leaving, *filter(None, [removed.leaving])}
    look = elastic.planned_members(removed.job, swaps.facts, removed.memory, now, leaving)
    if removed.leaving and not _leaves_out(look.decided, removed.leaving):
        removed = removing.Removing(job, swaps.memory)
        look = elastic.planned_members(job, swaps.facts, swaps.memory, now, swaps.leaving)
    if not all(_leaves_out(look.decided, name) for name in swaps.leaving):
        swaps, look = _fewer_swaps(job, swaps, now)
    facts, job = swaps.facts, removed.job
    look = replace(
        look,
        create=(*swaps.create, *look.create),
        delete=(*swaps.delete, *look.delete),
        events=(*swaps.events, *filter(None, [removed.event]), *look.events),
    )
    decided, memory = look.decided, look.memory
    if decided is not None and decided.plan is not None and memory.remedies.replacing:
        back = returning(job, facts, swaps.memory, now)
        memory = replacing.swapped(job, facts, memory, swaps.memory, decided.plan)
        memory, events = replacing.returned(job, everybody, memory, now, back)
        look = replace(look, events=(*events, *look.events))
    if decided is None:
        members = tuple(worker for worker in facts.members if worker is not None)
        holding = held(job, facts, memory, now)
        decided, memory = holding or _running(job, facts, members, memory, now, unplanned=())
    if decided.phase != "Running":
        memory, newcomers = replacing.given_up(job, memory)
        there = [name for name in newcomers if name in everybody.names and name not in facts.names]
        gone = tuple(dict.fromkeys((*decided.delete, *there))) if decided.delete else decided.delete
        return replace(decided, delete=gone, events=(*look.events, *decided.events)), memory
    return elastic.with_pods(decided, look), memory


def _fewer_swaps(job: Job, swaps: replacing.Replacing, now: float) -> tuple[replacing.Replacing, elastic.Look]:
    """One swap, if no split of the batch allows all of them; or none, and the newcomers stay until one does."""
    one_by_one = [[each] for each in swaps.swaps] if len(swaps.swaps) > 1 else []
    for each in one_by_one:
        fewer = swaps.only(each)
        look = elastic.planned_members(job, fewer.facts, fewer.memory, now, fewer.leaving)
        if all(_leaves_out(look.decided, name) for name in fewer.leaving):
            return fewer, look
    fewer = swaps.only(())
    look = elastic.planned_members(job, fewer.facts, fewer.memory, now)
    kept = ", ".join(f"{newcomer} cannot take the place of {straggler} yet" for straggler, newcomer in swaps.swaps)
    waiting = "; ".join(filter(None, [f"{kept}: no split of the global batch keeps all bounds", look.lacking.waiting]))
    return fewer, replace(look, lacking=replace(look.lacking, waiting=waiting))


def _leaves_out(decided: Decision | None, name: str) -> bool:
    """Whether a plan was decided that does not name this worker."""
    return decided is not None and decided.plan is not None and all(m.name != name for m in decided.plan.members)


def _acts(job: Job, memory: Remembered) -> bool:
    """Whether something beyond the batches may be done about stragglers now."""
    acts = ACTIONS[job.stragglers.action].changes_members and not job.dry_run
    return acts and (bool(memory.remedies.replacing) or any(known.evidence.advised for known in memory.workers))


def _running(
    job: Job,
    facts: Facts,
    members: tuple[WorkerSeen, ...],
    memory: Remembered,
    now: float,
    *,
    unplanned: tuple[str, ...],
) -> tuple[Decision, Remembered]:
    """The active plan names exactly the workers that train: watch over them, adjust their batches, and delete the pods
    that are `unplanned`.
    """
    assert facts.plan is not None
    plan = facts.plan
    version = next_version(facts, memory)
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
    memory = progress.observed(facts, members, memory, now)
    response = progress.after_hang(job, facts, members, memory, now)
    if response is not None:
        return response
    silent = progress.silent(job, members, memory, now)
    adjustment = adjust(job, plan, members, memory, now)
    watched, reports = stragglers.watched(
        job, plan, members, adjustment.seats, adjustment.memory, before=memory.workers
    )
    stays = adjustment.decided and adjustment.batches is None
    watched, scaled = looked(job, plan, members, watched, now, seats=adjustment.seats if stays else ())
    adjustment = replace(adjustment, memory=watched, events=(*adjustment.events, *reports, *scaled))
    useless = unusable(plan, adjustment.memory)
    degraded = "; ".join(filter(None, [silent, useless, adjustment.degraded]))
    code = "CountersUnusable" if useless and not silent else "WorkersImpaired"
    health = Health(*balance(plan, adjustment.memory), degraded=degraded, degraded_code=code)
    return _carried_out(job, plan, adjustment, version, health=health, delete=unplanned, now=now)


def _carried_out(
    job: Job, plan: Plan, adjustment: Adjustment, version: int, *, health: Health, delete: tuple[str, ...], now: float
) -> tuple[Decision, Remembered]:
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


def _suspended(job: Job, facts: Facts, memory: Remembered, now: float) -> tuple[Decision, Remembered]:
    """No pods at all; the active deadline begins again when the job resumes. After the first look nothing new is
    remembered, because every change would be written, and every write causes another look.
    """
    reason = f"suspended; deleting {listed(facts.names)}" if facts.names else "suspended"
    if memory.budget.draining and memory.outcome.reason == "Suspended":
        return decision(job, "Suspended", "JobSuspended", reason, delete=facts.names), memory
    memory = replace(
        memory,
        budget=replace(memory.budget, draining=True, restart_at=now, unexplained_at=None),
        start=replace(memory.start, started_at=None, starting_at=now, pods_created_at=None),
        finish=Finish(),
        outcome=Outcome(reason="Suspended", message="the job was suspended"),
    )
    event = Event("Normal", "JobSuspended", reason)
    return decision(job, "Suspended", "JobSuspended", reason, delete=facts.names, events=(event,)), memory


def _outlived(job: Job, memory: Remembered, now: float) -> bool:
    deadline = job.active_deadline_seconds
    return deadline is not None and memory.start.started_at is not None and now - memory.start.started_at > deadline
