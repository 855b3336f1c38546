"""Write a run into a folder: series and decisions as JSON lines, pictures, and one page that needs nothing
else.

The page holds everything inside itself, so that it can be mailed or kept; of the machine it names only what
bears on the figures, never its name.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from heterotrain.contract import StepRecord
from heterotrain_operator.experiments import plots, wording
from heterotrain_operator.experiments.journal import Entry
from heterotrain_operator.experiments.summary import Summary, TrialHistory, TrialSummary

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 74rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0.2rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p.lead { font-size: 1.1rem; font-weight: 600; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { padding: 0.3rem 0.7rem; text-align: right; border-bottom: 1px solid #8884; vertical-align: top; }
td:not(.text) { white-space: nowrap; }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
img { width: 100%; height: auto; background: white; border-radius: 4px; margin: 0.5rem 0; }
pre { overflow-x: auto; padding: 0.8rem; border: 1px solid #8884; border-radius: 4px; font-size: 0.85rem; }
.doubt { border-left: 4px solid #d55e00; padding-left: 0.8rem; }
"""


@dataclass(frozen=True, slots=True)
class Facts:
    """What bears on the figures besides the job: this machine's CPU cores, and how limits were imposed on
    them.
    """

    cpu_cores: int
    limits: str
    version: str


@dataclass(frozen=True, slots=True)
class TrialReport:
    """One trial with the decisions that were taken in it, and every worker's records; `slug` is its file name."""

    history: TrialHistory
    slug: str
    entries: tuple[Entry, ...]
    series: Mapping[str, Sequence[StepRecord]]


@dataclass(frozen=True, slots=True)
class Run:
    """All that a report shows. `names` are the workers by rank, `manifest` and `schedule` are the
    files' texts.

    `profiles` are the trials that only measured; they are kept as series, not drawn.
    """

    summary: Summary
    trials: tuple[TrialReport, ...]
    profiles: tuple[TrialReport, ...]
    names: tuple[str, ...]
    manifest: str
    facts: Facts
    schedule: str = ""


