"""What is wrong with a manifest: every problem with its path, so that a user can correct all of them at once.

Here is also how deep, how large and of what kind a document may be, before anything walks it by recursion or writes it
down. No object that an API server stores comes near these bounds; a file of a few lines can pass all of them.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from heterotrain.foreign import is_text

_LONGEST_PART = 100
"""Characters shown of a key, which may be anything."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong; `path` is like `spec.workerGroups[1].batchSize.min`, empty for all of it."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.path else self.reason


class ManifestError(ValueError):
    """A manifest that is refused; `problems` holds all that is wrong with it, its text has one per line."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def render_path(parts: Iterable[str | int]) -> str:
    """`("spec", "workerGroups", 1, "name")` as `spec.workerGroups[1].name`; odd keys as `limits["a.b/c"]`."""
    path = ""
    for each in parts:
        if isinstance(each, int):
            path += f"[{each}]"
            continue
        part = each if len(each) <= _LONGEST_PART else f"{each[:_LONGEST_PART]}..."
        if part and all(character.isalnum() or character in "-_" for character in part):
            path += f".{part}" if path else part
        else:
            path += f'["{part}"]'
    return path


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question to append to a message, empty where nothing is near; capitals do not count.

    >>> did_you_mean("optimal", ["Uniform", "Optimal"])
    '; did you mean Optimal?'
    """
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word[:100].lower(), by_lower, n=1)
    return f"; did you mean {by_lower[close[0]]}?" if close else ""


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


MAX_SPEC_BYTES = 2**18
"""Of a job's spec as JSON; a usual one has some 2 KiB, and kubectl apply stores none above 256 KiB."""

MAX_SPEC_VALUES = 20_000
"""Of a job's spec: mappings, lists and what is in them. Each costs the operator some 15 microseconds to judge and 120
bytes to keep."""

MOST_PROBLEMS = 12
"""So many are looked for in one document."""


def size_problem(spec: object) -> Problem | None:
    """Why a spec, which is what JSON holds, is too large to be judged; None if it is not."""
    size = len(json.dumps(spec, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass"))
    if size > MAX_SPEC_BYTES:
        return Problem("spec", f"must be of at most {MAX_SPEC_BYTES} bytes as JSON, found {size}")
    number = values_in(spec)
    if number > MAX_SPEC_VALUES:
        return Problem("spec", f"must have at most {MAX_SPEC_VALUES} values, found {number}")
    return None


def values_in(value: object) -> int:
    """How many mappings, lists and other values there are, without keys."""
    number, pending = 0, [value]
    while pending:
        node = pending.pop()
        number += 1
        if isinstance(node, dict):
            pending.extend(node.values())
        elif isinstance(node, list):
            pending.extend(node)
    return number


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
