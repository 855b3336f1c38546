"""Whom a job lacks whose members train on without them: workers to create now, and newcomers that are too many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice

from heterotrain_operator.core.facts import SETTLE_SECONDS, Facts, listed, worker_name
from heterotrain_operator.core.lifecycle.arrivals import is_given_up
from heterotrain_operator.core.lifecycle.following import stayers
from heterotrain_operator.core.lifecycle.membership import newcomers
from heterotrain_operator.core.lifecycle.returning import Returning
from heterotrain_operator.core.memory.members import MOST_PENDING, Pending
from heterotrain_operator.core.memory.replacements import Replacement
from heterotrain_operator.core.model import Event, Job, WorkerKey, WorkerSeen
from heterotrain_operator.core.state import Memory


@dataclass(frozen=True, slots=True)
class Vacancies:
    """Workers to create now, events about them, and newcomers beyond what the job wants."""

    create: tuple[WorkerKey, ...]
    surplus: tuple[WorkerSeen, ...]
    events: tuple[Event, ...]


def vacancies(
    job: Job, facts: Facts, memory: Memory, now: float, *, without: Collection[str], back: Sequence[Returning] = ()
) -> tuple[Vacancies, Memory]:
    """So that every group has its replicas: of members that stay, but for those named in `without`, and of those that
    are `back`, of newcomers, of workers for places that wait, and of others.
    """
    there = (*stayers(facts), *(each.worker for each in back))
    staying = Counter(worker.group for worker in there if worker.name not in without)
    coming = [worker for worker in newcomers(facts, memory) if worker.name not in without]
    # Places that are given up go first where fewer are wanted.
    waiting = sorted(_waiting(facts, memory), key=lambda place: is_given_up(job, place))
    grows = memory.start.pods_created_at is None or now - memory.start.pods_created_at >= SETTLE_SECONDS
    # Else nobody could say how often the next ones have been tried.
    grows = grows and sum(place.failures > 0 for place in memory.pending) < MOST_PENDING
    grown: list[WorkerKey] = []
    surplus: list[WorkerSeen] = []
    dropped: list[Pending] = []
    for group in job.groups:
        mine = sorted((each for each in coming if each.group == group.name), key=lambda each: each.index)
        places = [place for place in waiting if place.group == group.name]
        lacking = group.replicas - staying[group.name] - len(mine) - len(places)
        over = max(-lacking, 0)
        dropped += places[max(len(places) - over, 0) :]
        surplus += mine[max(len(mine) - max(over - len(places), 0), 0) :]
        if lacking > 0 and grows:
            grown += islice(_free(job, facts, memory, group.name), lacking)
    due = [place for place in waiting if place not in dropped and now >= place.due_at and not is_given_up(job, place)]
    again = {id(place) for place in due}
    pending = [
        replace(place, due_at=now + SETTLE_SECONDS) if id(place) in again else place
        for place in memory.pending
        if place not in dropped and all((place.group, place.index) != (each.group, each.index) for each in surplus)
    ]
    start = replace(memory.start, pods_created_at=now) if grown else memory.start
    memory = replace(memory, pending=tuple(pending), start=start)
    keys = [WorkerKey(each.group, each.index, worker_name(job.name, each.group, each.index)) for each in due]
    return Vacancies((*keys, *grown), tuple(surplus), _announced(job, facts, due, grown)), memory


def _waiting(facts: Facts, memory: Memory) -> list[Pending]:
    """Places whose worker is not there."""
    if not memory.pending:
        return []
    there = {(worker.group, worker.index) for worker in facts.workers}
    return [place for place in memory.pending if (place.group, place.index) not in there]


def awaited_keys(job: Job, memory: Memory) -> tuple[WorkerKey, ...]:
    """The workers for which a place waits, and those that are to replace stragglers."""
    waiting: Iterable[Pending | Replacement] = (*memory.pending, *memory.remedies.replacing)
    each = ((place.group, place.index) for place in waiting)
    return tuple(WorkerKey(group, index, worker_name(job.name, group, index)) for group, index in each)


def names_in_use(job: Job, facts: Facts, memory: Memory) -> set[str]:
    """Names that no new worker may have: of pods, of members, and of workers that are created for a place, or to
    replace a straggler.
    """
    members = facts.plan.members if facts.plan is not None else ()
    waiting: Iterable[Pending | Replacement] = (*memory.pending, *memory.remedies.replacing)
    places = (worker_name(job.name, place.group, place.index) for place in waiting)
    return {*facts.names, *(member.name for member in members), *places}


def free_index(job: Job, facts: Facts, memory: Memory, group: str) -> int:
    """The smallest index of the group that a new worker may have."""
    return next(_free(job, facts, memory, group)).index


def new_index(job: Job, facts: Facts, memory: Memory, group: str) -> int:
    """An index of the group beyond all that are there, so that a newcomer is told from those before it by its name."""
    waiting: Iterable[Pending | Replacement] = (*memory.pending, *memory.remedies.replacing)
    last = max((each.index for each in (*facts.workers, *waiting) if each.group == group), default=-1)
    return next(_free(job, facts, memory, group, first=last + 1)).index


def _free(job: Job, facts: Facts, memory: Memory, group: str, *, first: int = 0) -> Iterator[WorkerKey]:
    """Workers of the group that can be created, by index."""
    used = names_in_use(job, facts, memory)
    keys = (WorkerKey(group, index, worker_name(job.name, group, index)) for index in count(first))
    return (key for key in keys if key.name not in used)


def _announced(job: Job, facts: Facts, due: Sequence[Pending], grown: Sequence[WorkerKey]) -> tuple[Event, ...]:
    instead = {worker_name(job.name, place.group, place.index): place.replaces for place in due}
    names = [*instead, *(key.name for key in grown)]
    fresh = [
        f"{name} in place of {instead[name]}" if instead.get(name) else name
        for name in names
        if name not in facts.refused
    ]
    return (Event("Normal", "SuccessfulCreatePod", f"creating {listed(fresh)}"),) if fresh else ()
