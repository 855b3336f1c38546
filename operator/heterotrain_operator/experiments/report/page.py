"""The report as one page that needs nothing else.

The page holds everything inside itself, so that it can be mailed or kept; of the machine it shows only what
affects the figures, never its name.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from heterotrain_operator.experiments import sentences, wording
from heterotrain_operator.experiments.figures.summary import Summary
from heterotrain_operator.experiments.figures.trial_summary import TrialSummary
from heterotrain_operator.experiments.report.contents import ReportContents
from heterotrain_operator.experiments.trials.journal import Entry

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


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], text: frozenset[str] = frozenset()) -> str:
    kinds = [' class="text"' if heading in text else "" for heading in headings]
    head = "".join(f"<th{kind}>{escape(h)}</th>" for kind, h in zip(kinds, headings, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{k}>{escape(cell)}</td>" for k, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _trials(summary: Summary) -> str:
    rounds = sentences.rounds_of(summary.trials)
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
                sentences.title(trial, rounds),
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
    names = sentences.metrics_of([trial])
    rows = [
        (str(each.step), wording.seconds(each.seconds), *(wording.loss(each.metrics.get(name)) for name in names))
        for each in trial.evaluations
    ]
    return "<h3>Evaluations</h3>" + _table(("step", "after", *names), rows)


def _workers(summary: Summary) -> str:
    rounds = sentences.rounds_of(summary.trials)
    return _table(
        ("policy", "worker", "batch", "samples", "own time", "wait", "waiting"),
        [
            (
                sentences.title(trial, rounds),
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
    rows = [(phase.label, *sentences.phase_figures(phase)) for phase in trial.phases]
    return _table(("CPU limits", *sentences.PHASE_FIGURES), rows)


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
    return "".join(f"<p>{escape(line)}</p>" for line in sentences.ceilings(summary)) + _table(headings, rows)


def _picture(png: bytes, words: str) -> str:
    return f'<img alt="{escape(words)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'


def page(run: ReportContents, pictures: Mapping[str, bytes]) -> str:
    """The report as one HTML page that refers to nothing outside itself."""
    summary, facts = run.summary, run.facts
    parts = [
        f"<h1>{escape(summary.job)}</h1>",
        f"<p>heterotrain {escape(facts.version)} on {facts.cpu_cores} CPU cores. {escape(facts.limits)}</p>",
    ]
    parts += [f'<p class="lead">{escape(sentences.speedup(found))}</p>' for found in summary.speedup]
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
