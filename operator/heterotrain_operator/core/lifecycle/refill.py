"""Workers that ended, of a group that goes on without them: what each end means, and who comes in its place.

A member's end is one incident, a newcomer's another only where a place waits for it, or where nobody else is to blame:
others are missing then from a group that has too few workers, and nothing else. A place is remembered until another
worker has it, and then with that worker, and what was known of it goes on, too. New workers have indices of their own,
so that none waits until the pod before it is deleted.

Of some ends it may show later that nobody is to blame: of workers that say that they were asked to stop, and of members
that answer nobody. Such a worker is replaced at once. Its end counts towards its place's backoff limit as soon as it is
sure that nothing will show, and in any case once the patience is over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from heterotrain.contract import MEMBERS_MAY_END
from heterotrain.foreign import as_text
from heterotrain_operator.core.batching.bounds import after_out_of_memory
from heterotrain_operator.core.facts import Facts, ended, failed, worker_name
from heterotrain_operator.core.lifecycle.ends import (
    described_end,
    first_few,
    has_left,
    is_external,
    left_its_loop,
    signal_name,
)
from heterotrain_operator.core.lifecycle.following import CUT_OFF, NOT_FOLLOWED, outsiders, stayers
from heterotrain_operator.core.lifecycle.membership import Returning, newcomers
from heterotrain_operator.core.lifecycle.open_slots import free_index, is_given_up, overdue
from heterotrain_operator.core.lifecycle.publishing import carried_on
from heterotrain_operator.core.lifecycle.responses import (
    EVIDENCE_SECONDS,
    Incident,
    Response,
    delay_seconds,
    respond,
    rule_of,
)
from heterotrain_operator.core.model import Decision, Event, Job, WorkerSeen, WorkerState
from heterotrain_operator.core.outcomes import LONGEST_MESSAGE, ending
from heterotrain_operator.core.prediction.resource_use import ResourceUse
from heterotrain_operator.core.remembered.members import LONGEST_WHY, MOST_FAILURES, MOST_PENDING, Slot
from heterotrain_operator.core.remembered_worker import RememberedWorker, key_of
from heterotrain_operator.core.state import Remembered, members_memory
from heterotrain_operator.core.stragglers.evidence import Evidence

TOO_OLD = "cannot join workers that train, since its library is older than theirs"


@dataclass(frozen=True, slots=True)
class End:
    """A worker that is lost to its place. `seen` is None if it is not there, and nobody saw how it went. `place` is
    what is known of its place, with the ends before it. `given_up` says why, of one that lives; `was_member`: the
    active plan names it, and it has said that it trains.
    """

    name: str
    key: str
    seen: WorkerSeen | None
    place: Slot
    given_up: str = ""
    was_member: bool = False

    @property
    def incident(self) -> Incident:
        """What has happened."""
        if self.given_up == NOT_FOLLOWED:
            return Incident.PLAN_NOT_FOLLOWED
        if self.given_up:
            return Incident.WORKER_FAILED
        if self.seen is None:
            return Incident.WORKER_VANISHED
        if is_external(self.seen) or not ended(self.seen):
            return Incident.WORKER_DISRUPTED
        # Members that say they left were asked by no plan: those whom one asks are no members by then.
        return Incident.ASKED_TO_STOP if self.seen.asked_to_stop or has_left(self.seen) else Incident.WORKER_FAILED

    @property
    def described(self) -> str:
        """The same in words."""
        if self.given_up:
            return f"{self.name} {self.given_up}"
        if self.seen is None:
            return f"{self.name} vanished"
        return described_end(self.seen)

    @property
    def raised_at(self) -> int | None:
        """After how many steps the script raised in a member; None if something else ended it."""
        worker = self.seen
        if worker is None or not self.was_member or not worker.script_error or is_external(worker):
            return None
        other = worker.out_of_memory or signal_name(worker.exit_code) is not None
        return None if other else worker.step


def members_that_ended(
    job: Job,
    facts: Facts,
    memory: Remembered,
    left_behind: Mapping[str, str],
    has_place: Collection[str] = (),
    *,
    now: float,
) -> list[End]:
    """Members of the active plan that are lost, or were `left_behind`, by name and with why, and of which no place says
    so yet; but for newcomers whose stragglers still have the place (`has_place`, by name).
    """
    assert facts.plan is not None
    if not left_behind and len(stayers(facts)) == len(facts.members):
        return []
    groups = {group.name for group in job.groups}
    accounted = {place.key for place in memory.pending}
    coming = outsiders(facts, memory)
    waiting = {worker_name(job.name, *place.identity): place.tries for place in memory.pending}
    found = []
    for member, seen, known in zip(facts.plan.members, facts.members, members_memory(memory, facts.plan), strict=True):
        lost = seen is None or is_external(seen) or failed(seen)
        if member.group not in groups or known.key in accounted or member.name in has_place:
            continue
        if not (lost or member.name in left_behind):
            continue
        there = seen if seen is not None else facts.departed.get(member.name)
        given_up = "" if lost else left_behind[member.name]
        tries = waiting.get(member.name, known.tries if now < known.steady_at else 0)
        place = Slot(member.group, 0, failures=known.failures, tries=tries, known=known)
        found.append(End(member.name, known.key, there, place, given_up, was_member=member.name not in coming))
    return found


def newcomers_that_ended(facts: Facts, memory: Remembered, overdue: Mapping[str, str]) -> list[End]:
    """Workers that were no members yet: those for which a place waits, and others that ended by their own fault. Those
    that are `overdue`, by name, are given up for the reasons there.
    """
    members = {worker.name for worker in facts.members if worker is not None}
    if len(members) == len(facts.workers):
        return []
    places = {(place.group, place.index): place for place in memory.pending}
    accounted = {place.key for place in memory.pending}
    too_old = {worker.name for worker in newcomers(facts, memory) if _speaks_older(facts, worker)}
    found = []
    for worker in facts.workers:
        if worker.name in members or (key := key_of(worker.uid)) in accounted:
            continue
        place = places.get((worker.group, worker.index))
        given_up = TOO_OLD if worker.name in too_old else overdue.get(worker.name, "")
        taken_away = is_external(worker) or _left_in_order(worker)
        if given_up or (failed(worker) and not taken_away) or (place is not None and (ended(worker) or taken_away)):
            found.append(End(worker.name, key, worker, place or Slot(worker.group, worker.index), given_up))
    return found


def _speaks_older(facts: Facts, worker: WorkerSeen) -> bool:
    metrics = worker.metrics
    is_warm = facts.states[worker.name] is WorkerState.WARM
    return is_warm and metrics is not None and metrics.protocol < MEMBERS_MAY_END


def _left_in_order(worker: WorkerSeen) -> bool:
    """Whether a worker has ended that had trained, and was a member no more."""
    return worker.exit_code == 0 and (worker.step > 0 or bool(worker.message.strip()))


def may_show(why: str, patience_seconds: float) -> bool:
    """Whether it may show later that an end is nobody's fault, from why it is one and the patience of its rule."""
    return patience_seconds > 0 or _is_cut_off(why)


