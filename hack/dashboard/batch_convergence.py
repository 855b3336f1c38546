"""Build the Grafana dashboard *batch convergence*: do unequal workers take equal time, and what did it take.

As code, because then every query takes its metrics' names from where they are exported. `make manifests` runs it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from grafana_foundation_sdk.builders.common import ReduceDataOptions, VizLegendOptions, VizTooltipOptions
from grafana_foundation_sdk.builders.dashboard import Dashboard, DatasourceVariable, QueryVariable, Row
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as Stat
from grafana_foundation_sdk.builders.timeseries import Panel as Timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueGraphMode,
    BigValueTextMode,
    GraphDrawStyle,
    LegendDisplayMode,
    LegendPlacement,
    LineInterpolation,
    SortOrder,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    VariableRefresh,
    VariableSort,
)

from heterotrain import contract
from heterotrain_operator.api.generated import write_or_check
from heterotrain_operator.metrics import names

PATH = Path("helm/heterotrain/files/batch-convergence.json")
"""In the repository; the chart puts it into a ConfigMap."""

TITLE = "HeteroTrain / batch convergence"
UID = "heterotrain-batch-convergence"
DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
SELECTOR = '{namespace="$namespace",training_job="$job"}'
GRID_COLUMNS = 24
STAT_ROWS = 4
GRAPH_ROWS = 8


def worker(metric: str) -> str:
    """A gauge of every worker."""
    return f"max by (worker) ({metric}{SELECTOR})"


def job(metric: str) -> str:
    """A gauge of the job; the greatest, while an old and a new operator both tell of it."""
    return f"max({metric}{SELECTOR})"


def rate(counter: str) -> str:
    """How fast a counter of every worker grows per second, whatever plan version it belongs to."""
    return f"sum by (worker) (rate({counter}_total{SELECTOR}[$__rate_interval]))"


def operator_rate(counter: str, labels: str) -> str:
    """How fast a counter of the operator grows per second."""
    return f"sum by ({labels}) (rate({counter}_total[$__rate_interval]))"


def in_view(counter: str) -> str:
    """By how much a counter of the job grew in the time that is shown."""
    return f"round(max(increase({counter}_total{SELECTOR}[$__range])))"


STEP_SECONDS = f"({rate(contract.METRIC_OWN_SECONDS)} + {rate(contract.METRIC_WAIT_SECONDS)})"
"""Seconds of measured steps per second; a ratio over it knows nothing of the steps that are not measured."""

THROUGHPUT = f"{rate(contract.METRIC_SAMPLES)} / {STEP_SECONDS}"
WAITING = f"{rate(contract.METRIC_WAIT_SECONDS)} / {STEP_SECONDS}"
MEMORY_SHARE = f"{worker(contract.METRIC_MEMORY_PEAK_BYTES)} / {worker(contract.METRIC_MEMORY_LIMIT_BYTES)}"


def query(expression: str, legend: str) -> Dataquery:
    """One query; `{{label}}` in the legend is replaced by its value."""
    return Dataquery().expr(expression).legend_format(legend).range().datasource(DATASOURCE)


def graph(title: str, description: str, unit: str, *queries: tuple[str, str], columns: int = 12) -> Timeseries:
    """A graph over time; queries are expression and legend."""
    panel = (
        Timeseries()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(DATASOURCE)
        .height(GRAPH_ROWS)
        .span(columns)
        .show_points(VisibilityMode.NEVER)
        .legend(
            VizLegendOptions()
            .display_mode(LegendDisplayMode.TABLE)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["lastNotNull"])
        )
        .tooltip(VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    )
    return with_queries(panel, queries).min(0)


def with_queries(panel: Timeseries, queries: tuple[tuple[str, str], ...]) -> Timeseries:
    """The panel with its queries, named A, B and so on."""
    for index, (expression, legend) in enumerate(queries):
        panel = panel.with_target(query(expression, legend).ref_id(chr(ord("A") + index)))
    return panel


def steps(title: str, description: str, unit: str, *queries: tuple[str, str], columns: int = 12) -> Timeseries:
    """A graph of values that jump, and stay."""
    return graph(title, description, unit, *queries, columns=columns).line_interpolation(LineInterpolation.STEP_AFTER)


def stat(
    title: str, unit: str, expression: str, legend: str = "", *, decimals: int = 0, mode: BigValueTextMode | None = None
) -> Stat:
    """The newest value in large."""
    return (
        Stat()
        .title(title)
        .unit(unit)
        .decimals(decimals)
        .datasource(DATASOURCE)
        .height(STAT_ROWS)
        .span(GRID_COLUMNS // 8)
        .graph_mode(BigValueGraphMode.NONE)
        .text_mode(mode or BigValueTextMode.VALUE)
        .reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(query(expression, legend).instant().ref_id("A"))
    )


def overview(dashboard: Dashboard) -> Dashboard:
    """Where the job is."""
    return (
        dashboard.with_row(Row("Job"))
        .with_panel(
            stat(
                "Phase",
                "short",
                f"max by (phase) ({names.JOB_PHASE}{SELECTOR})",
                "{{phase}}",
                mode=BigValueTextMode.NAME,
            )
        )
        .with_panel(stat("Workers that train", "short", job(names.JOB_WORKERS_READY)))
        .with_panel(stat("Workers wanted", "short", job(names.JOB_WORKERS_WANTED)))
        .with_panel(stat("Step", "short", job(names.JOB_STEP)))
        .with_panel(stat("Plan in force", "short", job(names.JOB_PLAN_VERSION)))
        .with_panel(stat("Imbalance", "short", job(names.JOB_IMBALANCE_RATIO), decimals=2))
        .with_panel(stat("Adjustments in view", "short", in_view(names.JOB_ADJUSTMENTS)))
        .with_panel(stat("Restarts in view", "short", in_view(names.JOB_RESTARTS)))
    )


def balance(dashboard: Dashboard) -> Dashboard:
    """Whether unequal workers take equal time."""
    return (
        dashboard.with_row(Row("Balance"))
        .with_panel(
            steps(
                "Batch size",
                "Samples per step that each worker has in the plan that it follows.",
                "short",
                (worker(contract.METRIC_BATCH_SIZE), "{{worker}}"),
            )
        )
        .with_panel(
            graph(
                "Own time per step",
                "Without waiting for others, as a moving average since the plan began. Equal is the aim.",
                "s",
                (worker(contract.METRIC_OWN_SECONDS_EWMA), "{{worker}}"),
            )
        )
        .with_panel(
            graph(
                "Imbalance",
                "Own time of the slowest worker over the mean; 1 is balance.",
                "short",
                (job(names.JOB_IMBALANCE_RATIO), "slowest over mean"),
            )
        )
        .with_panel(
            graph(
                "Share of waiting",
                "Of the time of measured steps, the part that a worker waits for the others.",
                "percentunit",
                (WAITING, "{{worker}}"),
            ).max(1)
        )
    )


def training(dashboard: Dashboard) -> Dashboard:
    """What comes of it."""
    return (
        dashboard.with_row(Row("Training"))
        .with_panel(
            graph(
                "Throughput",
                "Samples per second in measured steps.",
                "short",
                (f"sum({THROUGHPUT})", "job"),
                (THROUGHPUT, "{{worker}}"),
            )
        )
        .with_panel(
            graph(
                "Loss",
                "Global training loss of the newest step known.",
                "short",
                (job(contract.METRIC_LOSS), "loss"),
            )
        )
        .with_panel(
            graph(
                "Evaluation",
                "What the script evaluated last, by metric.",
                "short",
                (f"max by (metric) ({names.JOB_EVALUATION}{SELECTOR})", "{{metric}}"),
            )
        )
        .with_panel(
            steps(
                "Plan version",
                "The version in force, and the one that each worker follows.",
                "short",
                (job(names.JOB_PLAN_VERSION), "in force"),
                (worker(contract.METRIC_PLAN_VERSION), "{{worker}}"),
            )
        )
        .with_panel(
            graph(
                "Adjustments and restarts",
                "Plans that changed a batch size, and restarts after a worker's own fault.",
                "short",
                (f"max(increase({names.JOB_ADJUSTMENTS}_total{SELECTOR}[$__rate_interval]))", "adjustments"),
                (f"max(increase({names.JOB_RESTARTS}_total{SELECTOR}[$__rate_interval]))", "restarts"),
            ).draw_style(GraphDrawStyle.BARS)
        )
    )


def resources(dashboard: Dashboard) -> Dashboard:
    """What the workers have, and what holds them back."""
    return (
        dashboard.with_row(Row("Resources"))
        .with_panel(
            graph(
                "CPU throttling",
                "Seconds per second for which the CPU limit holds a worker back; of several threads more than one.",
                "percentunit",
                (rate(contract.METRIC_CPU_THROTTLED_SECONDS), "{{worker}}"),
                columns=6,
            )
        )
        .with_panel(
            steps(
                "CPU limit",
                "Cores, as in force now; a resize in place changes it.",
                "short",
                (worker(contract.METRIC_CPU_LIMIT), "{{worker}}"),
                columns=6,
            )
        )
        .with_panel(
            graph(
                "Memory",
                "Resident memory of each worker.",
                "bytes",
                (worker(contract.METRIC_MEMORY_BYTES), "{{worker}}"),
                columns=6,
            )
        )
        .with_panel(
            graph(
                "Peak memory of the limit",
                "Of an ordinary step under the plan in force; batches grow to 95 %.",
                "percentunit",
                (MEMORY_SHARE, "{{worker}}"),
                columns=6,
            )
        )
    )


def operator(dashboard: Dashboard) -> Dashboard:
    """What steering costs, over all jobs."""
    followed = f"sum by (le) (rate({names.PLAN_FOLLOW_SECONDS}_bucket[$__rate_interval]))"
    looked = f"sum by (le) (rate({names.RECONCILE_SECONDS}_bucket[$__rate_interval]))"
    return (
        dashboard.with_row(Row("Operator, all jobs"))
        .with_panel(
            graph(
                "From a plan's write to all workers following it",
                "Median and 95th percentile.",
                "s",
                (f"histogram_quantile(0.5, {followed})", "median"),
                (f"histogram_quantile(0.95, {followed})", "95 %"),
                columns=8,
            )
        )
        .with_panel(
            graph(
                "One look at a job",
                "Observing, deciding and acting: median and 95th percentile.",
                "s",
                (f"histogram_quantile(0.5, {looked})", "median"),
                (f"histogram_quantile(0.95, {looked})", "95 %"),
                columns=8,
            )
        )
        .with_panel(
            graph(
                "Writes to the API server, and failed looks",
                "Per second; none while nothing changes.",
                "ops",
                (operator_rate(names.API_WRITES, "verb, kind"), "{{verb}} {{kind}}"),
                (operator_rate(names.RECONCILE_ERRORS, "kind"), "failed: {{kind}}"),
                columns=8,
            )
        )
    )


def variable(name: str, expression: str) -> QueryVariable:
    """A choice among what is exported in the time that is shown."""
    return (
        QueryVariable(name)
        .label(name)
        .query(expression)
        .datasource(DATASOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )


def render() -> str:
    """The dashboard as Grafana takes it; the same for the same code."""
    # A job whose pods never started has no workers' series, one where only pods are scraped none of the operator's.
    known = f'__name__=~"{names.JOB_INFO}|{contract.METRIC_PLAN_VERSION}"'
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
    for add in (overview, balance, training, resources, operator):
        dashboard = add(dashboard)
    return JSONEncoder(sort_keys=True, indent=2).encode(dashboard.build()) + "\n"


if __name__ == "__main__":
    sys.exit(write_or_check(render, PATH, "Render the Grafana dashboard."))
