"""What must never happen to a job, checked from outside: its complete attempts, their bases and what they commit.

An attempt is taken for complete when the first of its members has made its groups, for all have accepted it by then.
"""

from __future__ import annotations

from collections.abc import Set

from heterotrain.groups.convening.roster import Number, Roster


class Record:
    """Of one job; each method raises AssertionError if what it is told must not happen."""

    def __init__(self) -> None:
        self.formed: dict[Number, tuple[Roster, float]] = {}  # and when
        self.bases: dict[Number, int] = {}
        self.late: dict[Number, set[int]] = {}  # steps that were committed after a later attempt had formed
        self.highest = 0  # step that any worker has committed
        self.reached: dict[Number, int] = {}  # the same, by attempt

    def form(self, roster: Roster, now: float, alive: Set[str]) -> None:
        """A member has made the groups of an attempt; `alive`: the processes that have not ended."""
        if roster.number in self.formed:
            known, _ = self.formed[roster.number]
            assert known == roster, f"two rosters under {roster.number}: {known.members} and {roster.members}"
            return
        older = [number for number in self.formed if number < roster.number]
        if older and roster.announcer is None:
            self._check_quorum(roster, self.formed[max(older)][0], alive)
        self.formed[roster.number] = (roster, now)

    def newest_members(self) -> tuple[str, ...]:
        """Those of the newest attempt that has formed; nobody before the first one."""
        return self.formed[max(self.formed)][0].members if self.formed else ()

    def _check_quorum(self, roster: Roster, before: Roster, alive: Set[str]) -> None:
        """Of those who might be elsewhere, none can be a majority."""
        counted = [uid for uid in before.members if uid in alive or uid in roster.members]
        if not counted:
            self.reached.clear()  # nobody lives who was in it: the operator lets others go on from what they have
            return
        here = sum(uid in roster.members for uid in counted)
        is_tie = 0 < 2 * here == len(counted) and counted[0] in roster.members
        assert 2 * here > len(counted) or is_tie, f"{roster} has no quorum of {before}, of which {counted} live"

    def agree(self, roster: Roster, base: int) -> None:
        """A member of an attempt has the state that it begins with."""
        known = self.bases.setdefault(roster.number, base)
        assert known == base, f"{roster} begins at {known} and at {base}"
        before = max((step for number, step in self.reached.items() if number < roster.number), default=0)
        assert base >= before - 1, f"{roster} begins at {base}, but step {before} was committed before it"

    def commit(self, roster: Roster, step: int, newest: float) -> None:
        """A member has committed a step, of which `newest` is when the last contribution to it began."""
        number = roster.number
        assert self.formed[number][0] == roster, f"{roster} commits, but {self.formed[number]} has formed"
        assert newest >= self.formed[number][1], f"{roster} commits what was begun before it had formed"
        if any(
            other > number and other in self.reached and newest > since for other, (_, since) in self.formed.items()
        ):
            late = self.late.setdefault(number, set())
            late.add(step)
            assert len(late) == 1, f"{roster} goes on after a later attempt has formed: {sorted(late)}"
        for other, base in self.bases.items():  # of later attempts; the step that was under way may still be committed
            beyond = other > number and step > base + 1
            assert not beyond, f"{roster} commits step {step}, but {other} has begun at {base}"
        self.reached[number] = max(step, self.reached.get(number, 0))
        self.highest = max(self.highest, step)
