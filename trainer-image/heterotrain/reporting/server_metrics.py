"""What the parameter server of an asynchronous job exports beside what every worker does."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Counter, Histogram
from prometheus_client.core import Metric as Family

from heterotrain import worker_metrics as table
from heterotrain.metric import Metric

STALENESS_BUCKETS = (0, 1, 2, 4, 8, 16, 32, 64)


class ServerMetrics:
    """Safe from any thread. A `peer` is a worker's name."""

    def __init__(self, job: str, worker: str) -> None:
        self._own = (job, worker)
        self._updates = _counter(table.SERVER_UPDATES)
        self._discarded = _counter(table.SERVER_DISCARDED)
        self._waited = _counter(table.SERVER_WAITED_SECONDS)
        self._refused = _counter(table.SERVER_REFUSED)
        self._staleness = Histogram(
            table.SERVER_STALENESS.name,
            table.SERVER_STALENESS.help,
            table.SERVER_STALENESS.labels,
            buckets=STALENESS_BUCKETS,
            registry=None,
        )

    def applied(self, peer: str, staleness: int) -> None:
        """An update is applied, by which time the model had changed that often since it was given out."""
        self._updates.labels(*self._own, peer).inc()
        self._staleness.labels(*self._own, peer).observe(staleness)

    def discarded(self, peer: str, reason: str) -> None:
        """An update is not applied."""
        self._discarded.labels(*self._own, peer, reason).inc()

    def waited(self, peer: str, seconds: float) -> None:
        """A worker gets parameters, and has waited so long for them."""
        self._waited.labels(*self._own, peer).inc(seconds)

    def refused(self, reason: str) -> None:
        """A connection, or what came over it, is refused."""
        self._refused.labels(*self._own, reason).inc()

    def collect(self) -> Iterator[Family]:
        """All of it, as Prometheus' client asks for it."""
        for each in (self._updates, self._discarded, self._waited, self._refused, self._staleness):
            yield from each.collect()


def _counter(metric: Metric) -> Counter:
    return Counter(metric.name, metric.help, metric.labels, registry=None)
