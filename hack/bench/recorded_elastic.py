"""Recorded figures of jobs whose members change, as tables for the documents."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import torch

Document = Mapping[str, Any]


def this_machine() -> dict[str, object]:
    """Where a benchmark runs, and how much else runs beside it: the processes that want a CPU, before it begins."""
    load = round(os.getloadavg()[0], 1)
    return {"cores": os.cpu_count(), "load": load, "python": platform.python_version(), "torch": torch.__version__}


def _machine(document: Document) -> str:
    machine = document["machine"]
    return (
        f"Measured on {machine['cores']} cores, Python {machine['python']}, torch {machine['torch']}; the load was "
        f"{machine['load']:g} before it began."
    )


def _table(headings: Sequence[str], texts: int, rows: Sequence[Sequence[str]]) -> str:
    """`texts`: columns that are text; the others are numbers."""
    lines = [headings, ["---"] * texts + ["---:"] * (len(headings) - texts), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def transition(documents: Sequence[Document]) -> str:
    """A row for each kind of change and number of workers."""
    return "\n\n".join(map(_transition, documents))


def _transition(document: Document) -> str:
    rows = []
    kinds = dict.fromkeys((each["what"], each["workers"]) for each in document["transitions"])
    for what, workers in kinds:
        of_kind = [each for each in document["transitions"] if (each["what"], each["workers"]) == (what, workers)]
        idle = [1000 * each["idle"] for each in of_kind]
        goal = of_kind[0]["goal"]
        rows.append(
            [
                what,
                str(workers),
                str(len(of_kind)),
                f"{1000 * median(each['step'] for each in of_kind):.0f}",
                f"{median(idle):.0f}",
                f"{max(idle):.0f}",
                "-" if goal is None else f"{1000 * goal:.0f}",
                str(max(each["lost"] for each in of_kind)),
                str(max(each["repeated"] for each in of_kind)),
            ]
        )
    headings = (
        "change",
        "workers",
        "times",
        "step, ms",
        "idle, ms, median",
        "longest",
        "goal",
        "samples lost",
        "repeated",
    )
    return _table(headings, 1, rows) + "\n\n" + _machine(document)


def handover(documents: Sequence[Document]) -> str:
    """A row for each number of holders and takers."""
    return "\n\n".join(map(_handover, documents))


def _handover(document: Document) -> str:
    rows = [
        [
            str(row["holders"]),
            str(row["takers"]),
            *("-" if row[way] is None else f"{row[way]:.0f}" for way in ("pairs", "broadcast")),
            row["chosen"],
        ]
        for row in document["rows"]
    ]
    headings = ("holders", "takers", "in pairs, ms", "by a broadcast, ms", "taken")
    summary = f"A state of {document['megabytes']} MB, medians of {document['times']}. "
    return _table(headings, 0, rows) + "\n\n" + summary + _machine(document)


def chaos(documents: Sequence[Document]) -> str:
    """How many jobs ended as they should, and under which faults."""
    return "\n\n".join(map(_chaos, documents))


def _chaos(document: Document) -> str:
    runs = document["runs"]
    faults = Counter(fault["verb"] for run in runs for fault in run["planned"])
    rows = [[verb, str(count)] for verb, count in sorted(faults.items())]
    worst = max((run["difference"] for run in runs if run["difference"] is not None), default=float("nan"))
    failed = ", ".join(map(str, document["failed"])) or "none"
    summary = (
        f"{len(runs)} jobs of {document['setting']['workers']} workers, {faults.total()} faults. Jobs that did not end "
        f"as the undisturbed run, by seed: {failed}. Weights differ from its by {worst:.0e} at most. "
    )
    return _table(("fault", "times"), 1, rows) + "\n\n" + summary + _machine(document)
