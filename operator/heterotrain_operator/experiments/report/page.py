"""A report as one HTML page that needs nothing else.

The page holds everything inside itself, so that it can be mailed or kept; of the machine it shows only what
affects the figures, never its name. Foreign text is escaped, and the page's own policy lets no script but its own run.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from html import escape
from itertools import groupby
from pathlib import Path

from heterotrain_operator.experiments.figures.history import TrialHistory
from heterotrain_operator.experiments.report import trace
from heterotrain_operator.experiments.report.drawing import before_after, figure
from heterotrain_operator.experiments.report.value import (
    BeforeAfter,
    Part,
    Plot,
    Report,
    Sentence,
    Table,
    Tone,
    Verbatim,
)

STYLE = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
SCRIPT = Path(__file__).with_name("page.js").read_text(encoding="utf-8")

CLASSES = {Tone.LEAD: "lead", Tone.FAINT: "faint", Tone.DOUBT: "doubt", Tone.FAILURE: "doubt"}

FOLDED_FROM = 12
"""Rows from which a table is folded."""

GLOSSARY = {
    "own time": "What a worker's step takes without waiting for others: reading its samples, forward and backward.",
    "waiting": "The share of a step in which a worker has done its part and waits: first for slower workers, which a "
    "better split spares, then for the exchange with the others, which no split spares.",
    "wait": "Seconds of a step in which a worker has done its part and waits for the others.",
    "all-reduce": "The exchange in which the workers add up their gradients at the end of a step.",
    "iteration": "One step of the whole job, from one commit to the next; here the median since the last adjustment.",
    "adjustments": "How often the batches were changed while the job trained.",
    "batches": "How many samples of each step every worker computes, by rank. Together they are the global batch.",
    "batch": "How many samples of each step this worker computes.",
    "plan": "One numbered document that names the workers that train and the batch of each. A change makes a new one.",
    "of ceiling": "How much of what the best possible split would allow was reached, by the workers' measured times.",
    "ceiling": "How fast the job could be if every batch were split with perfect knowledge of the workers.",
    "CPU limits": "How many cores each worker may use at most.",
    "samples/s": "Samples that all workers together trained in a second, over the whole trial.",
    "restarts": "How often all workers had to start again from a checkpoint.",
    "final loss": "The mean training loss of the last ten steps.",
    "to target": "Time from the first step until the job's target was reached.",
    "step over best": "Time of all steps over that of the best split under the same noise; 1 is the best possible.",
}

_TERMS = re.compile(rf"\b({'|'.join(map(re.escape, GLOSSARY))})\b", re.IGNORECASE)
_MEANINGS = {term.lower(): meaning for term, meaning in GLOSSARY.items()}


def write(folder: Path, report: Report, trials: Sequence[TrialHistory]) -> Path:
    """Write a report's page, and the trace of its trials beside it; returns the page's path. Raises OSError."""
    trace.write(folder / trace.NAME, trials)
    path = folder / "report.html"
    path.write_text(page(report), encoding="utf-8")
    return path


def page(report: Report) -> str:
    """The report as a page."""
    parts = [f"<h1>{escape(report.title)}</h1>", *map(_part, report.lead)]
    for section in report.sections:
        parts += [f"<h2>{_explained(section.heading)}</h2>", *_parts(section.parts)]
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(report.title)}: heterotrain {escape(report.kind)}</title><style>{STYLE}</style></head>"
        '<body><button id="theme" type="button" title="switch between light and dark" hidden></button>'
        f"{''.join(parts)}<script>{SCRIPT}</script></body></html>\n"
    )


def _parts(parts: Sequence[Part]) -> list[str]:
    """The parts of a section; half plots stand side by side."""
    found = []
    for are_half, together in groupby(parts, key=lambda part: isinstance(part, Plot) and part.half):
        drawn = "".join(map(_part, together))
        found.append(f'<div class="halves">{drawn}</div>' if are_half else drawn)
    return found


def _part(part: Part) -> str:
    if isinstance(part, Table):
        return _table(part)
    if isinstance(part, Plot):
        return figure(part)
    if isinstance(part, BeforeAfter):
        return before_after(part)
    if isinstance(part, Verbatim):
        return _folded(f"{part.text.count(chr(10))} lines", f"<pre>{escape(part.text)}</pre>")
    return _sentence(part)


def _folded(words: str, inside: str) -> str:
    return f"<details><summary>{escape(words)}</summary>{inside}</details>"


def _sentence(sentence: Sentence) -> str:
    kind = f' class="{CLASSES[sentence.tone]}"' if sentence.tone in CLASSES else ""
    return f"<p{kind}>{_explained(sentence.text)}</p>"


def _explained(text: str) -> str:
    """Words as HTML, with the first term of the glossary in them explained by hover, focus or touch."""
    found = _TERMS.search(text)
    if found is None:
        return escape(text)
    means = escape(_MEANINGS[found[0].lower()])
    term = f'<dfn tabindex="0" data-means="{means}">{escape(found[0])}</dfn>'
    return f"{escape(text[: found.start()])}{term}{escape(text[found.end() :])}"


def _table(table: Table) -> str:
    columns = table.shown(details=True)
    kinds = [' class="text"' if each.text else ' class="name"' if each.is_left else "" for each in columns]
    heading = f"<h3>{escape(table.heading)}</h3>" if table.heading else ""
    head = "".join(f"<th{kind}>{_explained(column.heading)}</th>" for kind, column in zip(kinds, columns, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{k}>{escape(column.said(row))}</td>" for k, column in zip(kinds, columns, strict=True))
        + "</tr>"
        for row in table.rows
    )
    reasons = ' class="reasons"' if columns[-1].text and len(columns) > 2 else ""  # folds on a narrow screen
    drawn = f'<div class="wide"><table{reasons}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    if len(table.rows) >= FOLDED_FROM:
        drawn = _folded(f"{len(table.rows)} rows", drawn)
    return heading + drawn
