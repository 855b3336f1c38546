"""Against the real Prometheus: what the pods say and what the server says is the same, and every query gives series."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, start_http_server

from e2e.helm import CHART, of_kind, render
from e2e.programs import run
from e2e.prometheus_server import PASSWORD, POLL_SECONDS, USERNAME, PrometheusServer
from e2e.waiting import wait_for
from heterotrain import contract
from heterotrain.contract import Member, Plan
from heterotrain.reporting import resources
from heterotrain.reporting.cpu_use import CpuMeter, CpuUse
from heterotrain.reporting.metrics import WorkerMetrics as Exporter
from heterotrain.reporting.peak import Peak
from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.core.remembered.job import RestartBudget
from heterotrain_operator.core.remembered.members import TransitionRecord
from heterotrain_operator.metrics.own import OperatorMetrics
from heterotrain_operator.metrics.pods import PodReader
from heterotrain_operator.metrics.prometheus import REFUSES, UNREACHABLE, UNTRUSTED, BasicAuth, Reading
from unit.metrics.conftest import DECISION, JOB, MEMORY, PLAN, SEEN
from unit.metrics.promql import queries, with_values
from unit.metrics.servers import Asked

pytestmark = pytest.mark.e2e

RULES = CHART / "files" / "rules.yaml"
DASHBOARDS = sorted((CHART / "files" / "dashboards").iterdir())
ALERTS_TOLD = Path(__file__).parents[1] / "unit" / "metrics" / "alerts.yaml"
NAMES = ("digits-cpu-0", "digits-cpu-1")


@pytest.mark.parametrize("arguments", [["check", "rules", str(RULES)], ["test", "rules", str(ALERTS_TOLD)]])
def test_prometheus_itself_takes_the_alerts_and_they_fire_as_written(arguments: list[str]) -> None:
    run("promtool", *arguments)


def test_scrape_of_the_operator_keeps_the_namespace_of_the_job() -> None:
    documents = render(CHART, "monitoring.serviceMonitor.enabled=true")
    (monitor,) = of_kind(documents, "ServiceMonitor")
    assert monitor["spec"]["endpoints"][0]["honorLabels"] is True


def until(condition: Callable[[], bool], what: str | Callable[[], str]) -> None:
    """Wait for it."""
    wait_for(condition, 60.0, what, every=POLL_SECONDS)


class World:
    """Two workers and an operator that export, a Prometheus that scrapes them, and a reader that asks it."""

    def __init__(self, folder: Path) -> None:
        self._servers = []
        self.addresses: dict[str, str] = {}
        self.exporters = {name: Exporter("digits", name, "cpu", lambda: False) for name in NAMES}
        for name, exporter in self.exporters.items():
            registry = CollectorRegistry()
            registry.register(exporter)
            server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
            self._servers.append((server, thread))
            self.addresses[name] = f"127.0.0.1:{server.server_port}"
            self.follow(name, 7, 64)
        self.changes, self.seen, self.memory = 0, SEEN, MEMORY
        self.operator = OperatorMetrics()
        self.operator.watching("pods", "ml", True)
        self.operator.leading(True)
        self.operator.source_up("ml", "digits", True)
        self.look()
        workers = {"targets": list(self.addresses.values()), "labels": {"namespace": "ml"}}
        own = {"targets": [f"127.0.0.1:{self.operator.serve(0)}"], "labels": {"namespace": "heterotrain-system"}}
        self.prometheus = PrometheusServer(
            folder,
            [
                {"job_name": "workers", "static_configs": [workers]},
                {"job_name": "operator", "honor_labels": True, "static_configs": [own]},
            ],
            [str(RULES)],
        )
        self.pods = PodReader()
        self.source = self.reader(BasicAuth(USERNAME, PASSWORD), self.prometheus.ca_pem)

    def reader(self, credentials: BasicAuth | None, ca_pem: str | None) -> Asked:
        return Asked(self.prometheus.url, credentials=credentials, ca_pem=ca_pem)

    def read(self) -> Reading:
        return self.source.read(*NAMES, now=time.time())

    def follow(self, name: str, version: int, batch: int) -> None:
        plan = Plan(version, 2, "step", (Member(name, "u", "127.0.0.1:1", "cpu", batch),))
        self.exporters[name].follow(plan, 0)

    def train(self) -> None:
        """One more measured step everywhere, and a look of the operator at it."""
        for exporter in self.exporters.values():
            exporter.state.step += 1
            exporter.state.loss = 1.5
            exporter.state.phase = contract.PHASE_TRAINING
            exporter.counters.add(64, 0.25, 0.05, 0.2)
            exporter.memory.peak = Peak(memory_bytes=700e6, batch_size=64)
        self.look()

    def change(self) -> None:
        """Another plan and other members, after a restart; and a parameter server's update."""
        self.exporters[NAMES[0]].server.applied(NAMES[1], staleness=1)
        self.changes += 1
        budget, transitions = RestartBudget(restarts=self.changes), TransitionRecord(joins=self.changes)
        self.memory = replace(MEMORY, budget=budget, transitions=transitions)
        self.seen = replace(SEEN, plan=replace(PLAN, version=PLAN.version + self.changes))

    def look(self) -> None:
        self.operator.observe_job("ml", JOB, self.seen, DECISION, self.memory)
        self.operator.reconciled(0.02)
        self.operator.followed(1.2)
        self.operator.wrote("patch", "ConfigMap")
        self.operator.failed("ApiError")

    def close(self) -> None:
        self.prometheus.stop()
        self.pods.close()
        self.operator.close()
        for server, thread in self._servers:
            server.shutdown()
            server.server_close()
            thread.join()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("no_proxy", "*")
    # Not every machine that runs this has cgroups.
    monkeypatch.setattr(resources, "cpu_throttled_seconds", lambda: 1.0)
    monkeypatch.setattr(CpuMeter, "read", lambda _: CpuUse(8.0, 6.0, 1.0, 0.5, 0.75))
    monkeypatch.setattr(resources, "cpu_limit_cores", lambda: 0.5)
    monkeypatch.setattr(resources, "memory_limit_bytes", lambda: 1e9)
    monkeypatch.setattr(resources, "children_memory_bytes", lambda: 0.0)  # Prometheus is one
    monkeypatch.setattr(resources, "memory_bytes", lambda: 2**27)
    world = World(tmp_path)
    try:
        world.prometheus.start()
        yield world
    finally:
        world.close()


