"""How deep, how large and of what kind a document may be, before anything walks it by recursion or writes it down.

No object that an API server stores comes near these bounds; a file of a few lines can pass all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from heterotrain.foreign import is_text
from heterotrain_operator.api.problems import Problem, render_path

MAX_DEPTH = 64
"""Mappings and lists within each other; a pod template has some twenty."""

MAX_VALUES = 500_000
"""Most values in all; an API server's 1.5 MiB cannot hold as many. YAML aliases count as often as they are used."""

_LONGEST_PATH = 8
"""How many parts of the path to a deep value are shown."""

_Path = tuple[str | int, ...]


def magnitude_problem(document: object) -> Problem | None:
    """What is beyond all bounds in a document; None if nothing is."""
    seen = 0
    pending: list[tuple[_Path, object]] = [((), document)]
    while pending:
        path, value = pending.pop()
        seen += 1
        if seen > MAX_VALUES:
            return Problem("", f"has more than {MAX_VALUES} values")
        if len(path) > MAX_DEPTH:
            return Problem(render_path(path[:_LONGEST_PATH]), f"is nested more than {MAX_DEPTH} levels deep")
        if isinstance(value, str) and not _is_text(value):
            return Problem(render_path(path), "holds half a character (a lone surrogate), which no file can express")
        pending.extend(_entries(path, value))
    return None


def unusual_values(value: object, path: _Path) -> Iterator[Problem]:
    """What at or below `path` an API server would not store as it is: numbers, and nothing in place of a list's entry.
    The value is within bounds of depth and size.
    """
    pending = [(path, value)]
    while pending:
        where, node = pending.pop()
        if isinstance(node, int) and not -(2**63) <= node < 2**63:
            yield Problem(render_path(where), "must be an integer of 64 bits")
        elif isinstance(node, float) and not abs(node) <= 1.8e308:
            yield Problem(render_path(where), f"must be a finite number, found {node}")
        elif node is None and isinstance(where[-1], int):
            yield Problem(render_path(where), "is required, found nothing")
        pending.extend(_entries(where, node))


def _entries(path: _Path, value: object) -> Iterator[tuple[_Path, object]]:
    if isinstance(value, dict):
        for key, entry in value.items():
            name = str(key) if isinstance(key, str) else repr(type(key).__name__)
            yield (*path, name if _is_text(name) else "?"), entry
            if isinstance(key, str) and not _is_text(key):
                yield (*path, "?"), key
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield (*path, index), entry


def _is_text(value: str) -> bool:
    return is_text(value, len(value))
