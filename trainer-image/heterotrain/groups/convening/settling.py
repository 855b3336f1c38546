"""What a convener makes of those who have met: wait, hold, or form the next attempt; pure, without torch or I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from heterotrain.groups.convening.leases import Leases
from heterotrain.groups.convening.protocol import Form, Meet, PlanShown
from heterotrain.groups.convening.roster import Number, Roster, Standing, joint

_GAP = 0.5
"""Of a silence: where something comes from a peer again after so long, something has to come once more."""

_CONFIRMED, _PATIENCE = 0.25, 0.8
"""Beats after which it is, and for which it is waited for; it is called five times in each."""

Split = Callable[[tuple[str, ...]], str]
"""The plan of these members, in their order, as a document: the global batch stays what it is."""


@dataclass(frozen=True, slots=True)
class Met:
    """A `Meet` that came `at` this time of the convener's clock."""

    meet: Meet
    at: float


@dataclass(frozen=True, slots=True)
class Attendance:
    """What a convener decides on: those who met under `number`, itself among them, and what it knows beside that."""

    me: str
    number: Number
    met: Mapping[str, Met]
    leases: Leases
    since: float  # when it began to listen, or was late itself
    away: bool  # it was itself away for so long that its word alone counts for nothing
    plan: PlanShown | None
    silence_seconds: float
    split: Split
    all_needed: bool = False  # nobody may be left out
    returned: Mapping[str, float] = field(default_factory=dict)  # when peers spoke again after a long gap
    beat_seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Waits:
    """Not settled: these may still come, or `until` this time somebody has promised to form nothing without another."""

    missing: tuple[str, ...]
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Holds:
    """Settled, but those who are here must not form an attempt without some of these."""

    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """Nobody who lives has the state."""


@dataclass(frozen=True, slots=True)
class Out:
    """Those who met know of a newer complete attempt, which leaves the convener out."""

    by: Roster


Verdict = Waits | Holds | Lost | Out | Form


def has_returned(at: float, before: float | None, silence_seconds: float) -> bool:
    """Whether a peer that spoke `before` this the last time was gone for so long that it may be again."""
    return before is not None and at - before > _GAP * silence_seconds


def is_doubtful(uid: str, returned: Mapping[str, float], leases: Leases, beat_seconds: float) -> bool:
    """Whether from a peer that was gone something came in one moment alone since then, as happens where its network
    comes and goes. Whoever forms groups with it waits until they fail, and then it may be there for a moment again."""
    at = returned.get(uid)
    return at is not None and leases.received_at.get(uid, at) - at < _CONFIRMED * beat_seconds


def doubtful(meeting: Attendance) -> tuple[str, ...]:
    """Those who met, and from whom something has to come once more before they count."""
    if meeting.all_needed:
        return ()
    return tuple(
        uid
        for uid in meeting.met
        if uid != meeting.me and is_doubtful(uid, meeting.returned, meeting.leases, meeting.beat_seconds)
    )


def known_to(meeting: Attendance) -> Standing:
    """What those who met know together of the job's attempts."""
    meets = [each.meet for each in meeting.met.values()]
    announced = {uid: met.meet.announced for uid, met in meeting.met.items() if met.meet.number == meeting.number}
    return joint((meet.standing for meet in meets), announced)


