"""Render tables and reports for people: boxes that fit a terminal, and elsewhere one line per record.

A row of a table is one line at any width: columns without room are left out by a fixed priority. Where the output is no
terminal, nothing is left out or cut, since it is kept or searched: a table with room in PIPED_WIDTH columns is drawn,
of any other each row becomes a line that names its figures.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Self

from rich.box import HEAVY_HEAD, Box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table as RichTable
from rich.text import Text

from heterotrain_operator.experiments import wording
from heterotrain_operator.experiments.report.value import Column, Report, Sentence, Table, Tone

PIPED_WIDTH = 80
"""Columns of a table where the output is no terminal; fewer where COLUMNS says so."""

LEAST_NAME = 12
"""Columns to which names are shortened, if they stay different in so many, before another column is left out."""

STYLES = {
    Tone.PLAIN: "",
    Tone.LEAD: "bold",
    Tone.FAINT: "dim",
    Tone.BUSY: "cyan",
    Tone.GOOD: "green",
    Tone.DOUBT: "yellow",
    Tone.FAILURE: "red",
}

BAR_WIDTH = 40
LEAST_BAR_WIDTH = 8


BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Iterable[float], most: float | None = None) -> str:
    """Values from 0 to `most` (None: the greatest) as blocks, a character each."""
    known = list(values)
    top = max(known, default=0.0) if most is None else most
    shares = (min(max(value / top, 0.0), 1.0) if top > 0 else 0.0 for value in known)
    return "".join(BLOCKS[round(share * (len(BLOCKS) - 1))] for share in shares)


def messages() -> Console:
    """Standard error, on which commands say what happens."""
    console = Console(stderr=True)
    return console if console.is_terminal else Console(stderr=True, width=min(console.width, PIPED_WIDTH))


def output() -> Console:
    """Standard output, for what a command is asked to show."""
    console = Console()
    return console if console.is_terminal else Console(width=min(console.width, PIPED_WIDTH))


def say(console: Console, text: str, style: str = "") -> None:
    """One line that stays, uncut; a terminal folds it."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def print_json(document: object) -> None:
    """One JSON document on standard output, at once; moments as RFC 3339 has them."""
    sys.stdout.write(json.dumps(document, indent=2, allow_nan=False, default=datetime.isoformat) + "\n")
    sys.stdout.flush()


def print_report(console: Console, report: Report, notes: Sequence[str] = ()) -> None:
    """The tables and sentences of a report, then `notes`, and at last its lead, of which the first comes last: the end
    of what is printed stays in sight. What is for the page alone is left out."""
    title: str | None = report.title
    for section in report.sections:
        for part in section.parts:
            if part.detail:
                continue
            if isinstance(part, Table):
                _print_table(console, part, title)
                title = None
            elif isinstance(part, Sentence):
                _print_sentence(console, part)
    for note in notes:
        say(console, note)
    for sentence in reversed(report.lead):
        if not sentence.detail:
            _print_sentence(console, sentence)


def _print_sentence(console: Console, sentence: Sentence) -> None:
    # What is only explained may be folded even where lines are records.
    folds = sentence.tone is Tone.FAINT
    style = STYLES[sentence.tone]
    console.print(sentence.text, style=style, markup=False, highlight=False, soft_wrap=not folds)


def _print_table(console: Console, table: Table, title: str | None) -> None:
    if console.is_terminal:
        for drawn in tables(table, console.width, title):
            console.print(drawn)
        return
    beside = [_beside(table, _names(table))] if table.beside else [(table.shown(details=False), table.rows)]
    if all(_least_width(columns, rows, HEAVY_HEAD, 0, whole=True) <= console.width for columns, rows in beside):
        for drawn in tables(table, console.width, title):
            console.print(drawn)
        return
    if title is not None:
        say(console, title)
    for line in records(table):
        say(console, line)


def tables(table: Table, width: int, title: str | None = None) -> Iterator[RichTable]:
    """A table as it is drawn in so many columns. Where rows are put side by side, those without room follow below."""
    if not table.beside:
        yield fitted(table.shown(details=False), table.rows, width, title=title)
        return
    names = _names(table)
    while names:
        number = next((n for n in range(len(names), 1, -1) if fits(*_beside(table, names[:n]), width)), 1)
        yield fitted(*_beside(table, names[:number]), width)
        names = names[number:]


def records(table: Table) -> Iterator[str]:
    """One line per row: its names, and every figure after its heading."""
    columns = table.shown(details=False)
    leading = [column for column in columns if column.name]
    for row in table.rows:
        figures = [f"{column.heading} {column.said(row)}" for column in columns if column not in leading]
        yield f"{' '.join(column.said(row) for column in leading)}: {', '.join(figures)}"


def _names(table: Table) -> list[str]:
    """What the groups of rows that are put side by side are called, in order."""
    by = table.columns[0]
    return list(dict.fromkeys(by.said(row) for row in table.rows))


def _beside(table: Table, names: Sequence[str]) -> tuple[list[Column], list[Any]]:
    """The columns and rows of a table in which the groups of these names stand side by side."""
    by, key, *others = table.shown(details=False)
    rows: dict[str, dict[str, Any]] = {}  # of each key the row of each group
    for row in table.rows:
        if by.said(row) in names:
            rows.setdefault(key.said(row), {})[by.said(row)] = row
    columns = [replace(key, of=lambda kept: key.of(next(iter(kept.values()))))]
    for name in names:
        own = [replace(column, of=_of_group(column, name)) for column in others]
        columns += [replace(own[0], heading=f"{name}\n{own[0].heading}"), *own[1:]]
    return columns, list(rows.values())


