"""A place that has no member, as it is remembered until it has one: its worker has ended, or has not come yet.

So few are remembered that the memory stays small. Beyond them a worker that ended is replaced all the same, without
what was known of its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from heterotrain.contract import MAX_NAME_LENGTH
from heterotrain.foreign import MAX_WHOLE, is_number, is_text, is_whole
from heterotrain_operator.core.fields import Rows
from heterotrain_operator.core.worker_memory import KEY_LENGTH, NOBODY, WorkerMemory

MOST_PENDING = 64
"""Places that are remembered at most."""

MOST_FAILURES = MAX_WHOLE // 2
"""What is counted of a place stays a number that can still count."""

LONGEST_WHY = 160
"""Characters of why a worker ended that are remembered."""


@dataclass(frozen=True, slots=True)
class Pending:
    """One place: its group, and the index of the worker that is created for it. Moments are Unix seconds.

    `replaces` is the name of the worker that had it last, and `key` that one's (`key_of` its UID); `why` says how it
    ended. `failures` are the ends of this place's workers that count, and `tries` those since it had a member that do
    not. No worker is created before `due_at`; once one is, that is until when it need not be seen yet. Since
    `asked_at` (0: no) it has not shown whether the end of the one before was its fault (`late_evidence.py`). `known` is
    what is remembered of the place. `trained`: the one before was a member. `unplaced`: the one that is there has found
    no node yet.
    """

    group: str
    index: int
    why: str = ""
    replaces: str = ""
    key: str = ""
    failures: int = 0
    tries: int = 0
    due_at: float = 0.0
    asked_at: float = 0.0
    known: WorkerMemory = NOBODY
    trained: bool = False
    unplaced: bool = False

    @property
    def identity(self) -> tuple[str, int]:
        """Group and index of the worker that is created for it."""
        return self.group, self.index

    def moved(self, seconds: float) -> Pending:
        """With its moments so much later, as after the clock has leapt."""
        asked_at = max(self.asked_at + seconds, 0.0) if self.asked_at > 0 else 0.0
        return replace(self, due_at=max(self.due_at + seconds, 0.0), asked_at=asked_at)

    def rounded(self) -> Pending:
        """With what is known of the place as it reads back."""
        known = self.known._replace(key="").rounded(NOBODY)
        return self if known == self.known else replace(self, known=known)

    def row(self) -> list[Any]:
        """As it is stored."""
        flags = [int(self.trained), int(self.unplaced)]
        return [getattr(self, name) for name in _NAMES] + [self.known.row(), *flags]


_NAMES = tuple(each.name for each in fields(Pending) if each.name not in ("known", "trained", "unplaced"))
_COLUMNS = len(_NAMES) + 1
"""Of a row, at least; flags that an older version did not know may follow, and what a newer one knows."""


def rows_of(pending: Sequence[Pending]) -> list[list[Any]]:
    """All places, as they are stored."""
    return [each.row() for each in pending]


def from_rows(rows: Any) -> tuple[Pending, ...]:
    """What `rows_of` has written, as far as it is well-formed; any version of the operator may have stored it."""
    if not isinstance(rows, list):
        return ()
    found = (_from_row(row) for row in rows[:MOST_PENDING])
    return tuple(each for each in found if each is not None)


def _from_row(row: Any) -> Pending | None:
    if not isinstance(row, list) or len(row) < _COLUMNS:
        return None
    group, index, why, replaces, key, failures, tries, due_at, asked_at, known = row[:_COLUMNS]
    trained, unplaced = (flag == 1 for flag in (*row[_COLUMNS:], 0, 0)[:2])
    texts = all(is_text(text, MAX_NAME_LENGTH) for text in (group, why, replaces, key))
    counts = all(is_whole(number, high=MOST_FAILURES) for number in (index, failures, tries))
    moments = all(is_number(moment) and moment >= 0 for moment in (due_at, asked_at))
    if not (texts and counts and moments and len(key) in (0, KEY_LENGTH)):
        return None
    known = WorkerMemory.from_row(known)
    moments_at = float(due_at), float(asked_at)
    return Pending(group, index, why, replaces, key, failures, tries, *moments_at, known, trained, unplaced)


PENDING = Rows(rows_of, from_rows, Pending.moved, Pending.rounded)
