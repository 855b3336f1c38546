"""What workers a job's own global batch is meant for, where the batch grows with the workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from heterotrain.contract import MAX_NAME_LENGTH
from heterotrain.foreign import is_text, is_whole
from heterotrain_operator.core.fields import MAX_COUNT, MOST_GROUPS, Rows


def _workers_from(row: list[Any]) -> tuple[str, int] | None:
    sound = len(row) >= 2 and is_text(row[0], MAX_NAME_LENGTH) and is_whole(row[1], high=MAX_COUNT)
    return (row[0], row[1]) if sound else None


@dataclass(frozen=True, slots=True)
class Grown:
    """The workers by group that have trained with it first (`grown_from`, empty: nobody has)."""

    grown_from: Annotated[tuple[tuple[str, int], ...], Rows(list, _workers_from, MOST_GROUPS)] = ()
