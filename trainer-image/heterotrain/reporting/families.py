"""From figures to what prometheus_client exports, as a table of metrics says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from heterotrain.foreign import as_text
from heterotrain.metric import Kind, Metric, Table

Figure = float | Mapping[tuple[str, ...], float] | None
"""A metric's value, or its values by those of its further labels; None: not known, so not exported."""

Figures = Mapping[Metric, Figure]

Family = GaugeMetricFamily | CounterMetricFamily


def families(table: Table, subjects: Iterable[tuple[Sequence[str], Figures]]) -> Iterator[Family]:
    """The series of some subjects (a worker, or jobs) metric by metric, in the order of the table.

    A subject is the values of the table's labels, and its figures. Figures of metrics that are not in the table are not
    exported. A value that no exposition can hold is left out: with it nothing could be read, of any subject.
    """
    known = [(tuple(map(_label, labels)), figures) for labels, figures in subjects]
    for metric in table:
        kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
        family: Family = kind(metric.name, metric.help, labels=metric.labels)
        for labels, figures in known:
            for further, value in _samples(figures.get(metric)):
                if (number := _as_float(value)) is not None:
                    family.add_metric([*labels, *map(_label, further)], number)
        yield family


def _as_float(value: float) -> float | None:
    """None for a whole number that exceeds every float."""
    try:
        return float(value)
    except OverflowError:
        return None


def _samples(figure: Figure) -> Iterable[tuple[tuple[str, ...], float]]:
    if figure is None:
        return ()
    return (((), figure),) if isinstance(figure, int | float) else figure.items()


def _label(value: str) -> str:
    return value if value.isascii() else as_text(value, len(value))
