"""Dashboards and alerts ask for nothing that nobody exports, and lead to what there is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from heterotrain import contract, worker_metrics
from heterotrain_operator.core.model import JobPhase
from heterotrain_operator.metrics import table
from unit.metrics.promql import Exported, choices, faults, names_in, queries, with_values

REPOSITORY = Path(__file__).parents[3]
DASHBOARDS: dict[str, dict[str, Any]] = {
    path.name: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((REPOSITORY / "helm/heterotrain/files/dashboards").iterdir())
}
ONE_JOB = DASHBOARDS["batch-convergence.json"]
RULES_FILE = REPOSITORY / "helm/heterotrain/files/rules.yaml"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES_FILE.read_text())["groups"] for rule in group["rules"]
]
RUNBOOKS = REPOSITORY / "docs" / "runbooks"
VALUES = {"namespace": "ml", "namespaces": ".+", "job": "digits"}
OF_PROMETHEUS = {"ALERTS": frozenset({"alertname", "alertstate", "severity", "namespace", "training_job"})}


def test_dashboards_are_up_to_date() -> None:
    from dashboards import DASHBOARDS as PATHS
    from dashboards import render

    assert {Path(path).name: json.loads(render(path)) for path in PATHS} == DASHBOARDS


@pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS.keys())
def test_queries_of_a_dashboard_name_only_what_is_exported(dashboard: dict[str, Any], exported: Exported) -> None:
    expressions = [with_values(query.expression, VALUES) for query in queries(dashboard)]
    asked = [f"max by ({label}) ({with_values(selector, VALUES)})" for selector, label in choices(dashboard)]
    wrong = {each: faults(each, {**exported, **OF_PROMETHEUS}) for each in (*expressions, *asked)}
    assert {expression: found for expression, found in wrong.items() if found} == {}


def test_page_of_a_job_shows_what_is_learnt_what_scaling_measures_and_how_even_updates_are() -> None:
    shown = set().union(*(names_in(with_values(query.expression, VALUES)) for query in queries(ONE_JOB)))
    learnt = (worker_metrics.LOSS, table.JOB_EVALUATION, worker_metrics.OWN_SECONDS, table.JOB_SCALING_THROUGHPUT)
    of_servers = {worker_metrics.SERVER_UPDATES.series, f"{worker_metrics.SERVER_STALENESS.name}_sum"}
    assert {metric.series for metric in learnt} | of_servers <= shown


def test_job_can_be_chosen_whose_workers_never_started_and_one_that_no_operator_steers() -> None:
    read = {label: names_in(with_values(selector, VALUES)) for selector, label in choices(ONE_JOB)}
    both = {table.JOB_INFO.series, worker_metrics.PLAN_VERSION.series}
    assert read == {"namespace": both, "training_job": both}


def test_every_phase_has_a_colour() -> None:
    from dashboard_panels import JOB_PHASE_COLOURS, WORKER_PHASE_COLOURS

    assert set(JOB_PHASE_COLOURS) == set(get_args(JobPhase))
    assert set(WORKER_PHASE_COLOURS) == set(contract.PHASES)


def test_links_lead_to_dashboards_and_set_variables_that_these_have() -> None:
    variables = {each["uid"]: {v["name"] for v in each["templating"]["list"]} for each in DASHBOARDS.values()}
    urls = re.findall(r'"/d/([^?"]+)\?([^"]+)"', json.dumps(list(DASHBOARDS.values())))
    assert {uid for uid, _ in urls} == {ONE_JOB["uid"]}
    for uid, parameters in urls:
        assert set(re.findall(r"&var-(\w+)=", parameters)) == variables[uid]
    for each in DASHBOARDS.values():
        (others,) = each["links"]
        assert others["tags"] == each["tags"]
        assert others["includeVars"] and others["keepTime"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_names_only_what_is_exported(rule: dict[str, Any], exported: Exported) -> None:
    assert faults(rule["expr"], exported) == []
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{rule['alert']}.md"


def test_every_alert_has_its_page_and_every_page_its_alert() -> None:
    alerts = {rule["alert"] for rule in RULES}
    assert {path.stem for path in RUNBOOKS.iterdir()} - {"README"} == alerts
    listed = re.findall(r"\(runbooks/(\w+)\.md\)", (REPOSITORY / "docs" / "metrics.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(alerts)
    for alert in alerts:
        page = (RUNBOOKS / f"{alert}.md").read_text(encoding="utf-8")
        assert re.findall("^#+ (.+)$", page, re.MULTILINE) == [alert, "Meaning", "Impact", "Look at", "Do"]
