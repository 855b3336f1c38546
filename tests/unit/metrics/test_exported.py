"""What is exported, read, documented and asked for by the dashboard is what the tables of metrics say."""

from __future__ import annotations

import urllib.request
from dataclasses import fields, replace
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from heterotrain import contract, worker_metrics
from heterotrain.contract import Member
from heterotrain.metric import Metric
from heterotrain.reporting.families import families
from heterotrain_operator.core.model import Condition, Decision, Seen, WorkerMetrics
from heterotrain_operator.core.state import Remembered
from heterotrain_operator.metrics import reference, table
from heterotrain_operator.metrics.own import OperatorMetrics
from heterotrain_operator.metrics.workers import Sample, metrics_of
from unit.metrics.conftest import DECISION, JOB, MEMORY, PLAN, SEEN, worker

KEY = {"namespace": "ml", "training_job": "digits"}


def value(metrics: OperatorMetrics, metric: Metric, suffix: str = "", /, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"{metric.series}{suffix}", labels)


def of_job(metrics: OperatorMetrics, metric: Metric, /, **labels: str) -> float | None:
    return value(metrics, metric, "", **KEY, **labels)


def series(metrics: OperatorMetrics) -> set[str]:
    return {sample.name for family in metrics.registry.collect() for sample in family.samples}


def test_look_at_a_job_is_exported(operator: OperatorMetrics) -> None:
    assert of_job(operator, table.JOB_INFO, policy="Optimal", apply_at="step", dry_run="false") == 1
    assert of_job(operator, table.JOB_PHASE, phase="Running") == 1
    assert of_job(operator, table.JOB_CONDITION, condition="Balanced") == 0
    assert of_job(operator, table.JOB_PLANNED_BATCH_SIZE, worker="digits-cpu-0", group="cpu") == 64
    assert of_job(operator, table.JOB_EVALUATION, metric="accuracy") == 0.75
    plain = {
        table.JOB_WORKERS_WANTED: 3,
        table.JOB_WORKERS_READY: 2,
        table.JOB_WORKERS_SILENT: 0,
        table.JOB_PLAN_VERSION: 7,
        table.JOB_GLOBAL_BATCH_SIZE: 96,
        table.JOB_IMBALANCE_RATIO: 1.5,
        table.JOB_STEP: 121,
        table.JOB_ADJUSTMENTS: 3,
        table.JOB_RESTARTS: 1,
        table.JOB_METRICS_SOURCE_UP: 1,
    }
    assert {metric: of_job(operator, metric) for metric in plain} == plain


def test_next_look_replaces_the_last_one_and_unknown_is_not_exported(
    operator: OperatorMetrics,
) -> None:
    conditions = (Condition("Failed", True, "JobFailed", "it failed"), Condition("Balanced", None, "NotMeasured", ""))
    plan = replace(PLAN, version=8, members=PLAN.members[:1])
    operator.observe_job("ml", JOB, SEEN, Decision("Failed", "over", conditions=conditions, plan=plan), MEMORY)
    assert of_job(operator, table.JOB_PLAN_VERSION) == 8, "the one that is just published"
    assert [of_job(operator, table.JOB_PHASE, phase=phase) for phase in ("Running", "Failed")] == [None, 1]
    assert of_job(operator, table.JOB_CONDITION, condition="Balanced") is None
    assert of_job(operator, table.JOB_PLANNED_BATCH_SIZE, worker="digits-cpu-1", group="cpu") is None
    fresh = OperatorMetrics()
    fresh.observe_job("ml", JOB, Seen(), Decision("Created", "begins"), Remembered.initial())
    assert of_job(fresh, table.JOB_WORKERS_READY) == 0
    for metric in (table.JOB_PLAN_VERSION, table.JOB_GLOBAL_BATCH_SIZE, table.JOB_IMBALANCE_RATIO, table.JOB_STEP):
        assert of_job(fresh, metric) is None
    assert table.JOB_METRICS_SOURCE_UP.series not in series(fresh)
    assert {value(fresh, table.RECONCILE_ERRORS, kind=kind) for kind in table.FAILURES} == {0}, "for rates"


def test_worker_that_runs_and_cannot_be_read_is_silent() -> None:
    metrics = OperatorMetrics()
    silent = replace(worker(0, 0.1), metrics=None)
    pending = replace(silent, name="digits-cpu-1", phase="Pending")
    over = replace(silent, name="digits-cpu-2", exit_code=1, phase="Failed")
    starting = replace(worker(3, 0.1, phase=contract.PHASE_STARTING))
    metrics.observe_job("ml", JOB, Seen((silent, pending, over, starting), PLAN), DECISION, MEMORY)
    assert of_job(metrics, table.JOB_WORKERS_SILENT) == 1
    assert of_job(metrics, table.JOB_WORKERS_READY) == 0


