"""Samples as Prometheus' API tells them, and what is read of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from heterotrain import worker_metrics as table
from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.metrics.allowed import allowed_server
from heterotrain_operator.metrics.client import Client
from heterotrain_operator.metrics.prometheus import PrometheusSource, Reading

NOW = 1_000_000.0
WORKER = "digits-cpu-0"

Row = dict[str, Any]


def row(name: str, samples: list[tuple[float, object]], version: int = 7, **labels: str) -> Row:
    """One series; times are seconds from now."""
    metric = {
        "__name__": name,
        "namespace": "ml",
        "training_job": "digits",
        "worker": WORKER,
        "group": "cpu",
        "plan_version": str(version),
        "instance": "10.0.0.7:9400",
        **labels,
    }
    return {"metric": metric, "values": [[NOW + at, str(value)] for at, value in samples]}


def matrix(*rows: Row) -> dict[str, object]:
    return {"status": "success", "data": {"resultType": "matrix", "result": list(rows)}}


def scrape(at: float, version: int = 7, steps: float = 10, own: float = 2.5, **labels: str) -> list[Row]:
    """All series of one scrape of one worker, as far as these tests need them."""
    return [
        row(table.PLAN_VERSION.name, [(at, version)], version, **labels),
        row(table.STEPS.series, [(at, steps)], version, **labels),
        row(table.OWN_SECONDS.series, [(at, own)], version, **labels),
    ]


class Asked:
    """A server that is asked about one job, again and again."""

    def __init__(self, url: str, allowed: Sequence[str] = ("127.0.0.1", "localhost"), **options: Any) -> None:
        self._url, self._allowed = url, allowed
        self._options = {"max_age_seconds": 30, "timeout_seconds": 5.0, **options}
        self.make(Client())  # raises what cannot be used

    def make(self, client: Client) -> PrometheusSource:
        return PrometheusSource(client, allowed_server(self._url, "ml", self._allowed), **self._options)

    def read(
        self,
        *workers: str,
        now: float = NOW,
        since: Mapping[str, float] = MappingProxyType({}),
        times: Sequence[Callable[[], None]] = (),
    ) -> Reading:
        """What is known of the workers; before each time but the first something happens."""

        async def read() -> Reading:
            async with Client() as client:
                made = self.make(client)
                found = await made.read("digits", "ml", workers or [WORKER], now, since=since)
                for happens in times:
                    happens()
                    found = await made.read("digits", "ml", workers or [WORKER], now, since=since)
                return found

        return asyncio.run(read())


def source(url: str, **options: Any) -> Asked:
    return Asked(url, **options)


def read(url: str, **options: Any) -> WorkerMetrics | None:
    reading = source(url, **options).read()
    assert reading.problem == ""
    return reading.metrics[WORKER]


def problem(url: str, **options: Any) -> str:
    reading = source(url, **options).read()
    assert reading.metrics == {WORKER: None}
    assert reading.problem
    return reading.problem
