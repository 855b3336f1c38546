"""Tables that fit the terminal: a row is one line, and columns without room are left out by a fixed priority."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.box import HEAVY_HEAD, Box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

LEAST_NAME = 12
"""Columns to which names are shortened, if they stay different in so many, before another column is left out."""
ELLIPSIS = "…"

Cell = str | Text


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table. The one with the greatest `rank` is the first to be left out; 0 never is.

    `least` is its width even if its cells are narrower now, so that columns do not come and go with every figure.
    A `name` may be shortened in its middle, a `text` at its end.
    """

    heading: str
    rank: int = 0
    least: int = 0
    left: bool = False
    name: bool = False
    text: bool = False
    key: str = ""

    @property
    def cell(self) -> str:
        """The key of its cells in a row: its heading, unless another column has the same heading."""
        return self.key or self.heading

    @property
    def heading_width(self) -> int:
        """The width of the longest line of the heading."""
        return max(map(cell_len, self.heading.split("\n")))


def shortened(name: str, width: int) -> str:
    """A name without its middle; more of its end is kept, for that distinguishes workers.

    >>> shortened("digits-large-0", 10)
    'dig…arge-0'
    """
    if cell_len(name) <= width:
        return name
    kept = max(width - 1, 2)
    tail = kept * 2 // 3
    return f"{name[: kept - tail]}{ELLIPSIS}{name[-tail:]}"


def fitted(
    columns: Sequence[Column],
    rows: Sequence[Mapping[str, Cell]],
    width: int,
    *,
    title: str | None = None,
    box: Box | None = HEAVY_HEAD,
    gap: int = 3,
) -> Table:
    """A table of at most `width` columns, if its columns of rank 0 allow that; `rows` have their cells by heading.

    Two columns are `gap` blanks apart; with a `box`, its lines separate them.
    """
    shown = list(columns)
    while _least_width(shown, rows, box, gap) > width and any(column.rank for column in shown):
        shown.remove(max(shown, key=lambda column: column.rank))
    widths = {column.cell: _natural(column, rows) for column in shown}
    over = sum(widths.values()) + _overhead(len(shown), box, gap) - width
    for column in sorted((c for c in shown if c.text or c.name), key=lambda column: column.name):
        taken = min(max(over, 0), widths[column.cell] - _least(column, rows))
        widths[column.cell] -= taken
        over -= taken
    table = Table(
        title=title, title_justify="left", box=box, pad_edge=box is not None, padding=(0, 1) if box else (0, gap, 0, 0)
    )
    for column in shown:
        table.add_column(
            column.heading,
            justify="left" if column.left or column.name or column.text else "right",
            no_wrap=True,
            overflow="ellipsis",
            width=widths[column.cell],
            vertical="bottom",
        )
    for row in rows:
        table.add_row(*(_cell(row[column.cell], column, widths[column.cell]) for column in shown))
    return table


class FittedTable:
    """A table without lines, as wide as the place in which it is printed."""

    def __init__(self, columns: Sequence[Column], rows: Sequence[Mapping[str, Cell]]) -> None:
        self._columns = columns
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield fitted(self._columns, self._rows, options.max_width, box=None)


def fits(columns: Sequence[Column], rows: Sequence[Mapping[str, Cell]], width: int) -> bool:
    """Whether a table with lines has room for all of its columns."""
    return _least_width(columns, rows, HEAVY_HEAD, 0) <= width


def _cell(cell: Cell, column: Column, width: int) -> Cell:
    if not column.name:
        return cell
    return Text(shortened(cell, width)) if isinstance(cell, str) else Text(shortened(cell.plain, width), cell.style)


def _overhead(number: int, box: Box | None, gap: int) -> int:
    return 3 * number + 1 if box is not None else gap * (number - 1)


def _plain(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell.plain


def _natural(column: Column, rows: Sequence[Mapping[str, Cell]]) -> int:
    cells = (cell_len(_plain(row[column.cell])) for row in rows)
    return max(column.heading_width, column.least, *cells, 0)


def _least(column: Column, rows: Sequence[Mapping[str, Cell]]) -> int:
    """The width below which the column is useless."""
    natural = _natural(column, rows)
    if column.text:
        return min(natural, max(column.least, column.heading_width))
    if not column.name:
        return natural
    names = {_plain(row[column.cell]) for row in rows}
    return next(
        (
            width
            for width in range(max(LEAST_NAME, column.heading_width), natural)
            if len({shortened(name, width) for name in names}) == len(names)
        ),
        natural,
    )


def _least_width(columns: Sequence[Column], rows: Sequence[Mapping[str, Cell]], box: Box | None, gap: int) -> int:
    return sum(_least(column, rows) for column in columns) + _overhead(len(columns), box, gap)