def test_jobs_of_one_name_in_two_namespaces_are_apart(operator: OperatorMetrics) -> None:
    operator.observe_job("other", JOB, SEEN, DECISION, MEMORY)
    operator.forget_job("ml", "digits")
    assert of_job(operator, table.JOB_PLAN_VERSION) is None
    assert value(operator, table.JOB_PLAN_VERSION, namespace="other", training_job="digits") == 7
    operator.forget_job("other", "digits")
    operator.forget_job("other", "never-seen")
    operator.observe_job("ml", JOB, SEEN, DECISION, MEMORY)
    operator.leading(False)
    assert value(operator, table.LEADER) == 0
    assert not any(name.startswith("heterotrain_job_") for name in series(operator))


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


@pytest.mark.parametrize("member", [("cpu", 10**400), ("\udfff", 1)], ids=["batch", "name"])
def test_figure_that_cannot_be_exported_hides_nobody_elses(operator: OperatorMetrics, member: tuple[str, int]) -> None:
    spoilt = replace(PLAN, version=10**400, members=(Member("\ud800", "u0", "", *member),))
    operator.observe_job("rival", JOB, Seen(SEEN.workers, spoilt), DECISION, MEMORY)
    text = generate_latest(operator.registry).decode()
    assert f'{table.JOB_PLAN_VERSION.series}{{namespace="ml",training_job="digits"}} 7.0' in text
    assert f'{table.JOB_STEP.series}{{namespace="rival",training_job="digits"}} 121.0' in text


TABLES = (worker_metrics.WORKERS, worker_metrics.SERVER, table.JOBS, table.OPERATOR)
ROWS = [row for rows in TABLES for row in rows]
REPOSITORY = Path(__file__).parents[3]


def sample(row: Metric, value: float, **further: str) -> Sample:
    return Sample(row.series, {"worker": "w", "plan_version": "1", **further}, value)


def test_every_row_and_nothing_else_is_exported_with_its_type_help_and_labels(collected: list[Family]) -> None:
    found = {family.name: family for family in collected if not family.name.startswith("process_")}
    assert found.keys() == {row.name for row in ROWS}
    for row in ROWS:
        family = found[row.name]
        assert (family.type, family.documentation) == (row.kind.value, row.help)
        own = [set(each.labels) - {"le"} for each in family.samples if each.name.startswith(row.series)]
        assert own, row.name
        assert all(labels == set(row.labels) for labels in own), row.name


def test_value_that_no_exposition_can_hold_is_left_out_alone() -> None:
    figures = {table.JOB_STEP: 10**400, table.JOB_RESTARTS: 2, table.JOB_EVALUATION: {("a\udcff",): 0.5}}
    found = {family.name: family.samples for family in families(table.JOBS, [(("ml", "digits"), figures)])}
    assert found[table.JOB_STEP.name] == []
    assert [each.value for each in found[table.JOB_RESTARTS.name]] == [2]
    assert [each.labels["metric"] for each in found[table.JOB_EVALUATION.name]] == ["a?"]


def test_every_field_of_a_workers_metrics_is_read_from_one_row() -> None:
    named = {row.field for row in worker_metrics.WORKERS if row.field}
    assert named | {"resumed_from", "peers"} == {field.name for field in fields(WorkerMetrics)}


def test_value_of_a_worker_reaches_the_field_that_its_row_names() -> None:
    for row in (row for row in worker_metrics.WORKERS if row.field and not row.further):
        found = metrics_of([sample(worker_metrics.PLAN_VERSION, 1), sample(row, 1)])
        assert getattr(found, row.field) == 1, row.name


def test_what_a_worker_says_in_labels_is_read() -> None:
    found = metrics_of(
        [
            sample(worker_metrics.PLAN_VERSION, 1),
            sample(worker_metrics.PHASE, 1, phase="training"),
            sample(worker_metrics.RESUMED_STEP, 40, resumed_from="an earlier job"),
            sample(worker_metrics.EVALUATION, 0.5, metric="accuracy"),
            sample(worker_metrics.EVALUATION_STEP, 7),
        ]
    )
    evaluated = contract.Evaluated(7, (("accuracy", 0.5),))
    assert found == WorkerMetrics(
        1, phase="training", resumed_step=40, resumed_from="an earlier job", evaluated=evaluated
    )


def test_documentation_is_as_the_tables_say() -> None:
    page = (REPOSITORY / reference.PATH).read_text(encoding="utf-8")
    assert reference.with_tables(page) == page
