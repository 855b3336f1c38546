"""Which samples of a Prometheus server were scraped together, and which scrape of each worker is the newest."""

from __future__ import annotations

import math
from collections.abc import Mapping

from heterotrain import worker_metrics as table
from heterotrain_operator.metrics.matrix import NAME_LABEL
from heterotrain_operator.metrics.workers import OWN_LABELS, Sample

_Target = frozenset[tuple[str, str]]


class Scrapes:
    """Gathers samples, of which all of one scrape have its time.

    A scrape is recognised by the series of the plan version, which it always has. The newest moment decides and not the
    greatest version, since a restarted worker may count from a lower version, and two servers or scrape jobs may watch
    one worker. A series that has ended may have a value that is not a number.
    """

    def __init__(self, oldest_of: Mapping[str, float]) -> None:
        """`oldest_of` says for each worker how old a scrape may be, in Unix seconds."""
        self._oldest_of = oldest_of
        self._scrapes: dict[tuple[_Target, float], list[Sample]] = {}
        self._newest: dict[str, tuple[float, float, _Target]] = {}

    def __bool__(self) -> bool:
        return bool(self._scrapes)

    def add(self, labels: Mapping[str, str], time: float, value: float) -> None:
        """A sample: its labels with the name among them, time (Unix seconds) and value."""
        name = labels.get(NAME_LABEL, "")
        target = frozenset(item for item in labels.items() if item[0] not in (NAME_LABEL, *OWN_LABELS))
        self._scrapes.setdefault((target, time), []).append(Sample(name, labels, value))
        worker = labels.get(table.WORKER_LABEL, "")
        if name != table.PLAN_VERSION.series or worker not in self._oldest_of or not math.isfinite(value):
            return
        newest = self._newest.get(worker)
        if time >= self._oldest_of[worker] and (newest is None or (time, value) > newest[:2]):
            self._newest[worker] = (time, value, target)

    def of(self, worker: str) -> list[Sample]:
        """The samples of the worker's newest scrape; none if that is too old."""
        if worker not in self._newest:
            return []
        time, _, target = self._newest[worker]
        return self._scrapes[target, time]
