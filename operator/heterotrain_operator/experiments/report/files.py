"""Keep a report in a folder: series, decisions and figures as JSON, the user's files, pictures, and the page."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

from heterotrain_operator.experiments.figures.history import TrialHistory
from heterotrain_operator.experiments.figures.summary import Summary
from heterotrain_operator.experiments.report import kept, simulated, trials
from heterotrain_operator.experiments.report.drawing import png_of
from heterotrain_operator.experiments.report.page import page
from heterotrain_operator.experiments.report.value import Report
from heterotrain_operator.experiments.simulations.comparison import Comparison
from heterotrain_operator.experiments.trials.trial import TrialResult


def write_trials(folder: Path, summary: Summary, course: trials.Course) -> Path:
    """Write series, decisions, summary, pictures and the page into `folder`; returns the page's path.

    Raises OSError if the folder cannot be written.
    """
    results = (*course.trials, *course.profiles)
    for each in results:
        (folder / f"{each.slug}-series.jsonl").write_text(_series(each), encoding="utf-8")
    kept.keep(folder, summary, results)
    (folder / "manifest.yaml").write_text(course.manifest, encoding="utf-8")
    if course.schedule:
        (folder / "schedule.yaml").write_text(course.schedule, encoding="utf-8")
    return _write_page(folder, trials.report_of(summary, course))


def write_simulation(folder: Path, found: Comparison, course: simulated.Course) -> Path:
    """Write figures, pictures, the scenario and the page into `folder`; returns the page's path.

    Raises OSError if the folder cannot be written.
    """
    first = {
        policy: {
            "seed": result.scenario.seed,
            "workers": result.workers,
            "interval_ratios": [round(float(ratio), 6) for ratio in result.interval_ratios if math.isfinite(ratio)],
            "plans": [asdict(plan) for plan in result.plans],
            "events": [asdict(happened) for happened in result.events],
        }
        for policy, result in course.shown.items()
    }
    kept.write_json(folder / "results.json", {**found.to_json(), "heterotrain": course.version, "first": first})
    (folder / "scenario.yaml").write_text(course.scenario, encoding="utf-8")
    return _write_page(folder, simulated.report_of(found, course))


def _write_page(folder: Path, report: Report) -> Path:
    pictures = {plot.name: png_of(plot) for plot in report.plots()}
    for name, png in pictures.items():
        (folder / name).write_bytes(png)
    path = folder / "report.html"
    path.write_text(page(report, pictures), encoding="utf-8")
    return path


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
