"""The codec of what is remembered of one worker: each value says beside its fields in which columns it is stored.

A worker's row is a list of numbers. Columns are only ever added at the end, so that an operator one version older or
newer reads what it knows of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, fields
from typing import Any, TypeVar

from heterotrain.foreign import MAX_WHOLE, is_number, is_text, is_whole, shown

T = TypeVar("T", int, float)
V = TypeVar("V")

SIGNIFICANT_DIGITS = 8
"""Kept of every number of a worker: far below any measurement's noise, and 200 bytes hold a worker then."""

BASELINE_DIGITS = 11
"""Kept of the counters' baselines, since a window is a small difference of two large counters."""

LONGEST_TEXT = 4096
"""Characters of a text that is read; those that are written are far shorter."""

_COLUMN = "column"


def column(number: int, default: T) -> T:
    """A dataclass's field that is stored in this column, in the type of its default, which stands for "nothing yet"."""
    declared: T = field(default=default, metadata={_COLUMN: number})
    return declared


def columns_of(kind: type[Any]) -> tuple[tuple[int, str, Any], ...]:
    """Number, name and default of each column of a value's class."""
    return tuple((each.metadata[_COLUMN], each.name, each.default) for each in fields(kind) if _COLUMN in each.metadata)


def decoded(kind: type[V], row: Sequence[Any]) -> V:
    """The value whose columns are in this row, which may be shorter. Raises ValueError if one is malformed."""
    return kind(
        **{name: checked(row[number], default, name) for number, name, default in columns_of(kind) if number < len(row)}
    )


def cut(value: float, digits: int = SIGNIFICANT_DIGITS) -> float:
    """The number cut to its first digits, so that a memory read back equals the one written."""
    if -1e8 < value < 1e8 and value == int(value):
        return value  # of so few digits anyway; most counters are whole
    return float(f"{value:.{digits}g}")


def checked(value: Any, default: Any, where: str) -> Any:
    """The value in the type of the field's default; None stands for a moment, a float that may be missing."""
    if default is None and value is None:
        return None
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ValueError(f"{where}: expected bool, found {shown(value)}")
        return value
    if isinstance(default, str):
        if not is_text(value, LONGEST_TEXT):
            raise ValueError(f"{where}: expected at most {LONGEST_TEXT} characters, found {shown(value)}")
        return value
    if isinstance(default, int):
        if not is_whole(value, low=-MAX_WHOLE):
            raise ValueError(f"{where}: expected a whole number of at most 2**53, found {shown(value)}")
        return value
    if not is_number(value):
        raise ValueError(f"{where}: expected a number, found {shown(value)}")
    return float(value)
