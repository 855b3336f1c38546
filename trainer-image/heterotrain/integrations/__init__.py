"""Other frameworks' training loops in a session. None of them is imported before a script asks for it."""

from __future__ import annotations

from typing import Any


def refuse_options(options: dict[str, tuple[Any, str]]) -> None:
    """Raises ValueError for options that are set: a name, its value, and what to do instead."""
    for name, (value, instead) in options.items():
        if value:
            raise ValueError(f"{name} is without effect in a session; {instead}")
