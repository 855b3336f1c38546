"""A report as a value: what is said and in which order, before anything of how it looks.

`run` and `simulate` build one, and the terminal and the page render the same value; so a figure has one heading and one
wording, and a test reads facts instead of HTML or boxes. Colours and widths belong to the renderers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from heterotrain_operator.experiments.wording import UNKNOWN


class Tone(Enum):
    """How a sentence or a cell is meant."""

    PLAIN = "plain"
    LEAD = "lead"
    FAINT = "faint"
    BUSY = "busy"
    GOOD = "good"
    DOUBT = "doubt"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Toned:
    """A value in a cell, and how it is meant."""

    value: Any
    tone: Tone


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: `of` takes its value from a row (None if it is not known, Toned if it is meant in some
    way), and `words` is the type of the values: how one is worded.

    Where there is little room, the column with the greatest `rank` is the first to be left out; 0 never is. `least` is
    its width even if its cells are narrower now, so that columns do not come and go with every figure. A `name` may be
    shortened in its middle, a `text` at its end. A `detail` is for the page alone; an `optional` column is left out
    where no row has a value for it.
    """

    heading: str
    of: Callable[[Any], Any]
    words: Callable[[Any], str] = str
    rank: int = 0
    least: int = 0
    left: bool = False
    name: bool = False
    text: bool = False
    detail: bool = False
    optional: bool = False

    @property
    def is_left(self) -> bool:
        """Whether its cells begin at the left."""
        return self.left or self.name or self.text

    def toned(self, row: Any) -> Toned:
        """Its value in a row, and how that is meant."""
        value = self.of(row)
        return value if isinstance(value, Toned) else Toned(value, Tone.PLAIN)

    def said(self, row: Any) -> str:
        """Its value in a row, worded."""
        value = self.toned(row).value
        return UNKNOWN if value is None else self.words(value)


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of rows, which are any values that the columns know. `beside`: a terminal puts rows that differ in the
    first column side by side, as far as there is room. The page has the `heading` above it, and folds a long table.
    """

    columns: tuple[Column, ...]
    rows: tuple[Any, ...]
    beside: bool = False
    detail: bool = False
    heading: str = ""

    def shown(self, *, details: bool) -> list[Column]:
        """The columns that there is something to show of."""
        return [
            column
            for column in self.columns
            if (details or not column.detail)
            and (not column.optional or any(column.toned(row).value is not None for row in self.rows))
        ]


@dataclass(frozen=True, slots=True)
class Sentence:
    """One paragraph."""

    text: str
    tone: Tone = Tone.PLAIN
    detail: bool = False


@dataclass(frozen=True, slots=True)
class Verbatim:
    """The text of a file; for the page alone."""

    text: str
    detail: bool = True


@dataclass(frozen=True, slots=True)
class Line:
    """A series of points of a plot. `smooth`: its running median, over faint points; `steps`: constant between points;
    `bars`: points with `spreads` up and down. `tint` is a colour of the page's style, `style` a key of `DASHES`.
    """

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    tint: str
    style: Literal["-", "--", ":", "-."] = "-"
    width: float = 1.6
    shape: Literal["plain", "steps", "smooth", "bars"] = "plain"
    spreads: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at `x`, with its name at the upper or the lower end of its line."""

    x: float
    text: str
    tint: str
    upper: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """Something that lasts from `begin` to `end` in a `row` of a panel; `words` say what, `waits` draws it pale."""

    row: int
    begin: float
    end: float
    tint: str
    words: str
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """Axes with lines, or `rows` of spans; `least` and `most` bound the lines (None: as they need). `whole`: values are
    whole numbers.
    """

    ylabel: str
    lines: tuple[Line, ...] = ()
    marks: tuple[Mark, ...] = ()
    least: float | None = None
    most: float | None = None
    reference: float | None = None
    logarithmic: bool = False
    whole: bool = False
    rows: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture: panels above one another with one x axis. `words` say what it shows. A `half` stands beside the next
    half where there is room.
    """

    words: str
    title: str
    xlabel: str
    panels: tuple[Panel, ...]
    from_zero: bool = True
    whole: bool = False
    half: bool = False
    detail: bool = True


@dataclass(frozen=True, slots=True)
class WorkerStep:
    """A mean step of one worker: its batch in samples; own seconds, and those of waiting for peers and of the
    exchange with them, an all-reduce, or with a server.
    """

    batch: int
    own_seconds: float
    peers_seconds: float
    exchange_seconds: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.own_seconds + self.peers_seconds + self.exchange_seconds

    @property
    def waiting(self) -> float:
        """The share of it that the worker waits for its peers."""
        return self.peers_seconds / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """Every worker's step under several sets of batches, by the set's name; `words` say what can be seen. Who trains
    `alone` waits for a server instead of the others.
    """

    title: str
    words: str
    sets: Mapping[str, Mapping[str, WorkerStep]]
    alone: bool = False
    detail: bool = True


Part = Sentence | Table | Verbatim | Plot | BeforeAfter


@dataclass(frozen=True, slots=True)
class Section:
    """Parts under a heading, which terminals leave out: there, tables stand for themselves."""

    heading: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """All that is reported. `lead` matters most: it is at the top of a page and, since the last lines of a terminal
    stay in sight, at its end. `kind` is in the title of the page's window.
    """

    title: str
    kind: str
    lead: tuple[Sentence, ...]
    sections: tuple[Section, ...]