def settle(meeting: Attendance, now: float) -> Verdict:
    """What to do now. See `machine.py` for the rules."""
    known = known_to(meeting)
    if known.formed is not None and meeting.me not in known.everyone:
        return Out(known.formed)
    ready = {uid: each.meet for uid, each in meeting.met.items() if each.meet.number == meeting.number}
    evicted = meeting.plan.evicted if meeting.plan is not None else frozenset()
    doubted = frozenset(doubtful(meeting))
    since = now - _PATIENCE * meeting.beat_seconds
    unsure = tuple(uid for uid in ready if uid in doubted and meeting.returned[uid] > since)
    ready = {uid: meet for uid, meet in ready.items() if uid not in doubted or meeting.returned[uid] > since}
    refused = frozenset(meeting.leases.refused).union(*(meet.refused for meet in ready.values()))
    missing = tuple(uid for uid in known.everyone if uid not in ready)
    expected = tuple(
        uid
        for uid in missing
        if uid not in refused
        and uid not in evicted
        and uid not in doubted
        and not meeting.leases.is_silent(uid, now, meeting.since, meeting.silence_seconds)
    )
    if expected or unsure:
        return Waits((*expected, *unsure))
    if missing and meeting.all_needed:
        return Holds(missing)
    present = tuple(uid for uid in known.everyone if uid in ready)
    if not set(missing) <= evicted and not any(ready[uid].begun for uid in present):
        return Holds(missing)  # the job's first attempt needs all whom the plan names
    ended, newcomers = _seen_ended(known, meeting)
    silent_newcomers = tuple(uid for uid in newcomers if uid not in ready and uid not in refused)
    ended = frozenset() if silent_newcomers else ended
    staying = tuple(uid for uid in present if meeting.all_needed or not ready[uid].leaving)
    for members in dict.fromkeys((staying, present)):
        if any(ready[uid].has_state for uid in members) and _may_form(members, known, ready, meeting, ended):
            leaving = frozenset(uid for uid in present if uid not in members)
            return _formed(members, known, meeting, refused | evicted | leaving, now)
    gone = evicted | refused if _may_form(present, known, ready, meeting, ended) else ended
    is_lost = not any(ready[uid].has_state for uid in present) and all(uid in gone for uid in missing)
    return Lost() if is_lost else Holds((*missing, *silent_newcomers))


def is_only_one(me: str, known: Standing, leases: Leases) -> bool:
    """Whether no other member of the complete attempt can have gone on without this worker: there is none, or all are
    proven to have ended before they could."""
    return known.formed is not None and all(uid == me or uid in leases.proven for uid in known.formed.members)


def _seen_ended(known: Standing, meeting: Attendance) -> tuple[frozenset[str], tuple[str, ...]]:
    """Who has ended by the word of a plan that came after the attempts known here, and whom it names beside theirs.

    The latter may have trained with the former in an attempt not known here, so the word counts only once they have
    met, and only under a number that such an attempt cannot have had.
    """
    plan = meeting.plan
    if plan is None or known.formed is None or not plan.evicted:
        return frozenset(), ()
    if known.formed.number.generation >= plan.generation or meeting.number < Number.by_word_of(plan.generation):
        return frozenset(), ()
    return plan.evicted, tuple(uid for uid in plan.members if uid not in known.everyone)


def _may_form(
    members: tuple[str, ...],
    known: Standing,
    ready: Mapping[str, Meet],
    meeting: Attendance,
    ended: frozenset[str],
) -> bool:
    if members == (meeting.me,) and meeting.away and not is_only_one(meeting.me, known, meeting.leases):
        return False
    proven = frozenset[str]().union(*(ready[uid].proven for uid in members if not ready[uid].leaving))
    return known.allows(frozenset(members), proven, ended)


def _formed(
    members: tuple[str, ...], known: Standing, meeting: Attendance, excused: frozenset[str], now: float
) -> Waits | Form:
    """The attempt of these members, unless one of them is still bound to somebody who is left out."""
    bound = [
        (uid, meeting.met[member].at + seconds)
        for member in members
        for uid, seconds in meeting.met[member].meet.owes
        if uid not in members and uid not in excused and meeting.met[member].at + seconds > now
    ]
    if bound:
        return Waits(tuple(dict.fromkeys(uid for uid, _ in bound)), max(until for _, until in bound))
    steps = [meeting.met[uid].meet.step for uid in members if meeting.met[uid].meet.has_state]
    return Form(Roster(meeting.number, members), max(steps), meeting.split(members), known, excused)
