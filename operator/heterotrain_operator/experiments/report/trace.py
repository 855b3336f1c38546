"""What each worker did in each step, as a file that Perfetto and Chrome's tracing show: computing, waiting, plans.

The format is Chrome's JSON array of trace events: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from heterotrain_operator.experiments.figures.history import TrialHistory

NAME = "trace.json"


def write(path: Path, trials: Sequence[TrialHistory]) -> None:
    """Write the steps of all trials, a process each with a thread per worker. Raises OSError."""
    with path.open("w", encoding="utf-8") as file:
        separator = "[\n"
        for number, trial in enumerate(trials, start=1):
            for event in _events(trial, number):
                file.write(separator + json.dumps(event))
                separator = ",\n"
        file.write("[]\n" if separator == "[\n" else "\n]\n")


def _events(trial: TrialHistory, process: int) -> Iterator[dict[str, Any]]:
    """Times are microseconds since the first step began."""
    names = list(dict.fromkeys(name for step in trial.steps for name in step.records))
    yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": trial.title}}
    for rank, name in enumerate(names):
        yield {"ph": "M", "pid": process, "tid": rank, "name": "thread_name", "args": {"name": name}}
    first = trial.steps[0].records.values() if trial.steps else ()
    began = min((each.time - each.own - each.wait for each in first), default=0.0)
    batches: dict[str, int] = {}
    for step in trial.steps:
        if any(batches.get(name) != batch for name, batch in step.batches.items()):
            at = min(each.time - each.own - each.wait for each in step.records.values())
            yield {"ph": "C", "pid": process, "name": "batch", "ts": round(1e6 * (at - began)), "args": step.batches}
        batches |= step.batches
        for name, record in step.records.items():
            done = record.time - record.wait
            about = {"step": step.number, "samples": record.samples, "plan": record.version, "mark": record.mark}
            for kind, start, seconds in (("compute", done - record.own, record.own), ("wait", done, record.wait)):
                yield {
                    "ph": "X",
                    "pid": process,
                    "tid": names.index(name),
                    "name": kind,
                    "ts": round(1e6 * (start - began)),
                    "dur": round(1e6 * seconds),
                    "args": about,
                }
