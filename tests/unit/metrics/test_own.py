"""What the operator exports about itself and its jobs, as a scraper reads it."""

from __future__ import annotations

import urllib.request
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from heterotrain import contract
from heterotrain.contract import Member
from heterotrain.metric import Metric
from heterotrain_operator.core.model import Condition, Decision, Seen
from heterotrain_operator.core.state import Memory
from heterotrain_operator.metrics import table
from heterotrain_operator.metrics.own import OperatorMetrics
from unit.metrics.conftest import DECISION, JOB, MEMORY, PLAN, SEEN, worker

KEY = {"namespace": "ml", "training_job": "digits"}


def value(metrics: OperatorMetrics, metric: Metric, suffix: str = "", /, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"{metric.series}{suffix}", labels)


def of_job(metrics: OperatorMetrics, metric: Metric, /, **labels: str) -> float | None:
    return value(metrics, metric, "", **KEY, **labels)


def series(metrics: OperatorMetrics) -> set[str]:
    return {sample.name for family in metrics.registry.collect() for sample in family.samples}


def test_condition_that_is_unknown_has_no_series(operator: OperatorMetrics) -> None:
    unknown = replace(DECISION, conditions=(Condition("Balanced", None, "NotMeasured", "not measured yet"),))
    operator.observe_job("ml", JOB, SEEN, unknown, MEMORY)
    assert of_job(operator, table.JOB_CONDITION, condition="Balanced") is None


def test_look_at_a_job_is_exported(operator: OperatorMetrics) -> None:
    assert of_job(operator, table.JOB_INFO, policy="Optimal", apply_at="step", dry_run="false") == 1
    assert of_job(operator, table.JOB_PHASE, phase="Running") == 1
    assert of_job(operator, table.JOB_CONDITION, condition="Running") == 1
    assert of_job(operator, table.JOB_CONDITION, condition="Balanced") == 0
    assert of_job(operator, table.JOB_WORKERS_WANTED) == 3
    assert of_job(operator, table.JOB_WORKERS_READY) == 2
    assert of_job(operator, table.JOB_WORKERS_SILENT) == 0
    assert of_job(operator, table.JOB_PLAN_VERSION) == 7
    assert of_job(operator, table.JOB_GLOBAL_BATCH_SIZE) == 96
    assert of_job(operator, table.JOB_PLANNED_BATCH_SIZE, worker="digits-cpu-0", group="cpu") == 64
    assert of_job(operator, table.JOB_IMBALANCE_RATIO) == pytest.approx(1.5)
    assert of_job(operator, table.JOB_STEP) == 121
    assert of_job(operator, table.JOB_EVALUATION, metric="accuracy") == 0.75
    assert of_job(operator, table.JOB_ADJUSTMENTS) == 3
    assert of_job(operator, table.JOB_RESTARTS) == 1
    assert of_job(operator, table.JOB_METRICS_SOURCE_UP) == 1


def test_next_look_replaces_all_of_the_last_one(operator: OperatorMetrics) -> None:
    fewer = replace(PLAN, version=8, members=PLAN.members[:1])
    decision = Decision("Failed", "over", conditions=(Condition("Failed", True, "JobFailed", "it failed"),))
    operator.observe_job("ml", JOB, Seen(SEEN.workers, fewer), decision, MEMORY)
    assert of_job(operator, table.JOB_PHASE, phase="Running") is None
    assert of_job(operator, table.JOB_PHASE, phase="Failed") == 1
    assert of_job(operator, table.JOB_CONDITION, condition="Balanced") is None
    assert of_job(operator, table.JOB_PLANNED_BATCH_SIZE, worker="digits-cpu-1", group="cpu") is None


def test_plan_that_is_just_published_is_the_one_in_force(operator: OperatorMetrics) -> None:
    operator.observe_job("ml", JOB, SEEN, replace(DECISION, plan=replace(PLAN, version=8)), MEMORY)
    assert of_job(operator, table.JOB_PLAN_VERSION) == 8


def test_what_is_not_known_is_not_exported() -> None:
    metrics = OperatorMetrics()
    metrics.observe_job("ml", JOB, Seen(), Decision("Created", "begins"), Memory.initial())
    assert of_job(metrics, table.JOB_WORKERS_READY) == 0
    for metric in (table.JOB_PLAN_VERSION, table.JOB_GLOBAL_BATCH_SIZE, table.JOB_IMBALANCE_RATIO, table.JOB_STEP):
        assert of_job(metrics, metric) is None
    assert table.JOB_METRICS_SOURCE_UP.series not in series(metrics)


def test_worker_that_runs_and_cannot_be_read_is_silent() -> None:
    metrics = OperatorMetrics()
    silent = replace(worker(0, 0.1), metrics=None)
    pending = replace(silent, name="digits-cpu-1", phase="Pending")
    over = replace(silent, name="digits-cpu-2", exit_code=1, phase="Failed")
    starting = replace(worker(3, 0.1, phase=contract.PHASE_STARTING))
    metrics.observe_job("ml", JOB, Seen((silent, pending, over, starting), PLAN), DECISION, MEMORY)
    assert of_job(metrics, table.JOB_WORKERS_SILENT) == 1
    assert of_job(metrics, table.JOB_WORKERS_READY) == 0


