"""Build the Grafana dashboards: all jobs, one job (*batch convergence*) and the operator, which lead to one another.

They are code because then every query takes the names of its metrics from the tables from which they are exported.
`make manifests` runs it.
"""

from __future__ import annotations

from pathlib import Path

import dashboard_all_jobs
import dashboard_job
import dashboard_operator
from dashboard_panels import DATASOURCE, TAG
from dashboard_queries import KNOWN_JOBS
from grafana_foundation_sdk.builders.dashboard import Dashboard, DashboardLink, DatasourceVariable, QueryVariable
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

FOLDER = "helm/heterotrain/files/dashboards"
"""In the repository; the chart puts its files into a ConfigMap."""


def variable(name: str, expression: str) -> QueryVariable:
    """A choice among the values that are exported in the time that is shown."""
    return (
        QueryVariable(name)
        .label(name)
        .query(expression)
        .datasource(DATASOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )


def page(title: str, uid: str, description: str) -> Dashboard:
    """What all dashboards have in common; the links above keep time and variables."""
    return (
        Dashboard(f"HeteroTrain / {title}")
        .uid(uid)
        .description(description)
        .tags([TAG])
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .time("now-30m", "now")
        .refresh("10s")
        .editable()
        .link(
            DashboardLink("HeteroTrain")
            .type(DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(DatasourceVariable("datasource").label("data source").type("prometheus"))
    )


def all_jobs() -> Dashboard:
    """Every job in one line, and what needs attention."""
    namespaces = variable("namespaces", f"label_values({{{KNOWN_JOBS}}}, namespace)").multi(True).include_all(True)
    everywhere = VariableOption(selected=True, text=["All"], value=["$__all"])
    built = page("all jobs", dashboard_all_jobs.UID, "Phase, balance, throughput and cost of every job.")
    return dashboard_all_jobs.fill(built.with_variable(namespaces.all_value(".+").current(everywhere)))


def batch_convergence() -> Dashboard:
    """One job."""
    in_namespace = f'{{{KNOWN_JOBS}, namespace="$namespace"}}'
    built = (
        page(
            "batch convergence",
            dashboard_job.UID,
            "Batch sizes of unequal workers, and whether they make them equally fast.",
        )
        .with_variable(variable("namespace", f"label_values({{{KNOWN_JOBS}}}, namespace)"))
        .with_variable(variable("job", f"label_values({in_namespace}, training_job)"))
    )
    return dashboard_job.fill(built)


def operator() -> Dashboard:
    """The operator's own health, over all jobs."""
    return dashboard_operator.fill(
        page("operator", dashboard_operator.UID, "What the operator does, and what it costs.")
    )


DASHBOARDS = {
    f"{FOLDER}/all-jobs.json": all_jobs,
    f"{FOLDER}/batch-convergence.json": batch_convergence,
    f"{FOLDER}/operator.json": operator,
}
"""By the path in the repository."""


def render(path: str) -> str:
    """A dashboard as Grafana imports it."""
    return JSONEncoder(sort_keys=True, indent=2).encode(DASHBOARDS[path]().build()) + "\n"


if __name__ == "__main__":
    for each in DASHBOARDS:
        Path(each).write_text(render(each), encoding="utf-8")