def keeps_pod(memory: Remembered, worker: WorkerSeen) -> bool:
    """Whether a worker that ended may still show who asked it to, so that its pod stays."""
    return any(
        place.blame_deferred_at > 0 and place.key == key_of(worker.uid) and not _is_cut_off(place.why)
        for place in memory.pending
    )


def taken_in(job: Job, facts: Facts, memory: Remembered, now: float) -> tuple[Remembered, tuple[Event, ...], str]:
    """The memory in which ends count of which nothing can show any more, and do not of which something has; events of
    the latter; and why the job fails for the former, in words, empty if it does not.
    """
    events: list[Event] = []
    there = {key_of(worker.uid): worker for worker in facts.workers} if memory.pending else {}
    for place in [place for place in memory.pending if place.blame_deferred_at > 0]:
        worker = there.get(place.key)
        shown = _has_shown(place, worker)
        if shown is None and 0 <= now - place.blame_deferred_at < EVIDENCE_SECONDS:
            continue
        memory, known = _settled(job, facts, memory, place, counts=not shown)
        if not shown and is_given_up(job, known) and known.trained:
            return memory, tuple(events), _told(place)
        if shown and _is_cut_off(place.why) and worker is not None:
            told = f"{described_end(worker)}, so its end does not count"
            events.append(Event("Normal", Incident.WORKER_DISRUPTED.value, told[:LONGEST_MESSAGE]))
    return memory, tuple(events), ""


