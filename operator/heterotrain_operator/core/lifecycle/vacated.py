"""Who has ended, of a group that goes on without: each worker by itself, with what it means for its place.

A member's end is one incident, a newcomer's another only where a place waits for it, or where nobody else is to blame:
others are missing then from a group that has too few workers, and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from heterotrain.contract import MEMBERS_MAY_END
from heterotrain_operator.core.facts import Facts, ended, failed, worker_name
from heterotrain_operator.core.lifecycle.ends import described_end, has_left, is_external, signal_name
from heterotrain_operator.core.lifecycle.following import NOT_FOLLOWED, outsiders, stayers
from heterotrain_operator.core.lifecycle.membership import newcomers
from heterotrain_operator.core.lifecycle.responses import Incident
from heterotrain_operator.core.memory.members import Pending
from heterotrain_operator.core.model import Job, WorkerSeen, WorkerState
from heterotrain_operator.core.state import Memory, members_memory
from heterotrain_operator.core.worker_memory import key_of

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
    place: Pending
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
        if is_external(self.seen) or not ended(self.seen) or has_left(self.seen):
            return Incident.WORKER_DISRUPTED
        return Incident.ASKED_TO_STOP if self.seen.asked_to_stop else Incident.WORKER_FAILED

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
    job: Job, facts: Facts, memory: Memory, left_behind: Mapping[str, str], has_place: Collection[str] = ()
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
    tries = {worker_name(job.name, *place.identity): place.tries for place in memory.pending}
    found = []
    for member, seen, known in zip(facts.plan.members, facts.members, members_memory(memory, facts.plan), strict=True):
        lost = seen is None or is_external(seen) or failed(seen)
        if member.group not in groups or known.key in accounted or member.name in has_place:
            continue
        if not (lost or member.name in left_behind):
            continue
        there = seen if seen is not None else facts.departed.get(member.name)
        given_up = "" if lost else left_behind[member.name]
        place = Pending(member.group, 0, failures=known.failures, tries=tries.get(member.name, 0), known=known)
        found.append(End(member.name, known.key, there, place, given_up, was_member=member.name not in coming))
    return found


def newcomers_that_ended(facts: Facts, memory: Memory, overdue: Mapping[str, str]) -> list[End]:
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
            found.append(End(worker.name, key, worker, place or Pending(worker.group, worker.index), given_up))
    return found


def _speaks_older(facts: Facts, worker: WorkerSeen) -> bool:
    metrics = worker.metrics
    is_warm = facts.states[worker.name] is WorkerState.WARM
    return is_warm and metrics is not None and metrics.protocol < MEMBERS_MAY_END


def _left_in_order(worker: WorkerSeen) -> bool:
    """Whether a worker has ended that had trained, and was a member no more."""
    return worker.exit_code == 0 and (worker.step > 0 or bool(worker.message.strip()))
