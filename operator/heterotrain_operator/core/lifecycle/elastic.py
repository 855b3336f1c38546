"""A job whose members change while they train: one look, from who has ended to who trains on, joins and is created.

What workers can do without the operator they do before it knows: to go on without one that ended, and to leave. The
plan that is published then tells everybody the same members, and whose batches are what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from heterotrain.contract import MEMBERS_MAY_END, Member, Plan
from heterotrain_operator.core.batching.bounds import bounds_at_once, bounds_in_passes, with_least_batch
from heterotrain_operator.core.batching.growth import at_size
from heterotrain_operator.core.batching.policies import POLICIES, Seat, Split
from heterotrain_operator.core.batching.policy import multiples_of_seats
from heterotrain_operator.core.batching.words import balance
from heterotrain_operator.core.facts import Facts, group_of, listed, multiples_of, resized
from heterotrain_operator.core.lifecycle import finishing, following, membership, transitions
from heterotrain_operator.core.lifecycle.ends import has_left
from heterotrain_operator.core.lifecycle.holding import BELOW_MIN_REPLICAS, begins_to_hold, too_few
from heterotrain_operator.core.lifecycle.membership import Change, Returning, evicted, returning
from heterotrain_operator.core.lifecycle.open_slots import NOTHING_LACKS, Lacking, lacking, open_slots, with_arrivals
from heterotrain_operator.core.lifecycle.prior import Prior, changed_split, inherited, place_of, slowed
from heterotrain_operator.core.lifecycle.publishing import carried_on, changed_plan, next_version
from heterotrain_operator.core.lifecycle.refill import after_ends, keeps_pod
from heterotrain_operator.core.lifecycle.replacing import expected_batches, inheritance
from heterotrain_operator.core.lifecycle.responses import (
    STEADY_SECONDS,
    Incident,
    removes_surplus,
    respond_to_lasting,
)
from heterotrain_operator.core.model import Decision, Event, Job, WorkerKey, WorkerSeen
from heterotrain_operator.core.outcomes import Health, decision, with_remark
from heterotrain_operator.core.prediction import predictor_of
from heterotrain_operator.core.remembered_worker import NOBODY, RememberedWorker, key_of
from heterotrain_operator.core.split.allocation import split_proportionally
from heterotrain_operator.core.split.multiples import Bounds, infeasible
from heterotrain_operator.core.split.passes import with_passes
from heterotrain_operator.core.state import Remembered

NOBODY_LEFT = "nobody is left who could carry the training on"


@dataclass(frozen=True, slots=True)
class Look:
    """What a look came to. Without a decision (`decided`) the members train on as the active plan says; in any case
    these workers are created and deleted, these events reported, and this is said of workers that are not ready.
    """

    memory: Remembered
    decided: Decision | None = None
    create: tuple[WorkerKey, ...] = ()
    delete: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    lacking: Lacking = NOTHING_LACKS


@dataclass(frozen=True, slots=True)
class _Going:
    """Members and newcomers, by name, that the next plan is not to name: `unwanted` ones train, and are beyond what the
    job wants; `useless` ones do not. Others are `back`, which the active plan does not name.
    """

    unwanted: frozenset[str]
    useless: frozenset[str]
    back: tuple[Returning, ...] = ()


def planned_members(job: Job, facts: Facts, memory: Remembered, now: float, leaving: Collection[str] = ()) -> Look:
    """What is done about the members of a job that trains, before anything is about their batches. Those named in
    `leaving` are no members of the next plan, if it is feasible without them and with who can join.
    """
    memory = following.timed(job, facts, memory, now)
    awaited = following.awaited(job, facts, memory, now)
    behind = dict.fromkeys(
        (each.name for each in following.left_behind(job, facts, memory, now)), following.NOT_FOLLOWED
    )
    behind |= dict.fromkeys((each.name for each in following.cut_off(job, facts, memory, now)), following.CUT_OFF)
    back = returning(job, facts, memory, now)
    ends = after_ends(job, facts, memory, now, left_behind=behind, back=back)
    if ends.decided is not None:
        return Look(ends.decided[1], ends.decided[0])
    memory = with_arrivals(facts, ends.memory, now)
    late = frozenset(behind)
    unwanted = frozenset[str]() if awaited else _unwanted(job, facts, memory, leaving, late)
    vacant, memory = open_slots(job, facts, memory, now, without=late | unwanted, back=back)
    gone = _to_delete(job, facts, memory, vacant.surplus, settled=not awaited)
    events = (*ends.events, *vacant.events)
    missing = lacking(job, facts, memory, now)
    if awaited:
        return Look(memory, None, vacant.create, gone, events, missing)
    going = _Going(unwanted, late | {worker.name for worker in vacant.surplus}, back)
    decided, memory, held = _changed(job, facts, memory, now, going)
    missing = replace(missing, waiting="; ".join(filter(None, [held, missing.waiting])))
    if decided is None or decided.phase == "Running":
        return Look(memory, decided, vacant.create, gone, events, missing)
    return Look(memory, decided, events=events)


def with_pods(decided: Decision, look: Look) -> Decision:
    """A decision about the batches of members that train on, with what else is done."""
    told = look.lacking
    return replace(
        with_remark(decided, told.waiting, degraded=told.degraded, code=told.code),
        create=look.create,
        beside_training=bool(look.create) and not _ran_out_of_memory(look),
        delete=tuple(dict.fromkeys((*decided.delete, *look.delete))),
        events=(*look.events, *decided.events),
    )


def _ran_out_of_memory(look: Look) -> bool:
    """Whether one is created for a place where a batch did not fit: it warms up with none, since in a warm-up nobody
    tells it to take fewer samples at once than others of its group."""
    created = {(key.group, key.index) for key in look.create}
    return any(place.known.memory_use.failed_batch and place.identity in created for place in look.memory.pending)


def without_lost(job: Job, facts: Facts, memory: Remembered, now: float) -> tuple[Decision, Remembered]:
    """Some members have committed the last step, and the others are about to, so that nobody joins any more. If one of
    the latter has ended, the rest go on without it, once those that are past that step have ended, too: their exit
    codes prove to the rest that nobody trains beside them.
    """
    running = finishing.awaited(facts, memory)
    reason = f"the job's last step ({memory.finish.last_step}) is committed; waiting for {listed(running)} to end"
    health = Health() if facts.plan is None else Health(*balance(facts.plan, memory))
    waiting = decision(job, "Running", "Finishing", reason, health=health), memory
    there = [worker for worker in facts.members if worker is not None]
    if memory.protocol < MEMBERS_MAY_END or any(each.name in running and finishing.is_past(each) for each in there):
        return waiting
    ends = [worker for worker in there if facts.is_gone(worker)]
    lost = len(there) < len(facts.members) or not all(finishing.is_past(each) or has_left(each) for each in ends)
    seen = facts.plan is not None and memory.plan_version <= facts.plan.version
    change = membership.change(facts, memory, (), joins=False) if lost and seen else None
    if change is None or _infeasible(job, facts, change, _known(job, facts, memory, change)[0]):
        return waiting
    return _published(job, facts, memory, now, change)


def _unwanted(
    job: Job, facts: Facts, memory: Remembered, leaving: Collection[str], late: Collection[str]
) -> frozenset[str]:
    """Members, by name, that the next plan is not to name: those beyond what the job wants and, where the rest can do
    without them, those that are `leaving`, which count as gone then.
    """
    if leaving:
        names = {*leaving, *(worker.name for worker in membership.taken(job, facts, memory, leaving))}
        if _is_feasible(job, facts, memory, {*late, *names}):
            return frozenset(names)
    return frozenset(worker.name for worker in membership.taken(job, facts, memory))


def _is_feasible(job: Job, facts: Facts, memory: Remembered, without: set[str]) -> bool:
    """Whether a plan without these workers, and with all that can join, keeps all bounds."""
    change = membership.change(facts, memory, without)
    return change is not None and not _infeasible(job, facts, change, _known(job, facts, memory, change)[0])


def _changed(
    job: Job, facts: Facts, memory: Remembered, now: float, going: _Going
) -> tuple[Decision | None, Remembered, str]:
    """Publish the members that there are now, if they are others; without those that would join if with them no split
    of the global batch keeps all bounds. Members that are only not wanted any more stay as long as the others cannot do
    without them, if that is no longer than workers may take to start; the text says so then.
    """
    why = NOBODY_LEFT
    kept = {worker.name for worker in following.stayers(facts)} - going.unwanted - going.useless
    if len(kept) == len(facts.members) and not membership.joiners(facts, memory):
        return None, _fit(memory), ""
    for unwanted, joins in ((going.unwanted, True), (going.unwanted, False), (frozenset[str](), True)):
        change = membership.change(facts, memory, going.useless | unwanted, joins=joins, back=going.back)
        if change is None or (not unwanted and going.unwanted and not change.joined):
            continue
        why_not = _infeasible(job, facts, change, _known(job, facts, memory, change)[0])
        if not why_not:
            return *_published(job, facts, _fit(memory), now, change), ""
        why = why_not if why == NOBODY_LEFT else why
    if _has_lost(job, facts, memory):
        return *_restarted(job, facts, memory, now, why), ""
    if len(kept) == len(facts.members):
        return None, _fit(memory), ""
    return _held(job, facts, memory, now, why)


def _fit(memory: Remembered) -> Remembered:
    """The memory once no member stays only since the others cannot do without it."""
    if memory.following.unfit_at is None:
        return memory
    return replace(memory, following=replace(memory.following, unfit_at=None))


def _has_lost(job: Job, facts: Facts, memory: Remembered) -> bool:
    """Whether a member that trained is lost, not counting those of groups that the job does not have any more."""
    assert facts.plan is not None
    groups, coming = {group.name for group in job.groups}, following.entrants(facts, memory)
    stay = {worker.name for worker in following.stayers(facts)}
    return any(
        member.group in groups and member.name not in coming and (worker is None or worker.name not in stay)
        for member, worker in zip(facts.plan.members, facts.members, strict=True)
    )


def _held(job: Job, facts: Facts, memory: Remembered, now: float, why: str) -> tuple[Decision | None, Remembered, str]:
    """Members that are not wanted any more stay for a time, since the others cannot do without them: the rest of what
    is wanted may come.
    """
    since = now if memory.following.unfit_at is None else memory.following.unfit_at
    message = f"{resized(job, facts) or 'the members are to change'}; without those that are to come {why}"
    wants_none = not any(group.replicas for group in job.groups)
    if wants_none or now - since > job.startup_deadline_seconds:
        everybody = replace(job, failure_policy="RestartAll")
        resize = Incident.WORKERS_RESIZED
        return *respond_to_lasting(everybody, facts, memory, now, incident=resize, message=message), ""
    memory = replace(memory, following=replace(memory.following, unfit_at=since))
    if all(worker is not None for worker in facts.members):
        return None, memory, message
    # Of groups that the job does not have any more nobody knows what batches are allowed.
    return decision(job, "Running", "WaitingForWorkers", message), memory, ""


def _restarted(job: Job, facts: Facts, memory: Remembered, now: float, why: str) -> tuple[Decision, Remembered]:
    return respond_to_lasting(job, facts, memory, now, incident=Incident.STATE_LOST, message=why)


def _to_delete(
    job: Job, facts: Facts, memory: Remembered, unwanted: Sequence[WorkerSeen], *, settled: bool
) -> tuple[str, ...]:
    """Pods of no use: of workers that ended, but for those that may still show who asked them to; of those on nodes
    that do not answer; and of workers that are neither members nor newcomers, once no change is under way in which
    they leave.
    """
    over = [worker for worker in (*facts.failed, *facts.finished) if not keeps_pod(memory, worker)]
    names = [worker.name for worker in (*over, *facts.lost, *unwanted)]
    if settled and removes_surplus(job):
        members = {worker.name for worker in facts.members if worker is not None}
        useful = members | {worker.name for worker in membership.newcomers(facts, memory)}
        idle = (worker for worker in facts.live if worker.name not in useful)
        names += [worker.name for worker in idle if not following.may_train_along(facts, memory, worker)]
        # Of groups that the job does not have any more some may train with those that stay.
        planned = {member.name for member in facts.plan.members} if facts.plan is not None else set()
        if following.is_carried_out(facts) or not following.stayers(facts):
            names += [name for name in facts.without_group if name not in planned]
    return tuple(dict.fromkeys(names))


def _known(
    job: Job, facts: Facts, memory: Remembered, change: Change, after: Plan | None = None
) -> tuple[list[RememberedWorker], Prior]:
    """What is known of the members of a change, by rank: of who stays its own, of who joins what is known of the place;
    and what the latter rests on.
    """
    assert facts.plan is not None
    known = carried_on(job, memory, facts.plan, after)
    known.update((each.replaces, each.known) for each in memory.remedies.replacing if each.replaces in change.returned)
    waiting = {(place.group, place.index): place for place in memory.pending}
    places = {name: waiting[key] for name, key in _identities(change) if key in waiting}
    taken_over = {name: place.known for name, place in places.items() if place.known != NOBODY}
    taken_over |= inheritance(job, memory, known)
    prior = Prior(facts.plan, {**known, **taken_over}, memory.progress.progress_step, memory.batching)
    joined = frozenset(change.joined)
    predictor = predictor_of(job)
    rows = [
        slowed(inherited(worker, prior), worker.metrics, predictor)._replace(
            failures=places[worker.name].failures if worker.name in places else 0,
            tries=places[worker.name].tries if worker.name in places else 0,
        )
        if worker.name in joined
        else known[worker.name]._replace(place=place_of(worker), key=key_of(worker.uid))
        for worker in change.members
    ]
    return [with_least_batch(row, worker.metrics) for row, worker in zip(rows, change.members, strict=True)], prior


def _identities(change: Change) -> list[tuple[str, tuple[str, int]]]:
    """Names of who joins, each with its group and index."""
    joined = frozenset(change.joined)
    return [(each.name, (each.group, each.index)) for each in change.members if each.name in joined]


def _grown(job: Job, facts: Facts, change: Change) -> Job:
    """The job with the global batch of the members of a change."""
    return at_size(job, Counter(worker.group for worker in change.members), facts.plan)


def _infeasible(job: Job, facts: Facts, change: Change, known: Sequence[RememberedWorker]) -> str:
    job = _grown(job, facts, change)
    groups = [worker.group for worker in change.members]
    bounds = bounds_in_passes(job, groups, known)
    names = [worker.name for worker in change.members]
    return infeasible(job.global_batch, bounds, multiples_of([group_of(job, each) for each in groups]), names) or ""


def _seats(job: Job, change: Change, bounds: Sequence[Bounds]) -> list[Seat]:
    predictor = predictor_of(job)
    return [
        Seat(worker.name, group_of(job, worker.group), 0, pair, predictor=predictor)
        for worker, pair in zip(change.members, bounds, strict=True)
    ]


def _published(job: Job, facts: Facts, memory: Remembered, now: float, change: Change) -> tuple[Decision, Remembered]:
    before, job = facts.plan, _grown(job, facts, change)
    assert before is not None
    known, prior = _known(job, facts, memory, change)
    groups = [worker.group for worker in change.members]
    seats = _seats(job, change, bounds_in_passes(job, groups, known))
    split = _split(job, before, change, prior, seats, instead=expected_batches(job, memory))
    reported = (worker.metrics.generation for worker in facts.workers if worker.metrics is not None)
    few = too_few(job, facts, memory, groups)
    plan = Plan(
        version=next_version(facts, memory),
        generation=max(before.generation, memory.generation, *reported) + 1,
        apply_at=job.apply_at,
        members=tuple(
            Member(worker.name, worker.uid, worker.address, worker.group, batch)
            for worker, batch in zip(change.members, split.batches, strict=True)
        ),
        continues=change.continues,
        holds=bool(few),
        evicted=evicted(facts, memory, {worker.uid for worker in change.members}),
    )
    plan = with_passes(plan, bounds_at_once(job, groups, known))
    rows, _ = _known(job, facts, memory, change, plan)
    steady_at = int(now + STEADY_SECONDS)
    known = [row._replace(steady_at=steady_at) if row.tries and not row.steady_at else row for row in rows]
    memory, told = transitions.left(job, facts, memory, now, change)
    coming, entering = len(change.joined), change.entering
    memory = changed_plan(memory, plan, now, known, joining=coming, entering=entering, leaving=change.leaving)
    memory = transitions.begun(facts, memory, change, now)
    batch = f"{before.global_batch_size} -> {plan.global_batch_size} samples per step; " if job.growth else ""
    reason = f"plan {plan.version} {_words(change)}; {batch}{split.reason}"
    events = (Event("Normal", "GenerationChanged", reason), *told)
    if not few:
        return decision(job, "Running", "GenerationChanged", reason, plan=plan, events=events), memory
    health = Health(degraded=f"training holds: {few}", degraded_code=BELOW_MIN_REPLICAS)
    if not before.holds:
        events = (*events, begins_to_hold(few, plan.version))
    return decision(job, "Running", "GenerationChanged", reason, health=health, plan=plan, events=events), memory


def _split(
    job: Job, before: Plan, change: Change, prior: Prior, seats: list[Seat], *, instead: Mapping[str, float]
) -> Split:
    """What the policy makes of what is known of all; else the batches that were, and of who joins the one that is
    expected of it (`instead`, by name), or those of its like.
    """
    policy = POLICIES.get(job.policy)
    if policy is not None and policy.first is not None:
        return policy.first(job, seats)
    had = {**instead, **{member.name: float(member.batch_size) for member in before.members}}
    of_groups = {
        seat.group.name: [m.batch_size for m in before.members if m.group == seat.group.name] for seat in seats
    }
    weights = [
        had[seat.name] if seat.name in had else fmean(of_groups[seat.group.name] or before.batch_sizes)
        for seat in seats
    ]
    multiples = multiples_of_seats(seats)
    batches = split_proportionally(weights, job.global_batch, [seat.bounds for seat in seats], multiples)
    seats = [seat._replace(batch=batch) for seat, batch in zip(seats, batches, strict=True)]
    by_knowledge = changed_split(job, change.members, prior, seats)
    return by_knowledge or Split(batches, f"in proportion to the batches of plan {before.version}")


def _words(change: Change) -> str:
    """What changes, in words."""
    joined = f"{listed(change.joined)} join" if change.joined else ""
    left = f"{listed(change.left)} leave" if change.left else ""
    stayed = f"{listed(change.returned)} stay after all" if change.returned else ""
    return f"goes on with {len(change.members)} workers: {', '.join(filter(None, [left, joined, stayed]))}"
