"""Dashboard and alerts ask for nothing that nobody exports, and are as their generator makes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from heterotrain import worker_metrics
from heterotrain_operator.metrics import table
from unit.metrics.promql import Exported, choices, faults, names_in, queries, with_values

REPOSITORY = Path(__file__).parents[3]
DASHBOARD: dict[str, Any] = json.loads((REPOSITORY / "helm/heterotrain/files/batch-convergence.json").read_text())
RULES_FILE = REPOSITORY / "helm/heterotrain/files/rules.yaml"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES_FILE.read_text())["groups"] for rule in group["rules"]
]
VALUES = {"namespace": "ml", "job": "digits"}


def test_dashboard_is_up_to_date() -> None:
    from batch_convergence import PATH, render

    assert (REPOSITORY / PATH).read_text(encoding="utf-8") == render()


def test_queries_of_the_dashboard_name_only_what_is_exported(exported: Exported) -> None:
    expressions = [with_values(query.expression, VALUES) for query in queries(DASHBOARD)]
    asked = [f"max by ({label}) ({with_values(selector, VALUES)})" for selector, label in choices(DASHBOARD)]
    assert [expression for expression in expressions if "$" in expression] == []
    wrong = {expression: faults(expression, exported) for expression in (*expressions, *asked)}
    assert {expression: found for expression, found in wrong.items() if found} == {}
    shown = set().union(*map(names_in, expressions))
    learnt = (worker_metrics.LOSS, table.JOB_EVALUATION, worker_metrics.OWN_SECONDS)
    assert {metric.series for metric in learnt} <= shown


def test_job_can_be_chosen_whose_workers_never_started_and_one_that_no_operator_steers() -> None:
    read = {label: names_in(with_values(selector, VALUES)) for selector, label in choices(DASHBOARD)}
    both = {table.JOB_INFO.series, worker_metrics.PLAN_VERSION.series}
    assert read == {"namespace": both, "training_job": both}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_names_only_what_is_exported(rule: dict[str, Any], exported: Exported) -> None:
    assert faults(rule["expr"], exported) == []
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description"}


def test_every_alert_is_documented() -> None:
    page = (REPOSITORY / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert [rule["alert"] for rule in RULES if f"`{rule['alert']}`" not in page] == []
