"""Members that change while others train: how far they follow, who came and left, and places that wait for a worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

from heterotrain.contract import MAX_NAME_LENGTH
from heterotrain.foreign import MAX_WHOLE, is_number, is_text, is_whole
from heterotrain_operator.core.columns import BASELINE_DIGITS
from heterotrain_operator.core.fields import MAX_COUNT, MEASURED, Kept, Rows
from heterotrain_operator.core.remembered_worker import KEY_LENGTH, NOBODY, RememberedWorker

LONGEST_WHY = 160
"""Characters of a reason that are remembered."""


@dataclass(frozen=True, slots=True)
class Following:
    """`changing`: nobody was seen yet who follows the members of the active plan, of which the last so many (`joining`)
    have not trained; `changed_at` is since when that is due, or was seen. `entering` are the keys of members that were
    to join, and have not said yet that they train, one after the other. `leaving` are the keys of workers that an
    earlier plan named and that still live, one after the other. Since `unfit_at` members that are not wanted any more
    stay, for the others cannot do without them.
    """

    changing: bool = False
    joining: int = 0
    entering: str = ""
    leaving: str = ""
    changed_at: Annotated[float | None, MEASURED] = None
    unfit_at: float | None = None


@dataclass(frozen=True, slots=True)
class TransitionRecord:
    """A change of the kind `switching` (empty: none is under way) was published at `switching_at`, when
    `switching_step` steps were committed that took `switching_seconds` each. Changes have stood still for
    `transition_seconds` in the mean, `idle_seconds` in all, and so many of them were `swaps`, `joins` and `leaves`.
    """

    switching: Annotated[str, MEASURED] = ""
    switching_at: Annotated[float | None, MEASURED] = None
    switching_step: Annotated[int, MEASURED] = -1
    switching_seconds: Annotated[float, MEASURED] = 0.0
    transition_seconds: Annotated[float, MEASURED] = 0.0
    idle_seconds: Annotated[float, Kept(measured=True, digits=BASELINE_DIGITS)] = 0.0
    swaps: Annotated[int, MEASURED] = 0
    joins: Annotated[int, MEASURED] = 0
    leaves: Annotated[int, MEASURED] = 0

    def settled(self) -> TransitionRecord:
        """With no change under way."""
        return replace(self, switching="", switching_at=None)

    def counted(self) -> TransitionRecord:
        """With the change that was under way counted, and none any more."""
        return replace(
            self.settled(),
            swaps=min(self.swaps + (self.switching == "swap"), MAX_COUNT),
            joins=min(self.joins + (self.switching == "join"), MAX_COUNT),
            leaves=min(self.leaves + (self.switching == "leave"), MAX_COUNT),
        )


MOST_PASSAGES = 16
"""Of each kind that are remembered."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A worker that joined or left when so many steps were committed (`step`), at a moment in Unix seconds, and why.

    `other` is the worker whose place it took, or the one that took its place; empty: nobody, as far as is known.
    """

    name: str
    step: int
    at: float
    why: str
    other: str = ""

    def moved(self, seconds: float) -> Passage:
        """With its moment so much later, as after the clock has leapt."""
        return replace(self, at=max(self.at + seconds, 0.0))


_PASSAGE_NAMES = tuple(each.name for each in fields(Passage))


def with_newest(before: Sequence[Passage], new: Sequence[Passage]) -> tuple[Passage, ...]:
    """These and those before them, as many as are remembered."""
    return (*before, *new)[-MOST_PASSAGES:]


def _row_of(passage: Passage) -> list[Any]:
    return [getattr(passage, name) for name in _PASSAGE_NAMES]


def _passage_from(row: list[Any]) -> Passage | None:
    if len(row) < len(_PASSAGE_NAMES):
        return None
    name, step, at, why, other = row[: len(_PASSAGE_NAMES)]
    texts = all(is_text(text, MAX_NAME_LENGTH) for text in (name, other)) and is_text(why, LONGEST_WHY)
    if not (texts and is_whole(step, high=MAX_WHOLE) and is_number(at) and at >= 0):
        return None
    return Passage(name, step, float(at), why, other)


PASSAGES = Rows(_row_of, _passage_from, MOST_PASSAGES, Passage.moved, measured=True, newest=True)


@dataclass(frozen=True, slots=True)
class Passages:
    """The newest `arrivals` and `departures`, which people read in the status; nothing is decided by them. Both may be
    lost, so that they are written only together with something else.
    """

    arrivals: Annotated[tuple[Passage, ...], PASSAGES] = ()
    departures: Annotated[tuple[Passage, ...], PASSAGES] = ()


MOST_PENDING = 64
"""Places that are remembered at most, so that the memory stays small. Beyond them a worker that ended is replaced all
the same, without what was known of its place.
"""

MOST_FAILURES = MAX_WHOLE // 2
"""What is counted of a place stays a number that can still count."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A place that has no member: its group, and the index of the worker that is created for it. It is remembered until
    it has one. Moments are Unix seconds.

    `replaces` is the name of the worker that had it last, and `key` that one's (`key_of` its UID); `why` says how it
    ended. `failures` are the ends of this place's workers that count, and `tries` those since it had a member that do
    not. No worker is created before `due_at`; once one is, that is until when it need not be seen yet. Since
    `blame_deferred_at` (0: no) it has not shown whether the end of the one before was its fault
    (`lifecycle/refill.py`). `known` is what is remembered of the place. `trained`: the one before was a member.
    `unplaced`: the one that is there has found no node yet.
    """

    group: str
    index: int
    why: str = ""
    replaces: str = ""
    key: str = ""
    failures: int = 0
    tries: int = 0
    due_at: float = 0.0
    blame_deferred_at: float = 0.0
    known: RememberedWorker = NOBODY
    trained: bool = False
    unplaced: bool = False

    @property
    def identity(self) -> tuple[str, int]:
        """Group and index of the worker that is created for it."""
        return self.group, self.index

    def moved(self, seconds: float) -> Slot:
        """With its moments so much later, as after the clock has leapt."""
        blame_deferred_at = max(self.blame_deferred_at + seconds, 0.0) if self.blame_deferred_at > 0 else 0.0
        return replace(self, due_at=max(self.due_at + seconds, 0.0), blame_deferred_at=blame_deferred_at)

    def rounded(self) -> Slot:
        """With what is known of the place as it reads back."""
        known = self.known._replace(key="").rounded(NOBODY)
        return self if known == self.known else replace(self, known=known)

    def row(self) -> list[Any]:
        """As it is stored."""
        flags = [int(self.trained), int(self.unplaced)]
        return [getattr(self, name) for name in _PLACE_NAMES] + [self.known.row(), *flags]


_PLACE_NAMES = tuple(each.name for each in fields(Slot) if each.name not in ("known", "trained", "unplaced"))
_PLACE_COLUMNS = len(_PLACE_NAMES) + 1
"""Of a row, at least; flags that an older version did not know may follow, and what a newer one knows."""


def _place_from(row: list[Any]) -> Slot | None:
    if len(row) < _PLACE_COLUMNS:
        return None
    group, index, why, replaces, key, failures, tries, due_at, blame_deferred_at, known = row[:_PLACE_COLUMNS]
    trained, unplaced = (flag == 1 for flag in (*row[_PLACE_COLUMNS:], 0, 0)[:2])
    texts = all(is_text(text, MAX_NAME_LENGTH) for text in (group, why, replaces, key))
    counts = all(is_whole(number, high=MOST_FAILURES) for number in (index, failures, tries))
    moments = all(is_number(moment) and moment >= 0 for moment in (due_at, blame_deferred_at))
    if not (texts and counts and moments and len(key) in (0, KEY_LENGTH)):
        return None
    known = RememberedWorker.from_row(known)
    moments_at = float(due_at), float(blame_deferred_at)
    return Slot(group, index, why, replaces, key, failures, tries, *moments_at, known, trained, unplaced)


PENDING = Rows(Slot.row, _place_from, MOST_PENDING, Slot.moved, Slot.rounded)
