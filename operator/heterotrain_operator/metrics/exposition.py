"""Read our own series of Prometheus' text format, and nothing else, in time linear in the text.

The library's parser reads everything, also what a stranger added, and takes seconds for a megabyte of escapes.

Source of the format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from heterotrain.contract import METRIC_PREFIX
from heterotrain_operator.metrics.workers import Sample

MAX_SERIES = 256
"""Ten times as many as a worker has; a newer one may have more than this version knows."""

MAX_LINE = 4096
"""Characters of one series."""

_LINES = re.compile(rf"^{METRIC_PREFIX}.*$", re.MULTILINE)
_SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})?[ \t]+([^ \t]+)(?:[ \t]+-?[0-9]+)?[ \t]*", re.ASCII)
_LABEL = re.compile(r'[ \t]*([a-zA-Z_]\w*)="([^"\\]*(?:\\.[^"\\]*)*)"[ \t]*(?:,|$)', re.ASCII)
_ESCAPE = re.compile(r"\\(.)")
_MEANT = {"n": "\n", "\\": "\\", '"': '"'}


def own_samples(text: str) -> list[Sample]:
    """The samples whose names are ours. Raises ValueError if one is malformed, or if there are absurdly many."""
    labels_of: dict[str, dict[str, str]] = {}  # most series have the same labels
    samples = []
    for line in _own_lines(text):
        found = _SAMPLE.fullmatch(line)
        if found is None:
            raise ValueError(f"no sample: {line[:80]!r}")
        name, written, value = found.groups("")
        if written not in labels_of:
            labels_of[written] = dict(_labels(written))
        samples.append(Sample(name, labels_of[written], float(value)))
    return samples


def _own_lines(text: str) -> Iterator[str]:
    for number, found in enumerate(_LINES.finditer(text)):
        if number == MAX_SERIES:
            raise ValueError(f"more than {MAX_SERIES} series")
        if found.end() - found.start() > MAX_LINE:
            raise ValueError(f"a series of more than {MAX_LINE} characters")
        yield found[0]


def _labels(written: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(written):
        found = _LABEL.match(written, at)
        if found is None:
            raise ValueError(f"no labels: {written[:80]!r}")
        value = found[2]
        yield found[1], _ESCAPE.sub(_unescaped, value) if "\\" in value else value
        at = found.end()


def _unescaped(found: re.Match[str]) -> str:
    return _MEANT.get(found[1], found[0])
