"""Write the tables of metrics into their documentation, between marks; all else on the page is written by hand."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from heterotrain.metric import Metric, Table
from heterotrain.worker_metrics import SERVER, WORKERS
from heterotrain_operator.api.generate import write_or_check
from heterotrain_operator.metrics.table import JOBS, OPERATOR

PATH = Path("docs/metrics.md")
"""In the repository."""

PLACES: Mapping[str, Iterable[Table]] = {"workers": (WORKERS, SERVER), "operator": (JOBS, OPERATOR)}
"""The tables that stand after each mark `<!-- metrics: PLACE -->`."""

END = "<!-- end of metrics -->"


def with_tables(page: str, places: Mapping[str, Iterable[Table]] = PLACES) -> str:
    """The page with its tables made again. Raises ValueError, naming the mark, if the page lacks a place for one."""
    for place, tables in places.items():
        mark = f"<!-- metrics: {place} -->"
        before, found, rest = page.partition(f"{mark}\n")
        _, ended, after = rest.partition(END)
        if not (found and ended):
            raise ValueError(f"{PATH}: expected {mark}, and {END} after it")
        page = "".join([before, found, *_lines(tables), ended, after])
    return page


def _lines(tables: Iterable[Table]) -> Iterator[str]:
    """A table in Markdown, in the order of the rows."""
    yield "| series | type, unit | further labels | meaning |\n"
    yield "| --- | --- | --- | --- |\n"
    for table in tables:
        yield from map(_line, table)


def _line(metric: Metric) -> str:
    kind = f"{metric.kind}, {metric.unit}" if metric.unit else str(metric.kind)
    labels = " ".join(f"`{label}`" for label in metric.further)
    meaning = f"{metric.help} {metric.details}".strip().replace("|", "/")
    return f"| `{metric.series}` | {kind} | {labels}{' ' if labels else ''}| {meaning} |\n"


if __name__ == "__main__":
    sys.exit(
        write_or_check(lambda: with_tables(PATH.read_text(encoding="utf-8")), PATH, "Write the tables of metrics.")
    )
