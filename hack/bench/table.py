"""How figures are written in tables, for terminals and documents alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

Document = Mapping[str, Any]
Documents = Sequence[Document]

NONE = "-"
"""Stands where there is no figure."""

OWN_POLICY, UNIFORM = "Optimal", "Uniform"

Form = Callable[[float], str]


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], texts: int = 1) -> str:
    """A table in Markdown, in which columns line up; `texts` columns are text, the others numbers."""
    lines = [list(headings), *([str(cell) for cell in row] for row in rows)]
    widths = [max(3, *(len(line[column]) for line in lines)) for column in range(len(headings))]
    marks = ["-" * width if column < texts else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    lines.insert(1, marks)

    def cell(text: str, column: int) -> str:
        return text.ljust(widths[column]) if column < texts else text.rjust(widths[column])

    return "\n".join(f"| {' | '.join(cell(text, column) for column, text in enumerate(line))} |" for line in lines)


def spread(values: Iterable[float | None], form: Form) -> str:
    """Median, and least to greatest where they read differently."""
    known = [value for value in values if value is not None]
    if not known:
        return NONE
    least, greatest = form(min(known)), form(max(known))
    return form(median(known)) + (f" ({least}..{greatest})" if least != greatest else "")


def percent(value: float) -> str:
    """A share."""
    return f"{value:.0%}"


def rate(value: float) -> str:
    """Samples per second."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def milliseconds(value: float) -> str:
    """Of a time in seconds."""
    return f"{1e3 * value:.0f} ms"


def digits(count: int, sign: str = "") -> Callable[[float | None], str]:
    """A number with so many digits, or nothing if there is none."""
    return lambda value: NONE if value is None else f"{value:{sign}.{count}f}"


def measured_on(documents: Documents) -> str:
    """The machines, each once, and how loaded they were."""

    def words(machine: Document) -> str:
        cores = f"{machine['cores']} cores, " if "cores" in machine else ""
        limits = f"; {machine['limits']}" if "limits" in machine else ""
        load = f"; the load was {machine['load']:g} before it began" if "load" in machine else ""
        return f"Measured on {cores}Python {machine['python']}, torch {machine['torch']}{limits}{load}."

    return "\n".join(dict.fromkeys(words(each["machine"]) for each in documents))
