"""What is exported, read and documented is what the tables of metrics say, no more and no less."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path

import pytest
from prometheus_client.core import Metric as Family

from heterotrain import contract, worker_metrics
from heterotrain.metric import Kind, Metric, Table
from heterotrain.reporting.families import families
from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.metrics import reference, table
from heterotrain_operator.metrics.workers import Sample, metrics_of

TABLES = (worker_metrics.WORKERS, table.JOBS, table.OPERATOR)
ROWS = [row for rows in TABLES for row in rows]
REPOSITORY = Path(__file__).parents[3]


def name_of(row: Metric) -> str:
    return row.name


def sample(row: Metric, value: float, **further: str) -> Sample:
    return Sample(row.series, {"worker": "w", "plan_version": "1", **further}, value)


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_metric_is_exported_with_the_type_the_help_and_the_labels_of_its_row(
    row: Metric, collected: list[Family]
) -> None:
    (family,) = (family for family in collected if family.name == row.name)
    assert (family.type, family.documentation) == (row.kind.value, row.help)
    own = [set(each.labels) - {"le"} for each in family.samples if each.name.startswith(row.series)]
    assert own
    assert all(labels == set(row.labels) for labels in own)


def test_nothing_is_exported_that_has_no_row(collected: list[Family]) -> None:
    exported = {family.name for family in collected if not family.name.startswith("process_")}
    assert exported == {row.name for row in ROWS}


def test_figure_of_a_metric_that_is_not_in_the_table_is_not_exported() -> None:
    assert not any(family.samples for family in families(table.JOBS, [(("ml", "digits"), {table.LEADER: 1})]))


def test_value_that_no_exposition_can_hold_is_left_out_alone() -> None:
    figures = {table.JOB_STEP: 10**400, table.JOB_RESTARTS: 2, table.JOB_EVALUATION: {("a\udcff",): 0.5}}
    found = {family.name: family.samples for family in families(table.JOBS, [(("ml", "digits"), figures)])}
    assert found[table.JOB_STEP.name] == []
    assert [each.value for each in found[table.JOB_RESTARTS.name]] == [2]
    assert [each.labels["metric"] for each in found[table.JOB_EVALUATION.name]] == ["a?"]


@pytest.mark.parametrize("value", [1e31, -1.7e308, math.inf])
def test_loss_of_any_size_is_exported(value: float) -> None:
    found = list(families(worker_metrics.WORKERS, [((), {worker_metrics.LOSS: value})]))
    assert [each.value for family in found for each in family.samples] == [value]


def test_every_field_of_a_workers_metrics_is_read_from_one_row() -> None:
    named = {row.field for row in worker_metrics.WORKERS if row.field}
    assert named | {"resumed_from"} == {field.name for field in fields(WorkerMetrics)}


@pytest.mark.parametrize("row", [row for row in worker_metrics.WORKERS if row.field and not row.further], ids=name_of)
def test_value_of_a_worker_reaches_the_field_that_its_row_names(row: Metric) -> None:
    found = metrics_of([sample(worker_metrics.PLAN_VERSION, 1), sample(row, 1)])
    assert found is not None
    assert getattr(found, row.field) == 1


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


def test_documentation_keeps_what_is_written_by_hand() -> None:
    rows = Table("heterotrain_", ("worker",))
    rows.row(Kind.COUNTER, "joules", "Energy | heat.", unit="J", further=("socket",), details="As measured.")
    page = "before\n<!-- metrics: a -->\nold\n<!-- end of metrics -->\nafter\n"
    made = reference.with_tables(page, {"a": [rows]})
    assert made.startswith("before\n<!-- metrics: a -->\n")
    assert made.endswith("<!-- end of metrics -->\nafter\n")
    assert "| `heterotrain_joules_total` | counter, J | `socket` | Energy / heat. As measured. |\n" in made
    assert "old" not in made
    assert reference.with_tables(made, {"a": [rows]}) == made


@pytest.mark.parametrize("page", ["", "<!-- metrics: a -->\n", "<!-- metrics: b -->\n<!-- end of metrics -->\n"])
def test_page_without_the_place_of_a_table_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="metrics: a"):
        reference.with_tables(page, {"a": []})
