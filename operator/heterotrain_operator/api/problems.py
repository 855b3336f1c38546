"""What is wrong with a manifest: every problem with its path, so that a user can correct all of them at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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
