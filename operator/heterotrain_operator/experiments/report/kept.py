"""What stays of a run beside its logs, so that it can be explained and drawn later: figures, decisions and series.

A later version reads it, too: fields that are added to a summary or an entry need a default.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from heterotrain.contract import StepRecord
from heterotrain.foreign import as_text
from heterotrain_operator.api import ManifestError, parse_manifest
from heterotrain_operator.api.document import read_documents
from heterotrain_operator.experiments.figures.history import TrialHistory
from heterotrain_operator.experiments.figures.series import align
from heterotrain_operator.experiments.figures.summary import KEYS, Summary
from heterotrain_operator.experiments.report import page
from heterotrain_operator.experiments.report.trials import Course, report_of
from heterotrain_operator.experiments.trials.observer import Entry
from heterotrain_operator.experiments.trials.trial import Trial, TrialResult

SUMMARY = "summary.json"
DECISIONS, SERIES = "-decisions.jsonl", "-series.jsonl"
MANIFEST, SCHEDULE = "manifest.yaml", "schedule.yaml"

MOST_BYTES = 64 * 2**20
"""Of a file that is read back."""

LONGEST_NAME = 253
"""Characters of a worker's name."""


def write_json(path: Path, document: dict[str, Any]) -> None:
    """A document as a file. Raises OSError."""
    path.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def keep(folder: Path, summary: Summary, course: Course) -> None:
    """Write the figures, the decisions and the series of a run, and the files that it was given, into its folder.
    Raises OSError.
    """
    for each in (*course.trials, *course.profiles):
        decisions = "".join(entry.to_json() + "\n" for entry in each.entries)
        (folder / f"{each.slug}{DECISIONS}").write_text(decisions, encoding="utf-8")
        (folder / f"{each.slug}{SERIES}").write_text(_series(each), encoding="utf-8")
    (folder / MANIFEST).write_text(course.manifest, encoding="utf-8")
    if course.schedule:
        (folder / SCHEDULE).write_text(course.schedule, encoding="utf-8")
    write_json(folder / SUMMARY, summary.to_json())


def draw(folder: Path, summary: Summary, course: Course) -> Path:
    """Write the page and the trace of a run into its folder; returns the page's path. Raises OSError."""
    return page.write(folder, report_of(summary, course), [each.history for each in course.trials])


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


def read_course(folder: Path) -> tuple[Summary, Course]:
    """All that the page of a run shows. Raises OSError and ValueError, as `read` does."""
    summary, decisions = read(folder)
    results = []
    for found in summary.trials:
        trial = Trial(found.policy, found.round)
        if trial.slug not in decisions:
            raise ValueError(f"{folder} has no decisions of {trial.slug}")
        history = TrialHistory(
            policy=found.policy,
            round=found.round,
            steps=align(_read_series(folder / f"{trial.slug}{SERIES}"), together=not found.asynchronous),
            adjustments=found.adjustments,
            phase=found.phase,
            message=found.message,
            restarts=found.restarts,
            changes=found.changes,
            faults=found.faults,
            sizes=found.sizes,
            cost=found.cost,
            asynchronous=found.asynchronous,
        )
        results.append(TrialResult(trial, history, decisions[trial.slug], {}))
    names = tuple(worker.name for worker in summary.trials[0].worker) if summary.trials else ()
    schedule = folder / SCHEDULE
    return summary, Course(
        trials=tuple(results),
        profiles=(),
        names=names,
        manifest=_text(folder / MANIFEST),
        schedule=_text(schedule) if schedule.exists() else "",
        prices=_prices(folder / MANIFEST),
    )


def _prices(manifest: Path) -> dict[str, float | None]:
    try:
        (document,) = read_documents(manifest)
        groups = parse_manifest(document).spec.worker_groups
    except (ManifestError, ValueError):  # of another version
        return {}
    return {group.name: group.price_per_hour for group in groups}


def _series(trial: TrialResult) -> str:
    """One JSON line per step and worker, in the order of steps; replayed steps occur as often as they ran. Where limits
    changed, `cpuLimit` is the worker's since the last change, in cores.
    """
    lines = [
        (
            record.step,
            rank,
            {"worker": name, **json.loads(record.to_json()), **_limit(trial.history, name, record.time)},
        )
        for rank, (name, records) in enumerate(trial.series.items())
        for record in records
    ]
    return "".join(json.dumps(line) + "\n" for *_, line in sorted(lines, key=lambda entry: entry[:2]))


def _limit(trial: TrialHistory, worker: str, seconds: float) -> dict[str, float | None]:
    """The limit since the last change; empty before the first one, when the manifest's limit holds."""
    limits = next((change.limits for change in reversed(trial.changes) if change.seconds <= seconds), None)
    return {} if limits is None else {"cpuLimit": limits[worker]}


def _read_series(path: Path) -> dict[str, list[StepRecord]]:
    """The records of a trial by worker, in the order of ranks, and of each in the order of time."""
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path} is larger than {MOST_BYTES >> 20} MiB, too large for a page")
    found: dict[str, list[StepRecord]] = {}
    for number, line in enumerate(_text(path).splitlines(), start=1):
        try:
            worker = json.loads(line)["worker"]
            found.setdefault(as_text(worker, LONGEST_NAME), []).append(StepRecord.from_json(line))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    return {name: sorted(records, key=lambda record: record.time) for name, records in found.items()}


def _text(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(MOST_BYTES)