def steps(metrics: WorkerMetrics | None) -> tuple[int, float] | None:
    return (metrics.plan_version, metrics.steps) if metrics is not None else None


def test_server_says_what_the_workers_say(world: World) -> None:
    for _ in range(3):
        world.train()
    told = world.pods.read(world.addresses)
    assert None not in told.values()
    until(lambda: world.read().metrics == told, "what the workers say")


def test_new_version_is_read_whole_or_not_at_all(world: World) -> None:
    for _ in range(5):
        world.train()
    until(lambda: {steps(found) for found in world.read().metrics.values()} == {(7, 5.0)}, "five steps")
    for name in NAMES:
        world.follow(name, 8, 32)
    seen: set[tuple[int, float] | None] = set()

    def followed() -> bool:
        seen.update(steps(found) for found in world.read().metrics.values())
        return (8, 0.0) in seen

    until(followed, "plan 8")
    assert seen <= {(7, 5.0), (8, 0.0)}


def test_server_without_credentials_or_trust_is_told_apart(world: World) -> None:
    def problem(credentials: BasicAuth | None, ca_pem: str | None) -> str:
        return world.reader(credentials, ca_pem).read(*NAMES).problem

    assert problem(None, world.prometheus.ca_pem) == REFUSES
    assert problem(BasicAuth(USERNAME, "wrong"), world.prometheus.ca_pem) == REFUSES
    assert problem(BasicAuth(USERNAME, PASSWORD), None) == UNTRUSTED


def test_reading_resumes_when_the_server_is_back(world: World) -> None:
    until(lambda: None not in world.read().metrics.values(), "all workers")
    world.prometheus.stop()
    away = world.read()
    assert away.problem == UNREACHABLE
    assert set(away.metrics.values()) == {None}
    world.prometheus.start()
    until(lambda: None not in world.read().metrics.values(), "all workers")
    assert world.read().problem == ""


def test_every_query_of_the_dashboards_gives_series(world: World) -> None:
    values = {"namespace": "ml", "namespaces": "ml|other", "job": "digits"}
    wanted = {
        f"{path.stem}, {query.panel}: {query.expression}": with_values(query.expression, values)
        for path in DASHBOARDS
        for query in queries(json.loads(path.read_text()))
    }
    assert len(DASHBOARDS) == 3

    def silent() -> list[str]:
        world.train()  # rates need counters that grow
        world.change()
        return [name for name, expression in wanted.items() if not world.prometheus.query(expression)]

    until(lambda: not silent(), lambda: f"series from {', '.join(silent())}")
