"""Read workers' series from Prometheus' text format, and nothing else, in time linear in the text.

prometheus_client's parser reads every series, including those that somebody else added, and takes seconds for a
megabyte of escapes.

Source of the format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import re

from heterotrain.worker_metrics import WORKERS
from heterotrain_operator.metrics.workers import Sample

MAX_SERIES = 256
"""Ten times as many as a worker exports; a newer version may export more than this version knows."""

MAX_LINE = 4096
"""Characters of one series' labels."""

MAX_LABELS = 64
"""Of one series; a worker gives its series at most six."""

_BEGINNING = f"\n{WORKERS.prefix}"
"""Of a series, with the end of the line before it: a search for a fixed text passes over other lines several times as
fast as a search for the beginnings of lines."""

_SAMPLE = re.compile(
    rf"\n({WORKERS.prefix}\w*)(?:\{{(.{{0,{MAX_LINE}}})\}})?"
    r"[ \t]{1,9}([^ \t\n]{1,64})(?:[ \t]{1,9}-?[0-9]{1,20})?[ \t]{0,9}(?=\n|\Z)",
    re.ASCII,
)
_LABEL = re.compile(r'[ \t]*([a-zA-Z_]\w*)="([^"\\]*(?:\\.[^"\\]*)*)"[ \t]*(?:,|$)', re.ASCII)
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}


def own_samples(text: str) -> list[Sample]:
    """The samples of workers' metrics. Raises ValueError if one is malformed, or if there are more than MAX_SERIES, or
    MAX_LABELS of one.
    """
    lines = f"\n{text}"
    number = lines.count(_BEGINNING)
    if number > MAX_SERIES:
        raise ValueError(f"{number} series")
    found = _SAMPLE.findall(lines)
    if len(found) != number:
        raise ValueError(f"{number - len(found)} series are malformed, or longer than {MAX_LINE} characters")
    labels_of = {written: _labels(written) for written in {written for _, written, _ in found}}
    return [Sample(name, labels_of[written], float(value)) for name, written, value in found]


def _labels(written: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    at = number = 0
    while at < len(written):
        found = _LABEL.match(written, at)
        if found is None or number == MAX_LABELS:
            raise ValueError(f"no labels: {written[:80]!r}" if found is None else f"more than {MAX_LABELS} labels")
        value = found[2]
        labels[found[1]] = _ESCAPE.sub(_unescaped, value) if "\\" in value else value
        at = found.end()
        number += 1
    return labels


def _unescaped(found: re.Match[str]) -> str:
    return _ESCAPED.get(found[1], found[0])
