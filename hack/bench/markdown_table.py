"""Tables as documents have them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

NONE = "-"
"""Stands where there is no figure."""


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text."""
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
