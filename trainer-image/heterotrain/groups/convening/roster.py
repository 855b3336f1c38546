"""Which workers may form the next attempt: numbers, rosters and quorums; pure, without torch, clock or I/O.

An attempt is *complete* once all of its roster have accepted it. Only a complete attempt commits steps: a step needs
the gradients of its whole roster. Each worker remembers the newest attempt that it knows to be complete (`formed`) and
the ones that it accepted since then without learning whether all others did (`pending`). The next attempt needs a
quorum of `formed` *and* of every pending one, as known to any of those who meet: a quorum of `formed` alone is not
enough, because some pending attempt may have been completed by others. This is dynamic voting after Yeger Lotem, Keidar
and Dolev, "Dynamic Voting for Consistent Primary Components" (PODC 1997), sections 3 and 4, with two additions:

* Members that are proven dead are taken off a roster before its majority is counted. The proof has to exclude that the
  dead member has accepted an attempt without the one who proves it; `leases.py` says how.
* Those whom the operator has seen ended are no proof of that kind, so they count only if nobody else is missing, and if
  all have met whom that plan names (`settling.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace

_BY_WORD = 10**6
"""So often the members of one generation never meet again: an attempt by the operator's word comes after all others."""


@dataclass(frozen=True, slots=True, order=True)
class Number:
    """The number of an attempt; attempt 0 of a generation is the operator's plan itself.

    Planned changes are of the generation of their plan. So no number is of a later generation than the newest plan
    that its members have gone over to, or have accepted the change to. It may be of an earlier one, for not every plan
    is followed.
    """

    generation: int
    attempt: int

    @classmethod
    def by_word_of(cls, generation: int) -> Number:
        """The first that an attempt may have which rests on the operator's word in the plan of this generation.

        It is above all that could be formed under earlier plans, and below the planned change to this one.
        """
        return cls(generation - 1, _BY_WORD)

    @classmethod
    def of_change(cls, generation: int, within: Number, tries: int) -> Number:
        """The planned change to the plan of this generation that the members of the attempt `within` prepare.

        `tries`: how often any changes were, as these members have seen, this one among them. None of them is prepared
        twice under one number: `tries` only grows, and so does `within`, which is itself of the plan's generation if
        the change was accepted before and broke.
        """
        if within.generation < generation:
            return cls(generation, tries)
        return cls(within.generation, within.attempt + tries)

    def next(self) -> Number:
        """The attempt after this one, in the same generation."""
        return Number(self.generation, self.attempt + 1)

    def __str__(self) -> str:
        """As it is shown to users and in prefixes of keys."""
        return f"{self.generation}.{self.attempt}"


@dataclass(frozen=True, slots=True)
class Roster:
    """The members of one attempt, by UID and in order: ranks are positions, and the first one that lives convenes.

    A planned change has an `announcer`, the one member of the attempt before who may announce the switch to it.
    """

    number: Number
    members: tuple[str, ...]
    announcer: str | None = None


def has_quorum(members: tuple[str, ...], present: Set[str], dead: Set[str] = frozenset()) -> bool:
    """Whether those present are a strict majority of `members` without the proven `dead`, or half with the first one.

    A member that is present counts as alive, whatever anybody says.
    """
    alive = [uid for uid in members if uid in present or uid not in dead]
    here = sum(uid in present for uid in alive)
    return 2 * here > len(alive) or (0 < 2 * here == len(alive) and alive[0] in present)


@dataclass(frozen=True, slots=True)
class Standing:
    """What one worker knows of the attempts of its job. `formed` is None for a joiner, which has trained in none."""

    formed: Roster | None = None
    pending: tuple[Roster, ...] = ()

    @property
    def rosters(self) -> tuple[Roster, ...]:
        """All attempts of which the next one needs a quorum, the complete one first."""
        return self.pending if self.formed is None else (self.formed, *self.pending)

    @property
    def everyone(self) -> tuple[str, ...]:
        """All members of those attempts: first the complete one's, in its order, then the others."""
        return tuple(dict.fromkeys(uid for roster in self.rosters for uid in roster.members))

    @property
    def newest(self) -> Number:
        """The highest number in it; (0, 0) if there is none."""
        return max((roster.number for roster in self.rosters), default=Number(0, 0))

    def holds(self, uid: str) -> bool:
        """Whether a worker is a member of every attempt here, so that nothing was accepted that leaves it out."""
        return bool(self.rosters) and all(uid in roster.members for roster in self.rosters)

    def accept(self, roster: Roster) -> Standing:
        """After this worker has accepted an attempt and does not know yet whether all others did."""
        return self if roster in self.pending else replace(self, pending=(*self.pending, roster))

    def drop(self, number: Number) -> Standing:
        """Without a pending attempt that, as is known for certain, nobody has completed or ever will."""
        return replace(self, pending=tuple(roster for roster in self.pending if roster.number != number))

    def supersede(self, roster: Roster) -> Standing:
        """Without planned changes up to the number of this one, which a joiner accepts in their place."""
        return replace(
            self, pending=tuple(each for each in self.pending if each.announcer is None or each.number > roster.number)
        )

    def form(self, roster: Roster) -> Standing:
        """After an attempt is known to be complete: older ones do not matter any more."""
        return Standing(roster, tuple(each for each in self.pending if each.number > roster.number))

    def allows(self, present: Set[str], dead: Set[str], ended: Set[str] = frozenset()) -> bool:
        """Whether those present may form the next attempt.

        `dead` are proven dead by one of those present. `ended` were seen ended by the operator, in a plan that names
        all who are present; this counts only if it leaves nobody who might train elsewhere.
        """
        if not present or self.formed is None:
            return False
        if all(has_quorum(roster.members, present, dead) for roster in self.rosters):
            return True
        return bool(ended) and all(uid in present or uid in dead or uid in ended for uid in self.everyone)


def joint(standings: Iterable[Standing], announced: Mapping[str, Set[Number]] | None = None) -> Standing:
    """What several workers know together.

    `announced`: by UID of those who are present, the planned changes to which they have announced the switch. A change
    whose announcer is present and has not done so is no attempt: nobody has switched to it, or ever will.
    """
    known = list(standings)
    switched = announced or {}
    formed = max((each.formed for each in known if each.formed is not None), key=lambda each: each.number, default=None)
    pending = dict.fromkeys(roster for each in known for roster in each.pending)
    return Standing(
        formed,
        tuple(
            roster
            for roster in sorted(pending, key=lambda each: each.number)
            if (formed is None or roster.number > formed.number)
            and (roster.announcer is None or roster.number in switched.get(roster.announcer, (roster.number,)))
        ),
    )
