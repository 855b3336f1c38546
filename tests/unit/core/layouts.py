"""What a job's memory stores plainly, as its layout says."""

from __future__ import annotations

from typing import Any

from heterotrain_operator.core.fields import layout_of


def plain_fields(kind: type[Any]) -> list[tuple[str, Any]]:
    """Names and defaults of what a value keeps in the one object, with those of the values within it."""
    layout = layout_of(kind)
    within = [each for _, part in layout.parts for each in plain_fields(part)]
    return [(name, default) for name, default, _ in layout.plain] + within


def stored_names(kind: type[Any]) -> set[str]:
    """The names under which a value and those within it are stored, tables among them."""
    layout = layout_of(kind)
    own = {name for name, *_ in (*layout.plain, *layout.tables)}
    return own.union(*(stored_names(part) for _, part in layout.parts))
