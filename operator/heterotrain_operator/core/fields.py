"""The codec of what is remembered of a job as a whole: each value says beside its fields how they are kept.

All values of a job are stored in one flat object, in which every field has a name of its own. So a field may go from
one value to another, and an operator one version older or newer reads what it knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_type_hints

from heterotrain.foreign import MAX_WHOLE
from heterotrain_operator.core.columns import SIGNIFICANT_DIGITS, checked, cut

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

V = TypeVar("V", bound="DataclassInstance")

MAX_COUNT = MAX_WHOLE // 2
"""The greatest number that a counter is read as, so that it can still count."""

MOST_GROUPS = 64
"""Worker groups of which something is remembered; a job has fewer."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Annotates a field with how it is kept, where that does not follow from its default.

    `measured`: to lose it would cost only a measurement, which can be taken again, so that it is written only together
    with something else. What is read is brought within `least` and `most`, so that decisions can do arithmetic with it;
    unless these are given, numbers are not negative, or else not below their default, and whole ones at most
    `MAX_COUNT`. Other numbers than moments are cut to so many `digits`; None: they are not cut.
    """

    measured: bool = False
    least: float | None = None
    most: float | None = None
    digits: int | None = SIGNIFICANT_DIGITS

    def bounded(self, value: Any, default: Any) -> Any:
        """What was read, within what nothing but a foreign hand can have exceeded."""
        if default is None or isinstance(default, str | bool):
            return value
        least = min(default, 0) if self.least is None else self.least
        most = self.most if self.most is not None else MAX_COUNT if isinstance(default, int) else math.inf
        return min(max(value, least), most)


MEASURED = Kept(measured=True)


@dataclass(frozen=True, slots=True)
class Rows:
    """Annotates a field that holds a tuple of values, each of which is stored as a row.

    `row` is that of a value and `value` what a row holds, None if it is malformed, for any version of the operator may
    have stored it; so many (`most`) are read, the last of them if these are the `newest`. `moved` is a value after the
    clock has leapt by so many seconds, and `rounded` the value as it reads back. `measured` is as of other fields.
    """

    row: Callable[[Any], list[Any]]
    value: Callable[[list[Any]], Any | None]
    most: int
    moved: Callable[[Any, float], Any] | None = None
    rounded: Callable[[Any], Any] | None = None
    measured: bool = False
    newest: bool = False

    def write(self, values: Iterable[Any]) -> list[list[Any]]:
        """All values, as they are stored."""
        return [self.row(each) for each in values]

    def read(self, rows: Any) -> tuple[Any, ...]:
        """What `write` has written, as far as it is well-formed."""
        if not isinstance(rows, list):
            return ()
        read = rows[-self.most :] if self.newest else rows[: self.most]
        found = (self.value(row) for row in read if isinstance(row, list))
        return tuple(each for each in found if each is not None)


class Layout(NamedTuple):
    """The fields of a value's class: those with a default of their own kind, tables, and the values within it."""

    plain: tuple[tuple[str, Any, Kept], ...]
    tables: tuple[tuple[str, Rows], ...]
    parts: tuple[tuple[str, Any], ...]


@cache
def layout_of(kind: type[DataclassInstance]) -> Layout:
    """How a value of this class is stored. A field whose default is made by a dataclass is a value within it; one with
    a default of no kind that is stored plainly is stored by its owner.
    """
    plain: list[tuple[str, Any, Kept]] = []
    tables: list[tuple[str, Rows]] = []
    parts: list[tuple[str, Any]] = []
    hints = get_type_hints(kind, include_extras=True)
    for each in fields(kind):
        marks = getattr(hints[each.name], "__metadata__", ())
        [mark] = [mark for mark in marks if isinstance(mark, Kept | Rows)] or [Kept()]
        if isinstance(mark, Rows):
            tables.append((each.name, mark))
        elif is_dataclass(each.default_factory):
            parts.append((each.name, each.default_factory))
        elif each.default is None or isinstance(each.default, bool | int | float | str):
            plain.append((each.name, each.default, mark))
    return Layout(tuple(plain), tuple(tables), tuple(parts))


def stored(value: DataclassInstance) -> dict[str, Any]:
    """All fields of a value and of those within it, as they are stored; what equals its default is left out."""
    layout = layout_of(type(value))
    document = {name: found for name, default, _ in layout.plain if (found := getattr(value, name)) != default}
    for name, rows in layout.tables:
        if found := getattr(value, name):
            document[name] = rows.write(found)
    for name, _ in layout.parts:
        document.update(stored(getattr(value, name)))
    return document


def read(kind: type[V], document: Mapping[str, Any], where: str, **more: Any) -> V:
    """The value that `stored` wrote, with `more` that is stored otherwise. Raises ValueError, saying `where`, if a
    field is malformed; rows that are malformed are left out.
    """
    layout = layout_of(kind)
    values = {
        name: kept.bounded(checked(document[name], default, f"{where}.{name}"), default)
        for name, default, kept in layout.plain
        if name in document
    }
    tables = {name: rows.read(document[name]) for name, rows in layout.tables if name in document}
    parts = {name: read(part, document, where) for name, part in layout.parts}
    return kind(**values, **tables, **parts, **more)


def moved(value: V, seconds: float, **more: Any) -> V:
    """The value with all moments so much later, as after the clock has leapt, and with `more`."""
    layout = layout_of(type(value))
    later = more
    for name, _, _ in layout.plain:
        if name.endswith("_at") and (moment := getattr(value, name)) is not None:
            later[name] = moment + seconds
    for name, rows in layout.tables:
        if rows.moved is not None:
            later[name] = tuple(rows.moved(each, seconds) for each in getattr(value, name))
    for name, _ in layout.parts:
        later[name] = moved(getattr(value, name), seconds)
    return replace(value, **later)


def rounded(value: V, **more: Any) -> V:
    """The value with its numbers cut to the digits that are kept, so that a memory read back equals the one written;
    and with `more`.
    """
    layout = layout_of(type(value))
    changed = more
    for name, default, kept in layout.plain:
        if isinstance(default, float) and kept.digits is not None:
            found = getattr(value, name)
            short = cut(found, kept.digits)
            if short != found:
                changed[name] = short
    for name, rows in layout.tables:
        if rows.rounded is not None and (found := getattr(value, name)):
            changed[name] = tuple(map(rows.rounded, found))
    for name, _ in layout.parts:
        found = getattr(value, name)
        short = rounded(found)
        if short is not found:
            changed[name] = short
    return replace(value, **changed) if changed else value


def same_but_measurements(one: V, other: V) -> bool:
    """Whether two values differ at most in what is measured."""
    if one is other:
        return True
    layout = layout_of(type(one))
    own: tuple[tuple[str, Kept | Rows], ...] = (*((name, kept) for name, _, kept in layout.plain), *layout.tables)
    return all(mark.measured or getattr(one, name) == getattr(other, name) for name, mark in own) and all(
        same_but_measurements(getattr(one, name), getattr(other, name)) for name, _ in layout.parts
    )
