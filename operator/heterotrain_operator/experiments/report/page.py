"""A report as one HTML page that needs nothing else.

The page holds everything inside itself, so that it can be mailed or kept; of the machine it shows only what
affects the figures, never its name.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from html import escape

from heterotrain_operator.experiments.report.value import Part, Plot, Report, Sentence, Table, Tone, Verbatim

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 74rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0.2rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p.lead { font-size: 1.1rem; font-weight: 600; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { padding: 0.3rem 0.7rem; text-align: right; border-bottom: 1px solid #8884; vertical-align: top; }
td:not(.text) { white-space: nowrap; }
th:first-child, td:first-child, td.text, th.text, td.name, th.name { text-align: left; }
img { width: 100%; height: auto; background: white; border-radius: 4px; margin: 0.5rem 0; }
pre { overflow-x: auto; padding: 0.8rem; border: 1px solid #8884; border-radius: 4px; font-size: 0.85rem; }
.doubt { border-left: 4px solid #d55e00; padding-left: 0.8rem; }
"""

CLASSES = {Tone.LEAD: "lead", Tone.DOUBT: "doubt", Tone.FAILURE: "doubt"}


def page(report: Report, pictures: Mapping[str, bytes]) -> str:
    """The report as a page; `pictures` has the PNG of every plot by its name."""
    parts = [f"<h1>{escape(report.title)}</h1>", *(_part(sentence, pictures) for sentence in report.lead)]
    for section in report.sections:
        parts += [f"<h2>{escape(section.heading)}</h2>", *(_part(part, pictures) for part in section.parts)]
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(report.title)}: heterotrain {escape(report.kind)}</title><style>{STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _part(part: Part, pictures: Mapping[str, bytes]) -> str:
    if isinstance(part, Table):
        return _table(part)
    if isinstance(part, Plot):
        data = base64.b64encode(pictures[part.name]).decode()
        return f'<img alt="{escape(part.words)}" src="data:image/png;base64,{data}">'
    if isinstance(part, Verbatim):
        return f"<pre>{escape(part.text)}</pre>"
    return _sentence(part)


def _sentence(sentence: Sentence) -> str:
    kind = f' class="{CLASSES[sentence.tone]}"' if sentence.tone in CLASSES else ""
    return f"<p{kind}>{escape(sentence.text)}</p>"


def _table(table: Table) -> str:
    columns = table.shown(details=True)
    kinds = [
        ' class="name"' if column.name else ' class="text"' if column.left or column.text else "" for column in columns
    ]
    heading = f"<h3>{escape(table.heading)}</h3>" if table.heading else ""
    head = "".join(f"<th{kind}>{escape(column.heading)}</th>" for kind, column in zip(kinds, columns, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{k}>{escape(column.said(row))}</td>" for k, column in zip(kinds, columns, strict=True))
        + "</tr>"
        for row in table.rows
    )
    return f'{heading}<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