def _has_shown(place: Slot, worker: WorkerSeen | None) -> bool | None:
    """Whether it is sure by now that its end is nobody's fault, or that it is; None: not yet.

    Who deletes a member that answers nobody is the operator itself, so that only its node shows anything. Where it
    ends by it, or goes, its machine works.
    """
    if _is_cut_off(place.why):
        if worker is not None and worker.node_lost:
            return True
        return False if worker is None or ended(worker) else None
    return True if worker is None or is_external(worker) else None


def _settled(job: Job, facts: Facts, memory: Remembered, place: Slot, *, counts: bool) -> tuple[Remembered, Slot]:
    """The memory in which nothing more is awaited of a place, and that place."""
    known = replace(
        place,
        blame_deferred_at=0.0,
        failures=min(place.failures + counts, MOST_FAILURES),
        tries=max(place.tries - counts, 0),
    )
    rows, successor = memory.workers, worker_name(job.name, place.group, place.index)
    if counts and facts.plan is not None:
        rows = tuple(
            row._replace(failures=min(row.failures + 1, MOST_FAILURES)) if member.name == successor else row
            for member, row in zip(facts.plan.members, members_memory(memory, facts.plan), strict=True)
        )
    pending = tuple(known if each is place else each for each in memory.pending)
    return replace(memory, pending=pending, workers=rows), known


def _told(place: Slot) -> str:
    if _is_cut_off(place.why):
        return f"{place.replaces} {CUT_OFF}"
    return f"{place.replaces} was asked to stop, and nobody shows who asked"


def _is_cut_off(why: str) -> bool:
    return why.endswith(CUT_OFF)


WORKER_GIVEN_UP = "WorkerGivenUp"
"""That no other worker is created in a place, since none has come to train there."""

NOBODYS_FAULT = frozenset({Incident.WORKER_DISRUPTED, Incident.WORKER_VANISHED})


@dataclass(frozen=True, slots=True)
class Accounted:
    """After the ends of workers: the memory with their places, and events. `decided`: the job ends or starts again."""

    memory: Remembered
    events: tuple[Event, ...] = ()
    decided: tuple[Decision, Remembered] | None = None


def after_ends(
    job: Job,
    facts: Facts,
    memory: Remembered,
    now: float,
    *,
    left_behind: Mapping[str, str],
    back: Sequence[Returning] = (),
) -> Accounted:
    """Take in who has ended since the last look, or was `left_behind`, by name and with why. Newcomers of stragglers
    that are `back` leave no place.
    """
    memory = replace(memory, pending=_still_pending(job, facts, memory))
    memory, shown, enough = taken_in(job, facts, memory, now)
    if enough:
        return _enough(job, facts, memory, now, enough)
    ends, smaller = members_that_ended(job, facts, memory, left_behind, {each.newcomer for each in back}, now=now), ""
    if any(end.seen is not None and end.seen.out_of_memory for end in ends):
        memory, smaller = after_out_of_memory(job, facts, memory, outsiders(facts, memory))
    learned = carried_on(job, memory, facts.plan) if ends and facts.plan is not None else {}
    ends = [replace(end, place=replace(end.place, known=learned[end.name])) for end in ends]
    said: dict[Incident, list[str]] = {}
    given_up: list[Event] = []
    late = overdue(job, facts, memory, now)
    for end in (*ends, *newcomers_that_ended(facts, memory, late)):
        if end.raised_at is not None and end.seen is not None and left_its_loop(end.seen):
            return _answered(job, facts, memory, now, incident=Incident.SCRIPT_FAILED, message=end.described)
        if end.raised_at is not None and end.raised_at <= memory.budget.script_error_step:
            why = f"the script failed at step {end.raised_at} again, in another worker: {end.described}"
            return _answered(job, facts, memory, now, incident=Incident.SCRIPT_FAILED, message=why)
        rule = rule_of(job, end.incident)
        if rule.response is not Response.REFILL:
            return _answered(job, facts, memory, now, incident=end.incident, message=end.described)
        asks = rule.counts and may_show(end.described, rule.patience_seconds)
        place = _next_place(job, facts, memory, end, now=now, counts=rule.counts and not asks)
        if is_given_up(job, place):
            if end.was_member:
                return _enough(job, facts, memory, now, end.described)
            given_up.append(_given_up(job, end.described))
        others = tuple(each for each in memory.pending if worker_name(job.name, *each.identity) != end.name)
        if len(others) >= MOST_PENDING:
            others = _with_room(others, place)
        if len(others) < MOST_PENDING:
            place = replace(place, blame_deferred_at=now if asks else 0.0)
            memory = replace(memory, pending=(*others, place))
        elif rule.counts and end.was_member:
            message = f"{end.described}; more than {MOST_PENDING} places lack their workers"
            everybody = replace(job, failure_policy="RestartAll")
            return _answered(everybody, facts, memory, now, incident=Incident.WORKER_FAILED, message=message)
        if end.raised_at is not None:
            memory = replace(memory, budget=memory.budget.raised_at(end.raised_at))
        said.setdefault(end.incident, []).append(end.described)
    events = []
    for incident, each in said.items():
        why = first_few(each)
        if smaller and incident is Incident.WORKER_FAILED:
            why = f"{why}; {smaller}"
        events.append(
            Event("Normal" if incident in NOBODYS_FAULT else "Warning", incident.value, why[:LONGEST_MESSAGE])
        )
    return Accounted(memory, (*shown, *events, *given_up))