def _of_group(column: Column, name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda kept: column.of(kept[name]) if name in kept else None


def fitted(
    columns: Sequence[Column],
    rows: Iterable[Any],
    width: int,
    *,
    title: str | None = None,
    box: Box | None = HEAVY_HEAD,
    gap: int = 3,
) -> RichTable:
    """A table of at most `width` columns, if its columns of rank 0 allow that.

    Two columns are `gap` blanks apart; with a `box`, its lines separate them.
    """
    rows, shown = list(rows), list(columns)
    while _least_width(shown, rows, box, gap) > width and any(column.rank for column in shown):
        shown.remove(max(shown, key=lambda column: column.rank))
    widths = [_natural(column, rows) for column in shown]
    over = sum(widths) + _overhead(len(shown), box, gap) - width
    for index in sorted(range(len(shown)), key=lambda index: shown[index].name):
        if shown[index].text or shown[index].name:
            taken = min(max(over, 0), widths[index] - _least(shown[index], rows))
            widths[index] -= taken
            over -= taken
    table = RichTable(
        title=title, title_justify="left", box=box, pad_edge=box is not None, padding=(0, 1) if box else (0, gap, 0, 0)
    )
    for column, own in zip(shown, widths, strict=True):
        table.add_column(
            column.heading,
            justify="left" if column.is_left else "right",
            no_wrap=True,
            overflow="ellipsis",
            width=own,
            vertical="bottom",
        )
    for row in rows:
        table.add_row(*(_cell(row, column, own) for column, own in zip(shown, widths, strict=True)))
    return table


def fits(columns: Sequence[Column], rows: Sequence[Any], width: int) -> bool:
    """Whether a table with lines has room for all of its columns."""
    return _least_width(columns, rows, HEAVY_HEAD, 0) <= width


def _cell(row: Any, column: Column, width: int) -> Text:
    said = column.said(row)
    return Text(wording.shortened(said, width) if column.name else said, STYLES[column.toned(row).tone])


def _overhead(number: int, box: Box | None, gap: int) -> int:
    return 3 * number + 1 if box is not None else gap * (number - 1)


def _natural(column: Column, rows: Sequence[Any]) -> int:
    return max(*map(cell_len, column.heading.split("\n")), column.least, *(cell_len(column.said(row)) for row in rows))


def _least(column: Column, rows: Sequence[Any]) -> int:
    """The width below which the column is useless."""
    natural, heading = _natural(column, rows), max(map(cell_len, column.heading.split("\n")))
    if column.text:
        return min(natural, max(column.least, heading))
    if not column.name:
        return natural
    names = {column.said(row) for row in rows}
    return next(
        (
            width
            for width in range(max(LEAST_NAME, heading), natural)
            if len({wording.shortened(name, width) for name in names}) == len(names)
        ),
        natural,
    )


def _least_width(
    columns: Sequence[Column], rows: Sequence[Any], box: Box | None, gap: int, *, whole: bool = False
) -> int:
    """The least width of a table with all of these columns; `whole`: with nothing shortened."""
    width_of = _natural if whole else _least
    return sum(width_of(column, rows) for column in columns) + _overhead(len(columns), box, gap)


class LiveView:
    """What the user sees of something while it goes on: a view that is drawn again and again on a terminal, and lines
    that stay above it; elsewhere only lines. Use it as a context manager. A `transient` view is gone in the end.
    """

    def __init__(self, console: Console, *, transient: bool = True) -> None:
        self.console = console
        self._transient = transient
        self._live = Live(console=console, transient=transient, auto_refresh=False) if console.is_terminal else None

    @property
    def is_live(self) -> bool:
        """Whether there is a view."""
        return self._live is not None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._transient:
            self.clear()
        if self._live is not None:
            self._live.stop()

    def say(self, text: str, style: str = "") -> None:
        """One line that stays."""
        say(self.console, text, style)

    def draw(self, view: RenderableType) -> None:
        """Replace the view."""
        if self._live is not None:
            self._live.update(view, refresh=True)

    def clear(self) -> None:
        """Remove the view."""
        self.draw(Text(""))


@dataclass(frozen=True, slots=True)
class ProgressLine:
    """Committed steps, those of the whole job (0: unknown or endless), and the seconds left."""

    steps: int
    total: int
    seconds_left: float | None

    def __str__(self) -> str:
        return f"step {self.steps}/{self.total}" if self.total else f"step {self.steps}"


def progress_line(title: str, reached: ProgressLine, width: int) -> RichTable:
    """The title, a bar and how far it is, in one line of `width` columns: the bar gives way, then the title."""
    left = "" if reached.seconds_left is None else f"{wording.clock(reached.seconds_left)} left"
    figures = "  ".join(filter(None, [str(reached), left]))
    bar = min(width - cell_len(title) - cell_len(figures) - 2, BAR_WIDTH)
    line = RichTable.grid(padding=(0, 1, 0, 0))
    name = Text(title, style="bold", overflow="ellipsis", no_wrap=True)
    for _ in range(3 if bar >= LEAST_BAR_WIDTH else 2):
        line.add_column(no_wrap=True)
    if bar >= LEAST_BAR_WIDTH:
        done = reached.steps if reached.total else 0
        line.add_row(name, ProgressBar(total=reached.total or 1, completed=done, width=bar), figures)
    else:
        name.truncate(max(width - cell_len(figures) - 1, 1), overflow="ellipsis")
        line.add_row(name, figures)
    return line