def test_worker_in_a_declared_pause_takes_part_in_the_training() -> None:
    metrics = OperatorMetrics()
    pausing = worker(0, 0.1, phase=contract.PHASE_PAUSED)
    metrics.observe_job("ml", JOB, Seen((pausing,), PLAN), DECISION, MEMORY)
    assert of_job(metrics, table.JOB_WORKERS_READY) == 1


def test_imbalance_is_that_of_the_decision(operator: OperatorMetrics) -> None:
    operator.observe_job("ml", JOB, SEEN, replace(DECISION, imbalance=0.07), MEMORY)
    assert of_job(operator, table.JOB_IMBALANCE_RATIO) == pytest.approx(1.07)
    operator.observe_job("ml", JOB, SEEN, replace(DECISION, imbalance=None), MEMORY)
    assert of_job(operator, table.JOB_IMBALANCE_RATIO) is None


def test_jobs_of_one_name_in_two_namespaces_are_apart(operator: OperatorMetrics) -> None:
    operator.observe_job("other", JOB, SEEN, DECISION, MEMORY)
    operator.forget_job("ml", "digits")
    assert of_job(operator, table.JOB_PLAN_VERSION) is None
    assert value(operator, table.JOB_PLAN_VERSION, namespace="other", training_job="digits") == 7


def test_forgotten_job_leaves_no_series(operator: OperatorMetrics) -> None:
    operator.forget_job("ml", "digits")
    operator.forget_job("ml", "never-seen")
    assert not any(name.startswith("heterotrain_job_") for name in series(operator))


def test_replica_that_lost_the_lease_tells_of_no_job(operator: OperatorMetrics) -> None:
    operator.leading(False)
    assert value(operator, table.LEADER) == 0
    assert not any(name.startswith("heterotrain_job_") for name in series(operator))


def test_source_that_is_down_is_told(operator: OperatorMetrics) -> None:
    operator.source_up("ml", "digits", False)
    assert of_job(operator, table.JOB_METRICS_SOURCE_UP) == 0


@pytest.mark.parametrize("kind", table.FAILURES)
def test_failures_are_counted_from_zero_so_that_rates_see_the_first(kind: str) -> None:
    assert value(OperatorMetrics(), table.RECONCILE_ERRORS, kind=kind) == 0


def test_what_the_operator_does_is_counted(operator: OperatorMetrics) -> None:
    operator.wrote("patch", "ConfigMap")
    assert value(operator, table.API_WRITES, verb="patch", kind="ConfigMap") == 2
    assert value(operator, table.RECONCILE_ERRORS, kind="ApiError") == 1
    assert value(operator, table.RECONCILE_SECONDS, "_count") == 1
    assert value(operator, table.PLAN_FOLLOW_SECONDS, "_bucket", le="1.5") == 1
    assert value(operator, table.PLAN_FOLLOW_SECONDS, "_bucket", le="1.0") == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_scraper_reads_it_and_what_the_operator_costs(operator: OperatorMetrics, host: str) -> None:
    port = operator.serve(0)
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{host}:{port}/metrics", timeout=5) as response:
            found = {family.name for family in text_string_to_metric_families(response.read().decode())}
    finally:
        operator.close()
    assert {table.JOB_PHASE.name, table.JOB_RESTARTS.name, table.LEADER.name, "process_cpu_seconds"} <= found


def test_port_that_cannot_be_had_is_named(operator: OperatorMetrics) -> None:
    port = operator.serve(0)
    try:
        with pytest.raises(OSError, match=f"metrics port {port}"):
            OperatorMetrics().serve(port)
    finally:
        operator.close()


def test_two_operators_share_nothing(operator: OperatorMetrics) -> None:
    assert not any(name.startswith("heterotrain_job_") for name in series(OperatorMetrics()))


@pytest.mark.parametrize(
    "spoilt",
    [
        {"version": 10**400},
        {"members": (Member("\ud800", "u0", "", "cpu", 10**400),)},
        {"members": (Member("\ud800", "u0", "", "\udfff", 1),)},
    ],
    ids=["version", "batch", "name"],
)
def test_figure_that_cannot_be_exported_hides_nobody_elses(operator: OperatorMetrics, spoilt: dict[str, Any]) -> None:
    operator.observe_job("rival", JOB, Seen(SEEN.workers, replace(PLAN, **spoilt)), DECISION, MEMORY)
    port = operator.serve(0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
    finally:
        operator.close()
    assert f'{table.JOB_PLAN_VERSION.series}{{namespace="ml",training_job="digits"}} 7.0' in text
    assert f'{table.JOB_STEP.series}{{namespace="rival",training_job="digits"}} 121.0' in text
