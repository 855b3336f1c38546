"""One row per metric: from it come what is exported, what is read, what is documented and what is queried.

Workers' metrics are in `heterotrain.worker_metrics`, the operator's in `heterotrain_operator.metrics.table`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

TOTAL = "_total"
"""prometheus_client appends it to the names of counters."""


class Kind(StrEnum):
    """A metric's type, as Prometheus' text format names it."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One row; it equals no other, so it can be looked up quickly.

    `labels` are those of all its series, and `further` the ones among them that not every metric of its table has.
    `help` is exported beside the series; the documentation has it too, followed by `details` (Markdown) and the `unit`.
    `field` is the attribute of the operator's `WorkerMetrics` that holds the value; empty: no decision reads it.
    """

    name: str
    kind: Kind
    help: str
    unit: str = ""
    labels: tuple[str, ...] = ()
    further: tuple[str, ...] = ()
    field: str = ""
    details: str = ""

    @property
    def series(self) -> str:
        """The name of its series. A counter's end in `_total`, which its name does not have.

        A histogram's are this name with `_bucket`, `_sum` and `_count`.
        """
        return f"{self.name}{TOTAL}" if self.kind is Kind.COUNTER else self.name


class Table:
    """Metrics whose names begin alike and whose series have some labels in common, in the order of their export."""

    def __init__(self, prefix: str, labels: tuple[str, ...] = ()) -> None:
        self.prefix = prefix
        self.labels = labels
        self._rows: list[Metric] = []

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._rows)

    def row(
        self,
        kind: Kind,
        name: str,
        text: str,
        *,
        unit: str = "",
        further: tuple[str, ...] = (),
        field: str = "",
        details: str = "",
    ) -> Metric:
        """Add a metric; its name is written without the table's prefix. Raises ValueError if there is one already."""
        metric = Metric(f"{self.prefix}{name}", kind, text, unit, (*self.labels, *further), further, field, details)
        if any(metric.name == other.name or (field and field == other.field) for other in self._rows):
            raise ValueError(f"{metric.name}: the table has a metric of this name or field already")
        self._rows.append(metric)
        return metric
