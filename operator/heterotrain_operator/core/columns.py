"""The codec of what is remembered of one worker: each value says beside its fields in which columns it is stored.

A worker's row is a list of numbers. Columns are only ever added at the end, so that an operator one version older or
newer reads what it knows of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast, get_type_hints

from heterotrain.foreign import MAX_WHOLE, is_number, is_text, is_whole, shown

V = TypeVar("V")
Columns = tuple[tuple[int, str, Any], ...]

SIGNIFICANT_DIGITS = 6
"""Kept of every number of a worker: far below any measurement's noise, and 250 bytes hold a worker then, 280 one that
relapses. The slope of a line through batches 4 % apart, the closest that are fitted, is exact to a thousandth."""

COARSE_DIGITS = 3
"""Kept of numbers that are rough estimates themselves."""

BASELINE_DIGITS = 10
"""Kept of the counters' baselines, since a window is a small difference of two large counters."""

_CUT = tuple(f"%.{digits}g" for digits in range(18))
"""By digits, how a number is written with so many."""

LONGEST_TEXT = 4096
"""Characters of a text that is read; those that are written are far shorter."""

LONGEST_LIST = 256
"""Numbers of a list in one column."""


@dataclass(frozen=True, slots=True)
class Column:
    """Annotates a field that is stored in this column, in the type of its default, which stands for "nothing yet"."""

    number: int


def maker(kind: type[V]) -> Callable[[Iterable[Any]], V]:
    """Makes values of a named tuple's class of their fields, as its `_make` does, but without a function of Python: of
    many workers that takes longer than everything else about their values.
    """
    return cast("Callable[[Iterable[Any]], V]", partial(tuple.__new__, kind))


def columns_of(kind: type[Any]) -> Columns:
    """Number, name and default of each column of a value's class."""
    empty = kind()
    return tuple(
        (mark.number, name, getattr(empty, name))
        for name, hint in get_type_hints(kind, include_extras=True).items()
        for mark in getattr(hint, "__metadata__", ())
        if isinstance(mark, Column)
    )


def decoded(kind: type[V], columns: Columns, row: Sequence[Any]) -> V:
    """The value whose columns are in this row, which may be shorter. Raises ValueError if one is malformed."""
    return kind(**{name: checked(row[number], default, name) for number, name, default in columns if number < len(row)})


def cut(value: float, digits: int = SIGNIFICANT_DIGITS) -> float:
    """The number cut to its first digits, so that a memory read back equals the one written."""
    if -1e8 < value < 1e8 and not value % 1:
        return value  # of so few digits anyway; most counters are whole
    return float(_CUT[digits] % value)


def cut_all(values: Iterable[float], digits: int = SIGNIFICANT_DIGITS) -> list[float]:
    """The same of many numbers, without a call for each."""
    form = _CUT[digits]
    return [value if not value % 1 and -1e8 < value < 1e8 else float(form % value) for value in values]


def checked(value: Any, default: Any, where: str) -> Any:
    """The value in the type of the field's default, which a malformed list becomes. Raises
    ValueError otherwise. None stands for a moment, a float that may be missing.
    """
    if default is None and value is None:
        return None
    if isinstance(default, tuple):  # begun again where it is malformed: nothing else of the worker rests on it
        sound = isinstance(value, list) and len(value) <= LONGEST_LIST and all(is_number(each) for each in value)
        return tuple(float(each) for each in value) if sound else default
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
