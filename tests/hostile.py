"""What a tenant may leave where the operator or a worker reads: for tests of everything that parses foreign bytes."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

HUGE = st.sampled_from([10**400, -(10**400), 2**53 + 1, 2**63, 2**64, -1, 10**4000, 1e308, -1e308, 5e-324])
ODD_TEXT = st.sampled_from(
    ["", "\ud800", "\x00", "x" * 5000, "NaN", "1e999", "9" * 4000, "true", "\u202e", "${x}", "%s", "-0", "0x10", "None"]
)
SCALARS = st.none() | st.booleans() | st.integers() | HUGE | st.floats() | ODD_TEXT | st.text(st.characters(codec=None))


def _deep(depth: int, kind: str) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value] if kind == "list" else {"a": value}
    return value


DEEP = st.builds(_deep, st.sampled_from([30, 150, 400]), st.sampled_from(["list", "map"]))
VALUES = st.recursive(
    SCALARS | DEEP,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ODD_TEXT | st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
"""Whatever JSON can say, and what only Python's JSON can: numbers that are none, halves of characters."""


def _paths(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    found = [path]
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        found += _paths(entry, (*path, key))
    return found


@st.composite
def spoilt(draw: st.DrawFn, valid: Any) -> Any:
    """A valid value in which up to three parts are replaced, removed, doubled or joined by others."""
    whole = [copy.deepcopy(valid)]
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from(_paths(whole)[1:]))
        node: Any = whole
        for part in way:
            node = node[part]
        act = draw(st.sampled_from(["replace", "replace", "remove", "join"]))
        if act == "replace" or node is whole:
            node[last] = draw(VALUES)
        elif act == "remove":
            del node[last]
        elif isinstance(node, dict):
            node[draw(ODD_TEXT | st.text(max_size=8))] = draw(VALUES)
        else:
            node.append(draw(st.sampled_from(node) | VALUES))
    return whole[0]


def spoilt_text(*valid: Any) -> st.SearchStrategy[str]:
    """Documents that are nearly valid, and text that is not JSON at all."""
    documents = st.sampled_from(valid).flatmap(spoilt).map(json.dumps)
    torn = st.builds(lambda text, at, more: text[:at] + more, documents, st.integers(0, 200), st.text(max_size=5))
    brackets = st.builds(lambda opening, depth: opening * depth, st.sampled_from(["[", '{"a":']), st.just(2000))
    return documents | torn | VALUES.map(json.dumps) | st.text() | brackets
