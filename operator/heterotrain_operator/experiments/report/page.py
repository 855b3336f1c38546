"""The report as one page that needs nothing else.

The page holds everything inside itself, so that it can be mailed or kept; of the machine it shows only what
affects the figures, never its name.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from html import escape

from heterotrain_operator.experiments import sentences
from heterotrain_operator.experiments.report.contents import ReportContents
from heterotrain_operator.experiments.report.tables import (
    decisions_table,
    evaluations_table,
    phases_table,
    profile_table,
    trials_table,
    workers_table,
)
from heterotrain_operator.experiments.trials.result import TrialResult

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


def page(run: ReportContents, pictures: Mapping[str, bytes]) -> str:
    """The report as one HTML page that refers to nothing outside itself."""
    parts = [*_lead(run), *_overview(run, pictures)]
    parts += [part for each in run.trials for part in _trial(each, run, pictures)]
    parts += _ceiling(run, pictures)
    parts += ["<h2>Manifest</h2>", f"<pre>{escape(run.manifest)}</pre>"]
    if run.schedule:
        parts += ["<h2>Schedule</h2>", f"<pre>{escape(run.schedule)}</pre>"]
    return document(f"{run.summary.job}: heterotrain report", parts)


def document(title: str, parts: Iterable[str]) -> str:
    """A page of HTML that refers to nothing outside itself."""
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _lead(run: ReportContents) -> list[str]:
    """What matters most: the machine, the speed-up, and what is doubtful about it."""
    summary, facts = run.summary, run.facts
    parts = [
        f"<h1>{escape(summary.job)}</h1>",
        f"<p>heterotrain {escape(facts.version)} on {facts.cpu_cores} CPU cores. {escape(facts.limits)}</p>",
    ]
    parts += [f'<p class="lead">{escape(sentences.speedup(found))}</p>' for found in summary.speedup]
    if summary.message:
        parts.append(f'<p class="doubt">{escape(summary.phase)}: {escape(summary.message)}</p>')
    return [*parts, *(f'<p class="doubt">Doubtful: {escape(warning)}</p>' for warning in summary.warnings)]


def _overview(run: ReportContents, pictures: Mapping[str, bytes]) -> list[str]:
    """All trials side by side."""
    return [
        "<h2>Trials</h2>",
        "<p>Iteration: median since the last adjustment of the batches. Samples per second: over the whole trial.</p>",
        trials_table(run.summary),
        picture(pictures["loss.png"], "Training loss over time, one line per trial"),
        "<h2>Workers</h2>",
        "<p>Means since the last adjustment.</p>",
        workers_table(run.summary),
    ]


def _trial(result: TrialResult, run: ReportContents, pictures: Mapping[str, bytes]) -> list[str]:
    """One trial: its phases, its pictures, its evaluations and its decisions."""
    history = result.history
    found = next(each for each in run.summary.trials if (each.policy, each.round) == (history.policy, history.round))
    return [
        f"<h2>{escape(history.title)}</h2>",
        phases_table(found),
        picture(pictures[f"{result.slug}.png"], f"{history.title}: batch size and own time by step"),
        evaluations_table(found),
        decisions_table(result.entries),
    ]


def _ceiling(run: ReportContents, pictures: Mapping[str, bytes]) -> list[str]:
    """What was possible; empty if the workers were not profiled."""
    if run.summary.profile is None:
        return []
    return [
        "<h2>Ceiling</h2>",
        profile_table(run.summary),
        picture(pictures["profile.png"], "Own time of every worker by batch size"),
    ]


def picture(png: bytes, words: str) -> str:
    """A picture inside the page, with what it shows in words."""
    return f'<img alt="{escape(words)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