def _still_pending(job: Job, facts: Facts, memory: Remembered) -> tuple[Slot, ...]:
    """Without places that have a member again which trains, and those of groups that the job does not have."""
    if not memory.pending:
        return ()
    groups, coming = {group.name for group in job.groups}, outsiders(facts, memory)
    members = {
        (worker.group, worker.index) for worker in facts.members if worker is not None and worker.name not in coming
    }
    return tuple(
        place
        for place in memory.pending
        if place.group in groups and (place.blame_deferred_at > 0 or (place.group, place.index) not in members)
    )


def _next_place(job: Job, facts: Facts, memory: Remembered, end: End, *, now: float, counts: bool) -> Slot:
    """The place of a worker that ended, for the next one."""
    before = (place for place in memory.pending if worker_name(job.name, place.group, place.index) == end.name)
    # Nobody has shown so far who asked the one before to stop.
    unexplained = any(place.blame_deferred_at > 0 for place in before)
    failures = min(end.place.failures + counts + unexplained, MOST_FAILURES)
    tries = min(end.place.tries + (not counts), MOST_FAILURES)
    return Slot(
        group=end.place.group,
        index=free_index(job, facts, memory, end.place.group),
        why=as_text(end.described, LONGEST_WHY),
        replaces=end.name,
        key=end.key,
        failures=failures,
        tries=tries,
        due_at=now + delay_seconds(failures + tries),
        known=_without_its_worker(end.place.known),
        trained=end.was_member,
    )


def _with_room(places: tuple[Slot, ...], coming: Slot) -> tuple[Slot, ...]:
    """The places without one, so that there is room for another, if one of them is a lesser loss: rather one whose
    worker starts for the first time, and of which nothing is known, than one that counts for nothing yet.
    """
    lesser = [place for place in places if place.failures == 0 and place.blame_deferred_at == 0]
    unknown = [place for place in lesser if not place.replaces]
    if not unknown and (coming.failures == 0 or coming.trained):
        return places
    out = next(iter(unknown or lesser), None)
    return tuple(place for place in places if place is not out)


def _given_up(job: Job, message: str) -> Event:
    plural = "" if job.backoff_limit == 1 else "s"
    why = f"{message} (after {job.backoff_limit} replacement{plural} in its place, which is given up; the others go on)"
    return Event("Warning", WORKER_GIVEN_UP, why[:LONGEST_MESSAGE])


def _without_its_worker(known: RememberedWorker) -> RememberedWorker:
    """What is known of a place, but not of the worker that had it."""
    unmeasured = known.unmeasured()._replace(evidence=Evidence(), resource_use=ResourceUse(), key="")
    return unmeasured._replace(left_out=0, failures=0, tries=0, steady_at=0)


def _enough(job: Job, facts: Facts, memory: Remembered, now: float, message: str) -> Accounted:
    """A place has lost one worker more than it may."""
    plural = "" if job.backoff_limit == 1 else "s"
    why = f"{message} (after {job.backoff_limit} replacement{plural} in its place)"
    final, memory = ending(job, facts, memory, now, outcome="Failed", code="BackoffLimitExceeded", message=why)
    cause = Event("Warning", Incident.WORKER_FAILED.value, message[:LONGEST_MESSAGE])
    return Accounted(memory, decided=(replace(final, events=(cause, *final.events)), memory))


def _answered(job: Job, facts: Facts, memory: Remembered, now: float, *, incident: Incident, message: str) -> Accounted:
    return Accounted(memory, decided=respond(job, facts, memory, now, incident=incident, message=message))
