"""Ends of which it may show later that nobody is to blame: of workers that say that they were asked to stop, and of
members that answer nobody.

Such a worker is replaced at once. Its end counts towards its place's backoff limit as soon as it is sure that nothing
will show, and in any case once the patience is over.
"""

from __future__ import annotations

from dataclasses import replace

from heterotrain_operator.core.facts import Facts, ended, worker_name
from heterotrain_operator.core.lifecycle.arrivals import is_given_up
from heterotrain_operator.core.lifecycle.ends import described_end, is_external
from heterotrain_operator.core.lifecycle.following import CUT_OFF
from heterotrain_operator.core.lifecycle.responses import EVIDENCE_SECONDS, Incident
from heterotrain_operator.core.memory.members import MOST_FAILURES, Pending
from heterotrain_operator.core.model import Event, Job, WorkerSeen
from heterotrain_operator.core.outcomes import LONGEST_MESSAGE
from heterotrain_operator.core.state import Memory, members_memory
from heterotrain_operator.core.worker_memory import key_of


def may_show(why: str, patience_seconds: float) -> bool:
    """Whether it may show later that an end is nobody's fault, from why it is one and the patience of its rule."""
    return patience_seconds > 0 or _is_cut_off(why)


def keeps_pod(memory: Memory, worker: WorkerSeen) -> bool:
    """Whether a worker that ended may still show who asked it to, so that its pod stays."""
    return any(
        place.asked_at > 0 and place.key == key_of(worker.uid) and not _is_cut_off(place.why)
        for place in memory.pending
    )


def taken_in(job: Job, facts: Facts, memory: Memory, now: float) -> tuple[Memory, tuple[Event, ...], str]:
    """The memory in which ends count of which nothing can show any more, and do not of which something has; events of
    the latter; and why the job fails for the former, in words, empty if it does not.
    """
    events: list[Event] = []
    there = {key_of(worker.uid): worker for worker in facts.workers} if memory.pending else {}
    for place in [place for place in memory.pending if place.asked_at > 0]:
        worker = there.get(place.key)
        shown = _has_shown(place, worker)
        if shown is None and 0 <= now - place.asked_at < EVIDENCE_SECONDS:
            continue
        memory, known = _settled(job, facts, memory, place, counts=not shown)
        if not shown and is_given_up(job, known) and known.trained:
            return memory, tuple(events), _told(place)
        if shown and _is_cut_off(place.why) and worker is not None:
            told = f"{described_end(worker)}, so its end does not count"
            events.append(Event("Normal", Incident.WORKER_DISRUPTED.value, told[:LONGEST_MESSAGE]))
    return memory, tuple(events), ""


def _has_shown(place: Pending, worker: WorkerSeen | None) -> bool | None:
    """Whether it is sure by now that its end is nobody's fault, or that it is; None: not yet.

    Who deletes a member that answers nobody is the operator itself, so that only its node shows anything. Where it
    ends by it, or goes, its machine works.
    """
    if _is_cut_off(place.why):
        if worker is not None and worker.node_lost:
            return True
        return False if worker is None or ended(worker) else None
    return True if worker is None or is_external(worker) else None


def _settled(job: Job, facts: Facts, memory: Memory, place: Pending, *, counts: bool) -> tuple[Memory, Pending]:
    """The memory in which nothing more is awaited of a place, and that place."""
    known = replace(
        place, asked_at=0.0, failures=min(place.failures + counts, MOST_FAILURES), tries=max(place.tries - counts, 0)
    )
    rows, successor = memory.workers, worker_name(job.name, place.group, place.index)
    if counts and facts.plan is not None:
        rows = tuple(
            row._replace(failures=min(row.failures + 1, MOST_FAILURES)) if member.name == successor else row
            for member, row in zip(facts.plan.members, members_memory(memory, facts.plan), strict=True)
        )
    pending = tuple(known if each is place else each for each in memory.pending)
    return replace(memory, pending=pending, workers=rows), known


def _told(place: Pending) -> str:
    if _is_cut_off(place.why):
        return f"{place.replaces} {CUT_OFF}"
    return f"{place.replaces} was asked to stop, and nobody shows who asked"


def _is_cut_off(why: str) -> bool:
    return why.endswith(CUT_OFF)