def draw(run: Run) -> dict[str, bytes]:
    """All pictures, PNG by file name."""
    pictures = {"loss.png": plots.losses([each.history for each in run.trials])}
    for each in run.trials:
        pictures[f"{each.slug}.png"] = plots.batches_and_times(each.history, run.names)
    if run.summary.profile is not None:
        pictures["profile.png"] = plots.own_times(run.summary.profile)
    return pictures


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], text: frozenset[str] = frozenset()) -> str:
    kinds = [' class="text"' if heading in text else "" for heading in headings]
    head = "".join(f"<th{kind}>{escape(h)}</th>" for kind, h in zip(kinds, headings, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{k}>{escape(cell)}</td>" for k, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _trials(summary: Summary) -> str:
    rounds = wording.rounds_of(summary.trials)
    return _table(
        (
            "policy",
            "ended",
            "steps",
            "time",
            "samples/s",
            "iteration",
            "adjustments",
            "restarts",
            "final loss",
            "to target",
            "of ceiling",
            "of ceiling, all steps",
        ),
        [
            (
                wording.title(trial, rounds),
                trial.phase,
                str(trial.steps),
                wording.seconds(trial.seconds),
                wording.rate(trial.samples_per_second),
                wording.seconds(trial.iteration_seconds),
                str(trial.adjustments),
                str(trial.restarts),
                wording.loss(trial.final_loss),
                wording.seconds(trial.target_seconds),
                wording.percent(trial.ceiling_fraction),
                wording.percent(trial.ceiling_fraction_all),
            )
            for trial in summary.trials
        ],
        frozenset({"ended"}),
    )


def _evaluations(trial: TrialSummary) -> str:
    if not trial.evaluations:
        return ""
    names = wording.metrics_of([trial])
    rows = [
        (str(each.step), wording.seconds(each.seconds), *(wording.loss(each.metrics.get(name)) for name in names))
        for each in trial.evaluations
    ]
    return "<h3>Evaluations</h3>" + _table(("step", "after", *names), rows)


def _workers(summary: Summary) -> str:
    rounds = wording.rounds_of(summary.trials)
    return _table(
        ("policy", "worker", "batch", "samples", "own time", "wait", "waiting"),
        [
            (
                wording.title(trial, rounds),
                worker.name,
                str(worker.batch),
                f"{worker.samples:,}",
                wording.seconds(worker.settled_own_seconds),
                wording.seconds(worker.settled_wait_seconds),
                wording.percent(worker.wait_share),
            )
            for trial in summary.trials
            for worker in trial.worker
        ],
        frozenset({"worker"}),
    )


def _phases(trial: TrialSummary) -> str:
    if not trial.phases:
        return ""
    rows = [(phase.label, *wording.phase_figures(phase)) for phase in trial.phases]
    return _table(("CPU limits", *wording.PHASE_FIGURES), rows)


def _decisions(entries: Sequence[Entry]) -> str:
    rows = [
        (
            str(entry.step),
            wording.clock(entry.seconds),
            "" if entry.version is None else str(entry.version),
            wording.batches(entry.batches),
            "; ".join(f"{event.reason}: {event.message}" for event in entry.events) or entry.reason,
        )
        for entry in entries
    ]
    return _table(("step", "after", "plan", "batches", "why"), rows, frozenset({"why", "batches"}))


def _profile(summary: Summary) -> str:
    if summary.profile is None:
        return ""
    rows = [
        (
            worker.name,
            str(point.batch),
            wording.seconds(point.own_seconds),
            wording.seconds(point.spread_seconds),
            str(point.steps),
            wording.seconds(point.before_seconds),
            wording.seconds(point.after_seconds),
        )
        for worker in summary.profile.workers
        for point in worker.points
    ]
    headings = ("worker", "batch", "own time (median)", "interquartile range", "steps", "before", "after")
    return "".join(f"<p>{escape(line)}</p>" for line in wording.ceilings(summary)) + _table(headings, rows)


def _picture(png: bytes, words: str) -> str:
    return f'<img alt="{escape(words)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'


def page(run: Run, pictures: Mapping[str, bytes]) -> str:
    """The report as one HTML page that refers to nothing outside itself."""
    summary, facts = run.summary, run.facts
    parts = [
        f"<h1>{escape(summary.job)}</h1>",
        f"<p>heterotrain {escape(facts.version)} on {facts.cpu_cores} CPU cores. {escape(facts.limits)}</p>",
    ]
    parts += [f'<p class="lead">{escape(wording.speedup(found))}</p>' for found in summary.speedup]
    if summary.message:
        parts.append(f'<p class="doubt">{escape(summary.phase)}: {escape(summary.message)}</p>')
    parts += [f'<p class="doubt">Doubtful: {escape(warning)}</p>' for warning in summary.warnings]
    parts += [
        "<h2>Trials</h2>",
        "<p>Iteration: median since the last adjustment of the batches. Samples per second: over the whole trial.</p>",
        _trials(summary),
        _picture(pictures["loss.png"], "Training loss over time, one line per trial"),
        "<h2>Workers</h2>",
        "<p>Means since the last adjustment.</p>",
        _workers(summary),
    ]
    by_name = {(trial.policy, trial.round): trial for trial in summary.trials}
    for each in run.trials:
        parts += [
            f"<h2>{escape(each.history.title)}</h2>",
            _phases(by_name[each.history.policy, each.history.round]),
            _picture(pictures[f"{each.slug}.png"], f"{each.history.title}: batch size and own time by step"),
            _evaluations(by_name[each.history.policy, each.history.round]),
            _decisions(each.entries),
        ]
    if summary.profile is not None:
        parts += [
            "<h2>Ceiling</h2>",
            _profile(summary),
            _picture(pictures["profile.png"], "Own time of every worker by batch size"),
        ]
    parts += ["<h2>Manifest</h2>", f"<pre>{escape(run.manifest)}</pre>"]
    if run.schedule:
        parts += ["<h2>Schedule</h2>", f"<pre>{escape(run.schedule)}</pre>"]
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(summary.job)}: heterotrain report</title><style>{STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _series(trial: TrialReport) -> str:
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
    """Nothing before the first change: then it is what the manifest says."""
    limits = next((change.limits for change in reversed(trial.changes) if change.seconds <= seconds), None)
    return {} if limits is None else {"cpuLimit": limits[worker]}


def write(folder: Path, run: Run) -> Path:
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
