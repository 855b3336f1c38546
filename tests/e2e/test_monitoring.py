"""A real Prometheus: jobs are steered by what it tells, bear its absence, and the dashboards find all they ask for."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from e2e.cluster import Cluster
from e2e.conftest import Apply
from e2e.helm import CHART
from e2e.history import History
from e2e.manifests import digits_evaluated, group, job
from e2e.prometheus import Prometheus
from e2e.waiting import wait_for
from heterotrain import worker_metrics
from heterotrain_operator.metrics import table
from unit.metrics.promql import queries, with_values

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

AWAY_SECONDS = 20.0
DASHBOARDS = sorted((CHART / "files" / "dashboards").iterdir())

NOT_HERE = (
    table.JOB_STRAGGLER_SLOWDOWN.series,
    table.JOB_SCALING_THROUGHPUT.series,
    worker_metrics.SERVER_UPDATES.series,
    worker_metrics.SERVER_STALENESS.name,
)


@pytest.fixture(scope="module")
def prometheus(cluster: Cluster) -> Iterator[Prometheus]:
    """The server, running."""
    prometheus = Prometheus(cluster.api)
    prometheus.start()
    yield prometheus
    prometheus.delete()


def test_job_is_steered_by_prometheus_and_waits_for_it_while_it_is_away(apply: Apply, prometheus: Prometheus) -> None:
    settings = {"source": "Prometheus", "prometheus": {"url": prometheus.url, "maxAgeSeconds": 10}}
    steered = apply(job("steered", group("steady", "400m"), group("resized", "400m"), metrics=settings))
    with History(steered) as history:
        steered.wait_for_phase("Running")
        steered.resize("resized", "150m")
        steered.wait_for_plan(2, 180)
        first = history.newest

        prometheus.stop()
        degraded = steered.wait_for_condition("Degraded", "True", 60)
        assert degraded["reason"] == "MetricsUnavailable"
        kept, step = history.newest, steered.step()
        steered.resize("resized", "400m")
        time.sleep(AWAY_SECONDS)
        # The last plan stays, and everybody trains on under it.
        assert history.newest == kept
        assert steered.step() > step
        assert steered.condition("Degraded")["status"] == "True"

        prometheus.start()
        steered.wait_for_condition("Degraded", "False", 60)
        steered.wait_for_plan(kept + 1, 180)
    assert first >= 2
    assert steered.status["restarts"] == 0
    assert {plan.generation for plan in history.plans.values()} == {1}
    assert set(history.pods_made().values()) == {1}


def test_every_query_of_the_dashboards_finds_series(apply: Apply, prometheus: Prometheus) -> None:
    command = digits_evaluated()
    steady = group("steady", "400m", command=command, pricePerHour=0.2)
    shown = apply(job("shown", steady, group("other", "150m", command=command, pricePerHour=0.1)))
    shown.wait_for_phase("Running")
    shown.wait_for_plan(2, 180)
    values = {"namespace": shown.namespace, "namespaces": ".+", "job": shown.name, "__range": "5m"}
    every = {
        f"{path.stem}, {query.panel}: {query.expression}": with_values(query.expression, values)
        for path in DASHBOARDS
        for query in queries(json.loads(path.read_text(encoding="utf-8")))
    }
    # A straggler has a series as long as its verdict stands, and scaling measures only where a job asks for it, and
    # only asynchronous jobs have a parameter server. Events pass, and whether an alert fires also depends on the jobs
    # of other tests.
    absent = {name for name, query in every.items() if any(series in query for series in NOT_HERE)}
    passing = {name for name, query in every.items() if "> bool 0" in query or query.startswith("count by (alertname")}
    expected = every.keys() - absent - passing
    assert len(absent) == len(NOT_HERE)

    def unanswered() -> list[str]:
        return [name for name in expected if not prometheus.query(every[name])]

    # Rates need some scrapes of everything they are made of.
    wait_for(lambda: not unanswered(), 60, lambda: f"series for {', '.join(unanswered())}", every=3)
    assert not any(prometheus.query(every[name]) for name in absent), (
        "nobody is slow by fault, nothing is scaled, no server"
    )
    (evaluated,) = shown.status["evaluation"]["metrics"]
    assert evaluated["name"] == "accuracy"
    assert 0 < evaluated["value"] <= 1
