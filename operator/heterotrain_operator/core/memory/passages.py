"""Workers that joined others which train, and members that left them, as they are remembered: the newest few.

People read them in the status; nothing is decided by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

from heterotrain.contract import MAX_NAME_LENGTH
from heterotrain.foreign import MAX_WHOLE, is_number, is_text, is_whole
from heterotrain_operator.core.fields import Rows

MOST_PASSAGES = 16
"""Of each kind that are remembered."""

LONGEST_WHY = 160
"""Characters of a reason that are remembered."""


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


_COLUMNS = len(fields(Passage))


def with_newest(before: Sequence[Passage], new: Sequence[Passage]) -> tuple[Passage, ...]:
    """These and those before them, as many as are remembered."""
    return (*before, *new)[-MOST_PASSAGES:]


def rows_of(passages: Sequence[Passage]) -> list[list[Any]]:
    """All passages, as they are stored."""
    return [[each.name, each.step, each.at, each.why, each.other] for each in passages]


def from_rows(rows: Any) -> tuple[Passage, ...]:
    """What `rows_of` has written, as far as it is well-formed; any version of the operator may have stored it."""
    if not isinstance(rows, list):
        return ()
    found = (_from_row(row) for row in rows[-MOST_PASSAGES:])
    return tuple(each for each in found if each is not None)


def _from_row(row: Any) -> Passage | None:
    if not isinstance(row, list) or len(row) < _COLUMNS:
        return None
    name, step, at, why, other = row[:_COLUMNS]
    texts = all(is_text(text, MAX_NAME_LENGTH) for text in (name, other)) and is_text(why, LONGEST_WHY)
    if not (texts and is_whole(step, high=MAX_WHOLE) and is_number(at) and at >= 0):
        return None
    return Passage(name, step, float(at), why, other)


PASSAGES = Rows(rows_of, from_rows, Passage.moved, measured=True)


@dataclass(frozen=True, slots=True)
class Passages:
    """The newest `arrivals` and `departures`, which are reported (`lifecycle/passing.py`). Both may be lost, so that
    they are written only together with something else.
    """

    arrivals: Annotated[tuple[Passage, ...], PASSAGES] = ()
    departures: Annotated[tuple[Passage, ...], PASSAGES] = ()
