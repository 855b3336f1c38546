"""Places whose workers have ended: who is created in their stead, why, and when it is enough.

An end counts towards its place's backoff limit where nobody else is to blame. A place is remembered until another
worker has it, and then with that worker, and what was known of it goes on, too. New workers have indices of their own,
so that none waits until the pod before it is deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from heterotrain.foreign import as_text
from heterotrain_operator.core.batching.bounds import after_out_of_memory
from heterotrain_operator.core.facts import Facts, worker_name
from heterotrain_operator.core.lifecycle import late_evidence
from heterotrain_operator.core.lifecycle.arrivals import is_given_up, overdue
from heterotrain_operator.core.lifecycle.ends import first_few
from heterotrain_operator.core.lifecycle.following import outsiders
from heterotrain_operator.core.lifecycle.publishing import carried_on
from heterotrain_operator.core.lifecycle.responses import Incident, Response, respond, rule_of
from heterotrain_operator.core.lifecycle.restarts import delay_seconds
from heterotrain_operator.core.lifecycle.returning import Returning
from heterotrain_operator.core.lifecycle.vacancies import free_index
from heterotrain_operator.core.lifecycle.vacated import End, members_that_ended, newcomers_that_ended
from heterotrain_operator.core.memory.members import LONGEST_WHY, MOST_FAILURES, MOST_PENDING, Pending
from heterotrain_operator.core.model import Decision, Event, Job
from heterotrain_operator.core.outcomes import LONGEST_MESSAGE, ending
from heterotrain_operator.core.prediction.resource_use import ResourceUse
from heterotrain_operator.core.state import Memory
from heterotrain_operator.core.stragglers.evidence import Evidence
from heterotrain_operator.core.worker_memory import WorkerMemory

WORKER_GIVEN_UP = "WorkerGivenUp"
"""That no other worker is created in a place, since none has come to train there."""

NOBODYS_FAULT = frozenset({Incident.WORKER_DISRUPTED, Incident.WORKER_VANISHED})


@dataclass(frozen=True, slots=True)
class Accounted:
    """After the ends of workers: the memory with their places, and events. `decided`: the job ends or starts again."""

    memory: Memory
    events: tuple[Event, ...] = ()
    decided: tuple[Decision, Memory] | None = None


def after_ends(
    job: Job,
    facts: Facts,
    memory: Memory,
    now: float,
    *,
    left_behind: Mapping[str, str],
    back: Sequence[Returning] = (),
) -> Accounted:
    """Take in who has ended since the last look, or was `left_behind`, by name and with why. Newcomers of stragglers
    that are `back` leave no place.
    """
    memory = replace(memory, pending=_still_pending(job, facts, memory))
    memory, shown, enough = late_evidence.taken_in(job, facts, memory, now)
    if enough:
        return _enough(job, facts, memory, now, enough)
    ends, smaller = members_that_ended(job, facts, memory, left_behind, {each.newcomer for each in back}), ""
    if any(end.seen is not None and end.seen.out_of_memory for end in ends):
        memory, smaller = after_out_of_memory(job, facts, memory, outsiders(facts, memory))
    learned = carried_on(job, memory, facts.plan) if ends and facts.plan is not None else {}
    ends = [replace(end, place=replace(end.place, known=learned[end.name])) for end in ends]
    said: dict[Incident, list[str]] = {}
    given_up: list[Event] = []
    late = overdue(job, facts, memory, now)
    for end in (*ends, *newcomers_that_ended(facts, memory, late)):
        if end.raised_at is not None and end.raised_at <= memory.budget.script_error_step:
            why = f"the script raised at step {end.raised_at} again, in another worker: {end.described}"
            return _answered(job, facts, memory, now, incident=Incident.SCRIPT_FAILED, message=why)
        rule = rule_of(job, end.incident)
        if rule.response is not Response.REFILL:
            return _answered(job, facts, memory, now, incident=end.incident, message=end.described)
        asks = rule.counts and late_evidence.may_show(end.described, rule.patience_seconds)
        place = _next_place(job, facts, memory, end, now=now, counts=rule.counts and not asks)
        if is_given_up(job, place):
            if end.was_member:
                return _enough(job, facts, memory, now, end.described)
            given_up.append(_given_up(job, end.described))
        others = tuple(each for each in memory.pending if worker_name(job.name, *each.identity) != end.name)
        if len(others) >= MOST_PENDING:
            others = _with_room(others, place)
        if len(others) < MOST_PENDING:
            place = replace(place, asked_at=now if asks else 0.0)
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


def _still_pending(job: Job, facts: Facts, memory: Memory) -> tuple[Pending, ...]:
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
        if place.group in groups and (place.asked_at > 0 or (place.group, place.index) not in members)
    )


def _next_place(job: Job, facts: Facts, memory: Memory, end: End, *, now: float, counts: bool) -> Pending:
    """The place of a worker that ended, for the next one."""
    before = (place for place in memory.pending if worker_name(job.name, place.group, place.index) == end.name)
    # Nobody has shown so far who asked the one before to stop.
    unexplained = any(place.asked_at > 0 for place in before)
    failures = min(end.place.failures + counts + unexplained, MOST_FAILURES)
    tries = min(end.place.tries + (not counts), MOST_FAILURES)
    return Pending(
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


def _with_room(places: tuple[Pending, ...], coming: Pending) -> tuple[Pending, ...]:
    """The places without one, so that there is room for another, if one of them is a lesser loss: rather one whose
    worker starts for the first time, and of which nothing is known, than one that counts for nothing yet.
    """
    lesser = [place for place in places if place.failures == 0 and place.asked_at == 0]
    unknown = [place for place in lesser if not place.replaces]
    if not unknown and (coming.failures == 0 or coming.trained):
        return places
    out = next(iter(unknown or lesser), None)
    return tuple(place for place in places if place is not out)


def _given_up(job: Job, message: str) -> Event:
    plural = "" if job.backoff_limit == 1 else "s"
    why = f"{message} (after {job.backoff_limit} replacement{plural} in its place, which is given up; the others go on)"
    return Event("Warning", WORKER_GIVEN_UP, why[:LONGEST_MESSAGE])


def _without_its_worker(known: WorkerMemory) -> WorkerMemory:
    """What is known of a place, but not of the worker that had it."""
    return known.unmeasured()._replace(evidence=Evidence(), resource_use=ResourceUse(), key="", left_out=0, failures=0)


def _enough(job: Job, facts: Facts, memory: Memory, now: float, message: str) -> Accounted:
    """A place has lost one worker more than it may."""
    plural = "" if job.backoff_limit == 1 else "s"
    why = f"{message} (after {job.backoff_limit} replacement{plural} in its place)"
    final, memory = ending(job, facts, memory, now, outcome="Failed", code="BackoffLimitExceeded", message=why)
    cause = Event("Warning", Incident.WORKER_FAILED.value, message[:LONGEST_MESSAGE])
    return Accounted(memory, decided=(replace(final, events=(cause, *final.events)), memory))


def _answered(job: Job, facts: Facts, memory: Memory, now: float, *, incident: Incident, message: str) -> Accounted:
    return Accounted(memory, decided=respond(job, facts, memory, now, incident=incident, message=message))
