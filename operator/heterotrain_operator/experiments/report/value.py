"""A report as a value: what is said and in which order, before anything of how it looks.

`run` and `simulate` build one, and the terminal and the page render the same value; so a figure has one heading and one
wording, and a test reads facts instead of HTML or boxes. Colours and widths belong to the renderers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    first column side by side, as far as there is room. The page has the `heading` above it.
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
    `bars`: with `spreads` up and down.
    """

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    tint: str
    style: str = "-"
    width: float = 1.6
    shape: Literal["plain", "steps", "smooth", "bars"] = "plain"
    marker: str = ""
    spreads: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at `x`, with its name at the upper or the lower end of its line."""

    x: float
    text: str
    tint: str
    upper: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """Axes with lines; `least` and `most` bound them (None: as the lines need). `whole`: values are whole numbers."""

    ylabel: str
    lines: tuple[Line, ...]
    marks: tuple[Mark, ...] = ()
    least: float | None = None
    most: float | None = None
    reference: float | None = None
    logarithmic: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture: panels above one another with one x axis. `name` is that of its file, `words` say what it shows."""

    name: str
    words: str
    title: str
    xlabel: str
    panels: tuple[Panel, ...]
    legend: Literal["inside", "outside", "none"] = "outside"
    height_inches: float = 3.6
    from_zero: bool = True
    whole: bool = False
    detail: bool = True


Part = Sentence | Table | Verbatim | Plot


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

    def plots(self) -> list[Plot]:
        """All pictures, in order."""
        return [part for section in self.sections for part in section.parts if isinstance(part, Plot)]
