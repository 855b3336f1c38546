"""What each worker did in each step, as a file that Perfetto and Chrome's tracing show: computing, waiting, plans.

The format is Chrome's JSON array of trace events: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from heterotrain_operator.experiments.figures.history import TrialHistory
from heterotrain_operator.experiments.figures.steps import Step

NAME = "trace.json"

MOST_EVENTS = 100_000
"""Of all trials together, about 15 MB; where there are more, steps from the middle of each trial are left out."""


def write(path: Path, trials: Sequence[TrialHistory], most_events: int = MOST_EVENTS) -> None:
    """Write the first and the newest steps of all trials, a process each with a thread per worker; its label says which
    steps are left out. Raises OSError."""
    with path.open("w", encoding="utf-8") as file:
        separator = "[\n"
        for number, trial in enumerate(trials, start=1):
            for event in _events(trial, number, most_events // len(trials)):
                file.write(separator + json.dumps(event))
                separator = ",\n"
        file.write("[]\n" if separator == "[\n" else "\n]\n")


def _bounded(steps: Sequence[Step], most_events: int) -> tuple[Sequence[Step], str]:
    """As many of the first as of the newest steps, two events for each worker, and words for those left out: batches
    are balanced in the first ones, and the newest show where that has led."""
    each_side = most_events // (4 * max((len(step.records) for step in steps), default=1))
    begin, end = max(each_side, 1), len(steps) - max(each_side, 1)
    if begin >= end:
        return steps, ""
    left_out = f"steps {steps[begin].number} to {steps[end - 1].number} are left out"
    return [*steps[:begin], *steps[end:]], left_out


def _events(trial: TrialHistory, process: int, most_events: int) -> Iterator[dict[str, Any]]:
    """Times are microseconds since the first step began."""
    steps, left_out = _bounded(trial.steps, most_events)
    names = list(dict.fromkeys(name for step in steps for name in step.records))
    yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": trial.title}}
    if left_out:
        yield {"ph": "M", "pid": process, "name": "process_labels", "args": {"labels": left_out}}
    for rank, name in enumerate(names):
        yield {"ph": "M", "pid": process, "tid": rank, "name": "thread_name", "args": {"name": name}}
    first = trial.steps[0].records.values() if trial.steps else ()
    began = min((each.time - each.own - each.wait for each in first), default=0.0)
    batches: dict[str, int] = {}
    for step in steps:
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
