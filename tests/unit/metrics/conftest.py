"""A job as it is seen, decided and exported, all that workers and operator export together, and a server to ask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from prometheus_client.core import Metric as Family

from heterotrain import contract
from heterotrain.contract import Member, Plan
from heterotrain.origin import Origin
from heterotrain.reporting import resources
from heterotrain.reporting.cpu_use import CpuMeter, CpuUse
from heterotrain.reporting.metrics import VersionCounters
from heterotrain.reporting.metrics import WorkerMetrics as Exporter
from heterotrain.reporting.peak import Peak
from heterotrain.reporting.server_metrics import ServerMetrics
from heterotrain_operator.core.model import (
    Condition,
    Decision,
    Group,
    Job,
    ScalingSeen,
    Seen,
    SizePoint,
    WorkerMetrics,
    WorkerSeen,
)
from heterotrain_operator.core.remembered.batching import Batching
from heterotrain_operator.core.remembered.cost import Cost
from heterotrain_operator.core.remembered.job import RestartBudget
from heterotrain_operator.core.state import Remembered
from heterotrain_operator.metrics.own import OperatorMetrics
from unit.kube.statuses import VERDICT
from unit.metrics.promql import Exported, exported_by
from unit.metrics.servers import Script, matrix, serving

JOB = Job("digits", (Group("cpu", 2), Group("slow", 1)), 96, policy="Optimal", apply_at="step")
PLAN = Plan(
    version=7,
    generation=2,
    apply_at="step",
    members=(
        Member("digits-cpu-0", "u0", "10.0.0.7:29500", "cpu", 64),
        Member("digits-cpu-1", "u1", "10.0.0.8:29500", "cpu", 32),
    ),
)
DECISION = Decision(
    "Running",
    "all is well",
    conditions=(
        Condition("Running", True, "Training", "it trains"),
        Condition("Balanced", False, "OutOfBalance", "the slowest takes long"),
    ),
    imbalance=0.5,
    scaling=ScalingSeen((SizePoint((("cpu", 2), ("slow", 1)), 960.0, 0.1),)),
    stragglers=(replace(VERDICT, worker="digits-cpu-1", group="cpu", cause="Neighbour"),),
)
MEMORY = Remembered(
    batching=Batching(adjustments=3), budget=RestartBudget(restarts=1), cost=Cost(spent=(("cpu", 0.25),))
)


def worker(index: int, own_seconds: float, *, version: int = 7, phase: str = contract.PHASE_TRAINING) -> WorkerSeen:
    """A worker after ten steps under a version."""
    metrics = WorkerMetrics(
        plan_version=version, batch_size=48, step=120 + index, phase=phase, steps=10.0, own_seconds=10 * own_seconds
    )
    return WorkerSeen(f"digits-cpu-{index}", f"u{index}", "cpu", index, "Running", metrics=metrics)


EVALUATED = contract.Evaluated(100, (("accuracy", 0.75), ("loss", 0.5)))
_LEADER = worker(0, 0.3)
assert _LEADER.metrics is not None
SEEN = Seen((replace(_LEADER, metrics=replace(_LEADER.metrics, evaluated=EVALUATED)), worker(1, 0.1)), PLAN)


@pytest.fixture
def operator() -> OperatorMetrics:
    """An operator that has looked at one job, and has a value for every series."""
    metrics = OperatorMetrics()
    metrics.leading(True)
    metrics.observe_job("ml", JOB, SEEN, DECISION, MEMORY)
    metrics.source_up("ml", "digits", True)
    metrics.reconciled(0.02)
    metrics.failed("ApiError")
    metrics.wrote("patch", "ConfigMap")
    metrics.followed(1.2)
    metrics.watching("pods", "ml", True)
    return metrics


@pytest.fixture
def collected(operator: OperatorMetrics, monkeypatch: pytest.MonkeyPatch) -> list[Family]:
    """All metrics there are, of a worker with cgroups and a loss, a parameter server and the operator."""
    monkeypatch.setattr(resources, "cpu_throttled_seconds", lambda: 1.0)
    monkeypatch.setattr(CpuMeter, "read", lambda _: CpuUse(8.0, 6.0, 1.0, 0.5, 0.75, 1.5))
    monkeypatch.setattr(resources, "cpu_limit_cores", lambda: 0.5)
    monkeypatch.setattr(resources, "memory_limit_bytes", lambda: 1e9)
    exporter = Exporter("digits", "digits-cpu-0", "cpu", lambda: False)
    exporter.counters = VersionCounters(plan_version=7, ewma=0.25, rank=0, members=3, smaller={16: (2, 0.3)})
    exporter.state.loss = 1.5
    exporter.state.learning_rate_factor = 1.5
    exporter.state.taken_over = Origin(40, "an earlier job")
    exporter.state.evaluated = EVALUATED
    exporter.state.checkpoint = (100, 0.5)
    exporter.state.warm_up = {64: 0.5}
    exporter.memory.peak = Peak(memory_bytes=700e6, batch_size=48)
    server = ServerMetrics("digits", "digits-server-0")
    server.applied("digits-cpu-0", 2)
    server.discarded("digits-cpu-0", "late")
    server.waited("digits-cpu-0", 0.5)
    server.refused("silent")
    return [*exporter.collect(), *server.collect(), *operator.registry.collect()]


@pytest.fixture
def exported(collected: list[Family]) -> Exported:
    """All series there are, by what queries may ask of them."""
    return exported_by(collected)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is on this machine."""
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def script() -> Script:
    """What the server does: it knows nothing until a test says otherwise."""
    return Script(answer=matrix())


@pytest.fixture
def url(script: Script) -> Iterator[str]:
    """The server's address."""
    with serving(script) as address:
        yield address
