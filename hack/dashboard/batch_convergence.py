"""Build the Grafana dashboard *batch convergence*: whether unequal workers take equal time, and what that costs.

It is code because then every query takes the names of its metrics from the tables from which they are exported.
`make manifests` runs it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dashboard_panels import DATASOURCE
from dashboard_rows import ROWS
from grafana_foundation_sdk.builders.dashboard import Dashboard, DatasourceVariable, QueryVariable
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, VariableRefresh, VariableSort

from heterotrain import worker_metrics as workers
from heterotrain_operator.api.generate import write_or_check
from heterotrain_operator.metrics import table

PATH = Path("helm/heterotrain/files/batch-convergence.json")
"""In the repository; the chart puts it into a ConfigMap."""

TITLE = "HeteroTrain / batch convergence"
UID = "heterotrain-batch-convergence"


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


def render() -> str:
    """The dashboard as Grafana imports it."""
    # A job whose pods never started has no workers' series; where only pods are scraped, the operator's are missing.
    known = f'__name__=~"{table.JOB_INFO.series}|{workers.PLAN_VERSION.series}"'
    dashboard = (
        Dashboard(TITLE)
        .uid(UID)
        .description("Batch sizes of unequal workers, and whether they make them equally fast.")
        .tags(["heterotrain"])
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .time("now-30m", "now")
        .refresh("10s")
        .editable()
        .with_variable(DatasourceVariable("datasource").label("data source").type("prometheus"))
        .with_variable(variable("namespace", f"label_values({{{known}}}, namespace)"))
        .with_variable(variable("job", f'label_values({{{known}, namespace="$namespace"}}, training_job)'))
    )
    for add in ROWS:
        dashboard = add(dashboard)
    return JSONEncoder(sort_keys=True, indent=2).encode(dashboard.build()) + "\n"


if __name__ == "__main__":
    sys.exit(write_or_check(render, PATH, "Render the Grafana dashboard."))
