"""What stays of a run beside its logs, so that it can be explained later: its figures, and its decisions.

A later version reads it, too: fields that are added to a summary or an entry need a default.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from heterotrain_operator.experiments.figures.summary import KEYS, Summary
from heterotrain_operator.experiments.trials.observer import Entry
from heterotrain_operator.experiments.trials.trial import TrialResult

SUMMARY = "summary.json"
DECISIONS = "-decisions.jsonl"

MOST_BYTES = 64 * 2**20
"""Of a file that is read back."""


def write_json(path: Path, document: dict[str, Any]) -> None:
    """A document as a file. Raises OSError."""
    path.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def keep(folder: Path, summary: Summary, results: Sequence[TrialResult]) -> None:
    """Write the figures and the decisions of a run into its folder. Raises OSError."""
    for each in results:
        decisions = "".join(entry.to_json() + "\n" for entry in each.entries)
        (folder / f"{each.slug}{DECISIONS}").write_text(decisions, encoding="utf-8")
    write_json(folder / SUMMARY, summary.to_json())


def read(folder: Path) -> tuple[Summary, dict[str, tuple[Entry, ...]]]:
    """The figures of a run, and the decisions of its trials by their names in file names. Raises OSError where there
    are none, ValueError where they cannot be understood, as those of another version.
    """
    document = json.loads(_text(folder / SUMMARY))
    if not isinstance(document, dict):
        raise ValueError(f"{folder / SUMMARY} holds no summary")
    former = {kept: name for name, kept in KEYS.items()}
    try:
        summary = TypeAdapter(Summary).validate_python({former.get(key, key): value for key, value in document.items()})
        decisions = {
            path.name.removesuffix(DECISIONS): tuple(map(TypeAdapter(Entry).validate_json, _text(path).splitlines()))
            for path in sorted(folder.glob(f"*{DECISIONS}"))
        }
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{folder}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    return summary, decisions


def _text(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(MOST_BYTES)
