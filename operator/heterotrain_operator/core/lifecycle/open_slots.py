"""Whom a job lacks whose members train on without them: who is created, who does not come, and what is said of it.

Those that train go on meanwhile, so nothing here ends or restarts a job. A place of which no worker has come after as
many tries as any place has is given up: the job goes on with fewer workers, and says so, until that place is not wanted
for a while.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice

from heterotrain_operator.core.facts import SETTLE_SECONDS, Facts, listed, worker_name
from heterotrain_operator.core.lifecycle.following import stayers
from heterotrain_operator.core.lifecycle.membership import Returning, newcomers
from heterotrain_operator.core.lifecycle.placement import INSUFFICIENT_CAPACITY, blind, placed, unready, why_unready
from heterotrain_operator.core.model import Event, Job, WorkerKey, WorkerSeen, WorkerState
from heterotrain_operator.core.remembered.members import MOST_PENDING, Slot
from heterotrain_operator.core.remembered.replacements import Replacement
from heterotrain_operator.core.state import Remembered


@dataclass(frozen=True, slots=True)
class Vacancies:
    """Workers to create now, events about them, and newcomers beyond what the job wants."""

    create: tuple[WorkerKey, ...]
    surplus: tuple[WorkerSeen, ...]
    events: tuple[Event, ...]


def open_slots(
    job: Job, facts: Facts, memory: Remembered, now: float, *, without: Collection[str], back: Sequence[Returning] = ()
) -> tuple[Vacancies, Remembered]:
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
    dropped: list[Slot] = []
    for group in job.groups:
        mine = sorted((each for each in coming if each.group == group.name), key=lambda each: each.index)
        places = [place for place in waiting if place.group == group.name]
        short = group.replicas - staying[group.name] - len(mine) - len(places)
        over = max(-short, 0)
        dropped += places[max(len(places) - over, 0) :]
        surplus += mine[max(len(mine) - max(over - len(places), 0), 0) :]
        if short > 0 and grows:
            grown += islice(_free(job, facts, memory, group.name), short)
    due = [place for place in waiting if place not in dropped and now >= place.due_at and not is_given_up(job, place)]
    again = {id(place) for place in due}
    pending = [
        replace(place, due_at=now + SETTLE_SECONDS) if id(place) in again else place
        for place in memory.pending
        if place not in dropped and all((place.group, place.index) != (each.group, each.index) for each in surplus)
    ]
    start = replace(memory.start, pods_created_at=now) if grown else memory.start
    memory = replace(memory, pending=tuple(pending), start=start)
    keys = [_key(job, *each.identity) for each in due]
    return Vacancies((*keys, *grown), tuple(surplus), _announced(job, facts, due, grown)), memory


def _waiting(facts: Facts, memory: Remembered) -> list[Slot]:
    """Places whose worker is not there."""
    if not memory.pending:
        return []
    there = {(worker.group, worker.index) for worker in facts.workers}
    return [place for place in memory.pending if (place.group, place.index) not in there]


def awaited_keys(job: Job, memory: Remembered) -> tuple[WorkerKey, ...]:
    """The workers for which a place waits, and those that are to replace stragglers."""
    return tuple(_key(job, each.group, each.index) for each in _to_come(memory))


def names_in_use(job: Job, facts: Facts, memory: Remembered) -> set[str]:
    """Names that no new worker may have: of pods, of members, and of workers that are created for a place, or to
    replace a straggler.
    """
    members = facts.plan.members if facts.plan is not None else ()
    return {*facts.names, *(each.name for each in members), *(key.name for key in awaited_keys(job, memory))}


def free_index(job: Job, facts: Facts, memory: Remembered, group: str) -> int:
    """The smallest index of the group that a new worker may have."""
    return next(_free(job, facts, memory, group)).index


def new_index(job: Job, facts: Facts, memory: Remembered, group: str) -> int:
    """An index of the group beyond all that are there, so that a newcomer is told from those before it by its name."""
    last = max((each.index for each in (*facts.workers, *_to_come(memory)) if each.group == group), default=-1)
    return next(_free(job, facts, memory, group, first=last + 1)).index


def _free(job: Job, facts: Facts, memory: Remembered, group: str, *, first: int = 0) -> Iterator[WorkerKey]:
    """Workers of the group that can be created, by index."""
    used = names_in_use(job, facts, memory)
    return (key for key in (_key(job, group, index) for index in count(first)) if key.name not in used)


def _to_come(memory: Remembered) -> tuple[Slot | Replacement, ...]:
    """The places that wait for a worker, and the replacements of stragglers that are under way."""
    return (*memory.pending, *memory.remedies.replacing)


def _key(job: Job, group: str, index: int) -> WorkerKey:
    return WorkerKey(group, index, worker_name(job.name, group, index))


def _announced(job: Job, facts: Facts, due: Sequence[Slot], grown: Sequence[WorkerKey]) -> tuple[Event, ...]:
    instead = {_name(job, place): place.replaces for place in due}
    names = [*instead, *(key.name for key in grown)]
    fresh = [
        f"{name} in place of {instead[name]}" if instead.get(name) else name
        for name in names
        if name not in facts.refused
    ]
    return (Event("Normal", "SuccessfulCreatePod", f"creating {listed(fresh)}"),) if fresh else ()


WORKERS_MISSING = "WorkersMissing"
"""Why a job is Degraded that trains with fewer workers than it wants, after some could not start."""


@dataclass(frozen=True, slots=True)
class Lacking:
    """What is reported of workers that are to join and cannot yet: `waiting` for whom and why, and if that is more than
    an ordinary start why the job is Degraded, with the condition's reason; empty if nothing is to be reported.
    """

    waiting: str = ""
    degraded: str = ""
    code: str = ""


NOTHING_LACKS = Lacking()


def with_arrivals(facts: Facts, memory: Remembered, now: float) -> Remembered:
    """The memory in which every newcomer has a place, as far as there is room, so that it is known since when it is
    due; the time in which it has found no node does not count.
    """
    coming = {(worker.group, worker.index): worker for worker in newcomers(facts, memory)}
    if not coming:
        return memory
    places = [_with_node(place, coming.get(place.identity), now) for place in memory.pending]
    known = {place.identity for place in places}
    fresh = [
        Slot(worker.group, worker.index, due_at=now + SETTLE_SECONDS, unplaced=not placed(worker))
        for identity, worker in coming.items()
        if identity not in known
    ]
    pending = (*places, *fresh[: max(MOST_PENDING - len(places), 0)])
    return memory if pending == memory.pending else replace(memory, pending=pending)


def overdue(job: Job, facts: Facts, memory: Remembered, now: float) -> dict[str, str]:
    """Newcomers, by name, that have had a node for longer than workers may take to start, and are not ready; with why.

    Nobody is while the source of metrics is away, since it is not known who is ready.
    """
    since = {
        place.identity: place.due_at - SETTLE_SECONDS
        for place in memory.pending
        if not place.unplaced and now - place.due_at + SETTLE_SECONDS > job.startup_deadline_seconds
    }
    if not since or facts.metrics_problem:
        return {}
    return {
        worker.name: f"was not ready within {job.startup_deadline_seconds:g} s: {why_unready(worker)}"
        for worker in newcomers(facts, memory)
        if (worker.group, worker.index) in since and facts.states[worker.name] is not WorkerState.WARM
    }


def is_given_up(job: Job, place: Slot) -> bool:
    """Whether no other worker is created for a place: as many have ended as may."""
    return place.failures > job.backoff_limit


def lacking(job: Job, facts: Facts, memory: Remembered, now: float) -> Lacking:
    """What is to be reported of newcomers that are not ready, and of places whose workers are not there."""
    there = {(worker.group, worker.index) for worker in facts.workers}
    coming = newcomers(facts, memory)
    waiting = unready(coming, facts.states)
    empty = [place for place in memory.pending if place.identity not in there]
    waiting += [f"{_name(job, place)} ({_why_empty(job, facts, place)})" for place in empty]
    awaited = {_name(job, place) for place in empty}
    present = Counter(worker.group for worker in (*stayers(facts), *coming))
    full = {worker_name(job.name, each.name, 0)[:-1] for each in job.groups if present[each.name] >= each.replicas}
    refused = (
        name
        for name in facts.refused  # which a backend also says of workers that are not wanted any more
        if name not in awaited and name not in facts.states and name.rstrip("0123456789") not in full
    )
    waiting += [f"{name} ({facts.refused[name]})" for name in refused]
    if not waiting:
        return NOTHING_LACKS
    troubled = [place for place in memory.pending if place.failures > 0 and not place.trained]
    text = f"waiting for {listed(waiting)}{blind(facts)}"
    if troubled:
        return Lacking(text, listed([_trouble(job, place) for place in troubled]), WORKERS_MISSING)
    homeless = _without_node(job, coming, memory, now)
    if homeless:
        return Lacking(
            text,
            f"no place was found within {job.startup_deadline_seconds:g} s for {listed(homeless)}",
            INSUFFICIENT_CAPACITY,
        )
    return Lacking(text)


def _with_node(place: Slot, worker: WorkerSeen | None, now: float) -> Slot:
    """The place once its worker has found a node, or while it has not."""
    if worker is None or placed(worker) is not place.unplaced:
        return place
    if place.unplaced:
        return replace(place, unplaced=False, due_at=now + SETTLE_SECONDS)
    return replace(place, unplaced=True)


def _without_node(job: Job, coming: Sequence[WorkerSeen], memory: Remembered, now: float) -> list[str]:
    """Newcomers that have found no node for longer than workers may take to start, each with the reason; those that
    somebody holds back by a gate are not meant.
    """
    since = {place.identity: place.due_at - SETTLE_SECONDS for place in memory.pending if place.unplaced}
    return [
        f"{worker.name} ({why_unready(worker)})"
        for worker in coming
        if not worker.gated and now - since.get((worker.group, worker.index), now) > job.startup_deadline_seconds
    ]


def _name(job: Job, place: Slot) -> str:
    return worker_name(job.name, place.group, place.index)


def _why_empty(job: Job, facts: Facts, place: Slot) -> str:
    if is_given_up(job, place):
        return _trouble(job, place)
    refused = facts.refused.get(_name(job, place))
    if refused:
        return refused
    return f"in place of {place.replaces}" if place.replaces else "not there"


def _trouble(job: Job, place: Slot) -> str:
    """What has become of those that were to have a place."""
    plural = "try" if place.failures == 1 else "tries"
    done = "given up after" if is_given_up(job, place) else "not there after"
    return f"{_name(job, place)}: {done} {place.failures} {plural}, the last: {place.why}"
