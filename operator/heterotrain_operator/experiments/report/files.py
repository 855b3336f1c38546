"""Write a report into a folder: series and decisions as JSON lines, pictures, and the page."""

from __future__ import annotations

import json
from pathlib import Path

from heterotrain_operator.experiments.figures.history import TrialHistory
from heterotrain_operator.experiments.report import plots
from heterotrain_operator.experiments.report.contents import ReportContents
from heterotrain_operator.experiments.report.page import page
from heterotrain_operator.experiments.trials.result import TrialResult


def draw(run: ReportContents) -> dict[str, bytes]:
    """All pictures, PNG by file name."""
    pictures = {"loss.png": plots.losses([each.history for each in run.trials])}
    for each in run.trials:
        pictures[f"{each.slug}.png"] = plots.batches_and_times(each.history, run.names)
    if run.summary.profile is not None:
        pictures["profile.png"] = plots.own_times(run.summary.profile)
    return pictures


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


def write(folder: Path, run: ReportContents) -> Path:
    """Write series, decisions, summary, pictures and the page into `folder`; returns the page's path.

    Raises OSError if the folder cannot be written.
    """
    for each in (*run.trials, *run.profiles):
        decisions = "".join(entry.to_json() + "\n" for entry in each.entries)
        (folder / f"{each.slug}-series.jsonl").write_text(_series(each), encoding="utf-8")
        (folder / f"{each.slug}-decisions.jsonl").write_text(decisions, encoding="utf-8")
    summary = json.dumps(run.summary.to_json(), indent=2, allow_nan=False)
    (folder / "summary.json").write_text(summary + "\n", encoding="utf-8")
    (folder / "manifest.yaml").write_text(run.manifest, encoding="utf-8")
    if run.schedule:
        (folder / "schedule.yaml").write_text(run.schedule, encoding="utf-8")
    pictures = draw(run)
    for name, png in pictures.items():
        (folder / name).write_bytes(png)
    report = folder / "report.html"
    report.write_text(page(run, pictures), encoding="utf-8")
    return report
