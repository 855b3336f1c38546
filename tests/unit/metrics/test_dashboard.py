"""Dashboard and alerts ask for nothing that nobody exports, and are as their generator makes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from heterotrain import worker_metrics
from heterotrain.metric import Metric
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


@pytest.mark.parametrize("shown", [worker_metrics.LOSS, table.JOB_EVALUATION, worker_metrics.OWN_SECONDS])
def test_what_a_job_learns_is_on_the_dashboard(shown: Metric) -> None:
    asked = set().union(*(names_in(with_values(query.expression, VALUES)) for query in queries(DASHBOARD)))
    assert shown.series in asked


@pytest.mark.parametrize("query", list(queries(DASHBOARD)), ids=lambda query: f"{query.panel}: {query.legend}")
def test_query_of_the_dashboard_names_only_what_is_exported(query: Any, exported: Exported) -> None:
    expression = with_values(query.expression, VALUES)
    assert "$" not in expression
    assert faults(expression, exported) == []


def test_job_can_be_chosen_whose_workers_never_started_and_one_that_no_operator_steers() -> None:
    read = {label: names_in(with_values(selector, VALUES)) for selector, label in choices(DASHBOARD)}
    both = {table.JOB_INFO.series, worker_metrics.PLAN_VERSION.series}
    assert read == {"namespace": both, "training_job": both}


@pytest.mark.parametrize(("selector", "label"), list(choices(DASHBOARD)))
def test_choice_of_the_dashboard_names_only_what_is_exported(selector: str, label: str, exported: Exported) -> None:
    assert faults(f"max by ({label}) ({with_values(selector, VALUES)})", exported) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_names_only_what_is_exported(rule: dict[str, Any], exported: Exported) -> None:
    assert faults(rule["expr"], exported) == []
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description"}


def test_every_alert_is_documented() -> None:
    page = (REPOSITORY / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert [rule["alert"] for rule in RULES if f"`{rule['alert']}`" not in page] == []
