"""Write the report of simulated runs into a folder: figures, pictures, the scenario, and the page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from heterotrain_operator.experiments import wording
from heterotrain_operator.experiments.report import plots
from heterotrain_operator.experiments.report.page import document, picture
from heterotrain_operator.experiments.report.simulated_history import (
    DRAWN_WORKERS,
    drawn_workers,
    entries_of,
    history_of,
)
from heterotrain_operator.experiments.report.tables import decisions_table, table
from heterotrain_operator.experiments.simulations.comparison import Comparison
from heterotrain_operator.experiments.simulations.result import SimulationResult
from heterotrain_operator.experiments.simulations.words import HEADINGS, MEANING, SIMULATED, figures, lead

DECISIONS = 200
"""Decisions of a policy that the page lists at most; `results.json` has all plans."""


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """All that the report shows: `shown` is the first run of every policy, `scenario` the file's text."""

    comparison: Comparison
    shown: Mapping[str, SimulationResult]
    scenario: str
    version: str


def write(folder: Path, report: SimulationReport) -> Path:
    """Write figures, pictures, the scenario and the page into `folder`; returns the page's path.

    Raises OSError if the folder cannot be written.
    """
    results = json.dumps(_results(report), indent=2, allow_nan=False)
    (folder / "results.json").write_text(results + "\n", encoding="utf-8")
    (folder / "scenario.yaml").write_text(report.scenario, encoding="utf-8")
    pictures = _draw(report)
    for name, png in pictures.items():
        (folder / name).write_bytes(png)
    page = folder / "report.html"
    page.write_text(_page(report, pictures), encoding="utf-8")
    return page


def _results(report: SimulationReport) -> dict[str, Any]:
    """The figures of all runs, and of every policy's first one its plans and how it fared in each interval."""
    first = {
        policy: {
            "seed": result.scenario.seed,
            "workers": result.workers,
            "interval_ratios": [round(float(ratio), 6) for ratio in result.interval_ratios],
            "plans": [asdict(plan) for plan in result.plans],
            "events": [asdict(happened) for happened in result.events],
        }
        for policy, result in report.shown.items()
    }
    return {**report.comparison.to_json(), "heterotrain": report.version, "first": first}


def _draw(report: SimulationReport) -> dict[str, bytes]:
    """All pictures, PNG by file name."""
    pictures = {"ratios.png": interval_ratios(report.shown)}
    for policy, result in report.shown.items():
        pictures[_picture_name(policy)] = plots.batches_and_times(history_of(policy, result), drawn_workers(result))
    return pictures


def interval_ratios(results: Mapping[str, SimulationResult]) -> bytes:
    """PNG of the time of steps over the best split's, by control interval, a line per policy."""
    figure = Figure(figsize=(plots.WIDTH_INCHES, 3.6), layout="constrained")
    axes = figure.subplots()
    shown: list[float] = []
    for index, (policy, result) in enumerate(results.items()):
        ratios = [float(ratio) for ratio in result.interval_ratios]
        shown += ratios
        tint, line = plots.colour(index)
        axes.plot(range(len(ratios)), ratios, line, color=tint, linewidth=plots.THIN, label=policy)
    plots.dress(axes, "step time over the best split's")
    axes.axhline(1.0, color="#555555", linewidth=1.0, linestyle=":")
    axes.set_xlabel("control interval")
    axes.set_xlim(left=0)
    axes.set_ylim(min([0.98, *shown]) - 0.02, plots.above_most(shown) if shown else None)
    axes.set_title("Step time over that of the best split, simulated", loc="left", fontweight="bold")
    if results:
        axes.legend(frameon=False)
    return plots.png_of(figure)


def _page(report: SimulationReport, pictures: Mapping[str, bytes]) -> str:
    found = report.comparison
    parts = [
        f"<h1>{escape(found.scenario)}, simulated</h1>",
        f"<p>{escape(found.description)}</p>",
        f"<p>{escape(lead(found))}. heterotrain {escape(report.version)}.</p>",
        f'<p class="doubt">{escape(SIMULATED)}</p>',
        *(f'<p class="doubt">{escape(_failure(run.policy, run.seed, run.message))}</p>' for run in found.failed),
        "<h2>Policies</h2>",
        f"<p>{escape(MEANING)}</p>",
        table(
            ("policy", *HEADINGS),
            [(each.policy, *figures(each)) for each in found.policies],
            frozenset({HEADINGS[-1]}),
        ),
        picture(pictures["ratios.png"], "Step time over the best split's by control interval, a line per policy"),
    ]
    for policy, result in report.shown.items():
        parts += _policy(policy, result, pictures[_picture_name(policy)])
    parts += ["<h2>Scenario</h2>", f"<pre>{escape(report.scenario)}</pre>"]
    return document(f"{found.scenario}: heterotrain simulation", parts)


def _failure(policy: str, seed: int, message: str) -> str:
    return f"{policy}, seed {seed}: {message}"


def _policy(policy: str, result: SimulationResult, png: bytes) -> Sequence[str]:
    """The first run of a policy: its picture and its decisions."""
    entries = entries_of(result)
    hidden = len(result.workers) - DRAWN_WORKERS
    parts = [
        f"<h2>{escape(policy)}, seed {result.scenario.seed}</h2>",
        f"<p>{result.steps:,} steps in {wording.clock(result.virtual_seconds)} of the simulation's clock.</p>",
    ]
    if hidden > 0:
        parts.append(f"<p>The first {DRAWN_WORKERS} workers; {hidden:,} more are not drawn.</p>")
    parts += [picture(png, f"{policy}: batch size and own time by step"), decisions_table(entries[:DECISIONS])]
    if len(entries) > DECISIONS:
        parts.append(f"<p>{len(entries) - DECISIONS:,} later decisions are not listed.</p>")
    return parts


def _picture_name(policy: str) -> str:
    return f"{policy.lower()}.png"
