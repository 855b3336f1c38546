"""Workers that are to join and are not ready: since when, how long that may take, and what is reported of them.

Those that train go on meanwhile, so nothing here ends or restarts a job. A place of which no worker has come after as
many tries as any place has is given up: the job goes on with fewer workers, and says so, until that place is not wanted
for a while.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from heterotrain_operator.core.facts import SETTLE_SECONDS, Facts, listed, worker_name
from heterotrain_operator.core.lifecycle.membership import newcomers
from heterotrain_operator.core.lifecycle.placement import INSUFFICIENT_CAPACITY, placed
from heterotrain_operator.core.lifecycle.readiness import blind, unready, why_unready
from heterotrain_operator.core.memory.members import MOST_PENDING, Pending
from heterotrain_operator.core.model import Job, WorkerSeen, WorkerState
from heterotrain_operator.core.state import Memory

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


def with_arrivals(facts: Facts, memory: Memory, now: float) -> Memory:
    """The memory in which every newcomer has a place, as far as there is room, so that it is known since when it is
    due; the time in which it has found no node does not count.
    """
    coming = {(worker.group, worker.index): worker for worker in newcomers(facts, memory)}
    if not coming:
        return memory
    places = [_with_node(place, coming.get(place.identity), now) for place in memory.pending]
    known = {place.identity for place in places}
    fresh = [
        Pending(worker.group, worker.index, due_at=now + SETTLE_SECONDS, unplaced=not placed(worker))
        for identity, worker in coming.items()
        if identity not in known
    ]
    pending = (*places, *fresh[: max(MOST_PENDING - len(places), 0)])
    return memory if pending == memory.pending else replace(memory, pending=pending)


def overdue(job: Job, facts: Facts, memory: Memory, now: float) -> dict[str, str]:
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


def is_given_up(job: Job, place: Pending) -> bool:
    """Whether no other worker is created for a place: as many have ended as may."""
    return place.failures > job.backoff_limit


def lacking(job: Job, facts: Facts, memory: Memory, now: float) -> Lacking:
    """What is to be reported of newcomers that are not ready, and of places whose workers are not there."""
    there = {(worker.group, worker.index) for worker in facts.workers}
    coming = newcomers(facts, memory)
    waiting = unready(coming, facts.states)
    empty = [place for place in memory.pending if place.identity not in there]
    waiting += [f"{_name(job, place)} ({_why_empty(job, facts, place)})" for place in empty]
    awaited = {_name(job, place) for place in empty}
    refused = (name for name in facts.refused if name not in awaited and name not in facts.states)
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


def _with_node(place: Pending, worker: WorkerSeen | None, now: float) -> Pending:
    """The place once its worker has found a node, or while it has not."""
    if worker is None or placed(worker) is not place.unplaced:
        return place
    if place.unplaced:
        return replace(place, unplaced=False, due_at=now + SETTLE_SECONDS)
    return replace(place, unplaced=True)


def _without_node(job: Job, coming: Sequence[WorkerSeen], memory: Memory, now: float) -> list[str]:
    """Newcomers that have found no node for longer than workers may take to start, each with the reason; those that
    somebody holds back by a gate are not meant.
    """
    since = {place.identity: place.due_at - SETTLE_SECONDS for place in memory.pending if place.unplaced}
    return [
        f"{worker.name} ({why_unready(worker)})"
        for worker in coming
        if not worker.gated and now - since.get((worker.group, worker.index), now) > job.startup_deadline_seconds
    ]


def _name(job: Job, place: Pending) -> str:
    return worker_name(job.name, place.group, place.index)


def _why_empty(job: Job, facts: Facts, place: Pending) -> str:
    if is_given_up(job, place):
        return _trouble(job, place)
    refused = facts.refused.get(_name(job, place))
    if refused:
        return refused
    return f"in place of {place.replaces}" if place.replaces else "not there"


def _trouble(job: Job, place: Pending) -> str:
    """What has become of those that were to have a place."""
    plural = "try" if place.failures == 1 else "tries"
    done = "given up after" if is_given_up(job, place) else "not there after"
    return f"{_name(job, place)}: {done} {place.failures} {plural}, the last: {place.why}"
