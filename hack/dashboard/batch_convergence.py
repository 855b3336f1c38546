"""Build the Grafana dashboard *batch convergence*: whether unequal workers take equal time, and what that costs.

It is code because then every query takes the names of its metrics from the tables from which they are exported.
`make manifests` runs it.
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

from heterotrain import worker_metrics as workers
from heterotrain.metric import Metric
from heterotrain_operator.api.generated import write_or_check
from heterotrain_operator.metrics import table

PATH = Path("helm/heterotrain/files/batch-convergence.json")
"""In the repository; the chart puts it into a ConfigMap."""

TITLE = "HeteroTrain / batch convergence"
UID = "heterotrain-batch-convergence"
DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
SELECTOR = '{namespace="$namespace",training_job="$job"}'
GRID_COLUMNS = 24
STAT_ROWS = 4
GRAPH_ROWS = 8


def worker(gauge: Metric) -> str:
    """A gauge of every worker."""
    return f"max by (worker) ({gauge.series}{SELECTOR})"


def job(gauge: Metric) -> str:
    """A gauge of the job; the greatest, while an old and a new operator both export it."""
    return f"max({gauge.series}{SELECTOR})"


def by(label: str, gauge: Metric) -> str:
    """A gauge of the job for each value of a label."""
    return f"max by ({label}) ({gauge.series}{SELECTOR})"


def rate(counter: Metric) -> str:
    """How fast a counter of every worker grows per second, whatever plan version it belongs to."""
    return f"sum by (worker) (rate({counter.series}{SELECTOR}[$__rate_interval]))"


def of_time(seconds: Metric) -> str:
    """Seconds of every worker per second in which they were counted."""
    return f"{rate(seconds)} / {rate(workers.OBSERVED_SECONDS)}"


def operator_rate(counter: Metric, labels: str) -> str:
    """How fast a counter of the operator grows per second."""
    return f"sum by ({labels}) (rate({counter.series}[$__rate_interval]))"


def in_view(counter: Metric) -> str:
    """By how much a counter of the job grew in the time that is shown."""
    return f"round({growth(counter, '$__range')})"


def growth(counter: Metric, time: str = "$__rate_interval") -> str:
    """By how much a counter of the job grew in a time."""
    return f"max(increase({counter.series}{SELECTOR}[{time}]))"


def quantile(share: float, histogram: Metric) -> str:
    """A quantile of what the operator measured."""
    return f"histogram_quantile({share}, sum by (le) (rate({histogram.name}_bucket[$__rate_interval])))"


STEP_SECONDS = f"({rate(workers.OWN_SECONDS)} + {rate(workers.WAIT_SECONDS)})"
"""Seconds of measured steps per second; ratios over it leave out the steps that are not measured."""

THROUGHPUT = f"{rate(workers.SAMPLES)} / {STEP_SECONDS}"
WAITING = f"{rate(workers.WAIT_SECONDS)} / {STEP_SECONDS}"
REPEATED = f"max(increase({workers.STEPS_REPLAYED.series}{SELECTOR}[5m])) * {job(table.JOB_GLOBAL_BATCH_SIZE)}"
"""Members replay a broken step together, so that one that has replayed most speaks for all."""

MEMORY_SHARE = f"{worker(workers.MEMORY_PEAK_BYTES)} / {worker(workers.MEMORY_LIMIT_BYTES)}"


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
    """A graph of values that change in jumps."""
    return graph(title, description, unit, *queries, columns=columns).line_interpolation(LineInterpolation.STEP_AFTER)


def stat(
    title: str, unit: str, expression: str, legend: str = "", *, decimals: int = 0, mode: BigValueTextMode | None = None
) -> Stat:
    """The newest value in large type."""
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
    """The state of the job."""
    return (
        dashboard.with_row(Row("Job"))
        .with_panel(
            stat(
                "Phase",
                "short",
                by("phase", table.JOB_PHASE),
                "{{phase}}",
                mode=BigValueTextMode.NAME,
            )
        )
        .with_panel(stat("Workers that train", "short", job(table.JOB_WORKERS_READY)))
        .with_panel(stat("Workers wanted", "short", job(table.JOB_WORKERS_WANTED)))
        .with_panel(stat("Step", "short", job(table.JOB_STEP)))
        .with_panel(stat("Active plan", "short", job(table.JOB_PLAN_VERSION)))
        .with_panel(stat("Imbalance", "short", job(table.JOB_IMBALANCE_RATIO), decimals=2))
        .with_panel(stat("Adjustments in view", "short", in_view(table.JOB_ADJUSTMENTS)))
        .with_panel(stat("Restarts in view", "short", in_view(table.JOB_RESTARTS)))
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
                (worker(workers.BATCH_SIZE), "{{worker}}"),
            )
        )
        .with_panel(
            graph(
                "Own time per step",
                "Without waiting for others, as a moving average since the plan began. Equal is the aim.",
                "s",
                (worker(workers.OWN_SECONDS_EWMA), "{{worker}}"),
            )
        )
        .with_panel(
            graph(
                "Imbalance",
                "Own time of the slowest worker over the mean; 1 is balance.",
                "short",
                (job(table.JOB_IMBALANCE_RATIO), "slowest over mean"),
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
    """The progress of the training."""
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
                (job(workers.LOSS), "loss"),
            )
        )
        .with_panel(
            graph(
                "Evaluation",
                "What the script evaluated last, by metric.",
                "short",
                (by("metric", table.JOB_EVALUATION), "{{metric}}"),
            )
        )
        .with_panel(
            steps(
                "Plan version",
                "The active version, and the one that each worker follows.",
                "short",
                (job(table.JOB_PLAN_VERSION), "active"),
                (worker(workers.PLAN_VERSION), "{{worker}}"),
            )
        )
        .with_panel(
            graph(
                "Adjustments and restarts",
                "Plans that changed a batch size, and restarts after a worker's own fault.",
                "short",
                (growth(table.JOB_ADJUSTMENTS), "adjustments"),
                (growth(table.JOB_RESTARTS), "restarts"),
            ).draw_style(GraphDrawStyle.BARS)
        )
    )


def resources(dashboard: Dashboard) -> Dashboard:
    """The resources of the workers, and what limits them."""
    return (
        dashboard.with_row(Row("Resources"))
        .with_panel(
            graph(
                "Held back by the CPU limit",
                "Seconds per second, of several threads more than one: a limit that is lower or binds more.",
                "percentunit",
                (of_time(workers.CPU_THROTTLED_OF_VERSION), "{{worker}}"),
                columns=8,
            )
        )
        .with_panel(
            graph(
                "Waiting for a CPU that others use",
                "Seconds per second, of several threads more than one: a neighbour.",
                "percentunit",
                (of_time(workers.CPU_WAIT_SECONDS), "{{worker}}"),
                columns=8,
            )
        )
        .with_panel(
            graph(
                "CPU used",
                "Cores. Less of it in a slower worker that neither the limit nor others hold back: its script waits.",
                "short",
                (of_time(workers.CPU_SECONDS), "{{worker}}"),
                columns=8,
            )
        )
        .with_panel(
            graph(
                "Stragglers",
                "Own time over the expected one, of workers that are slow by fault; none is good.",
                "short",
                (by("worker", table.JOB_STRAGGLER_SLOWDOWN), "{{worker}}"),
                columns=8,
            )
        )
        .with_panel(
            graph(
                "Changes of the members",
                "Swaps, joins and leaves in the last five minutes, while the others train; and the seconds for which "
                "they stood still for that.",
                "short",
                (f"max by (kind) (increase({table.JOB_TRANSITIONS.series}{SELECTOR}[5m]))", "{{kind}}"),
                (growth(table.JOB_TRANSITION_SECONDS, "5m"), "seconds idle"),
                columns=8,
            )
        )
        .with_panel(
            graph(
                "Samples repeated",
                "In the last five minutes: those of steps that a failure has broken, by the present global batch.",
                "short",
                (REPEATED, "samples"),
                columns=8,
            )
        )
        .with_panel(
            steps(
                "CPU limit",
                "Cores, as they are now; a resize in place changes it.",
                "short",
                (worker(workers.CPU_LIMIT), "{{worker}}"),
                columns=8,
            )
        )
        .with_panel(
            graph(
                "Memory",
                "Resident memory of each worker.",
                "bytes",
                (worker(workers.MEMORY_BYTES), "{{worker}}"),
                columns=8,
            )
        )
        .with_panel(
            graph(
                "Peak memory of the limit",
                "Of an ordinary step under the active plan; batches grow to 95 %.",
                "percentunit",
                (MEMORY_SHARE, "{{worker}}"),
                columns=8,
            )
        )
    )


def operator(dashboard: Dashboard) -> Dashboard:
    """The cost of steering, over all jobs."""
    return (
        dashboard.with_row(Row("Operator, all jobs"))
        .with_panel(
            graph(
                "From a plan's write to all workers following it",
                "Median and 95th percentile.",
                "s",
                (quantile(0.5, table.PLAN_FOLLOW_SECONDS), "median"),
                (quantile(0.95, table.PLAN_FOLLOW_SECONDS), "95 %"),
                columns=8,
            )
        )
        .with_panel(
            graph(
                "One look at a job",
                "Observing, deciding and acting: median and 95th percentile.",
                "s",
                (quantile(0.5, table.RECONCILE_SECONDS), "median"),
                (quantile(0.95, table.RECONCILE_SECONDS), "95 %"),
                columns=8,
            )
        )
        .with_panel(
            graph(
                "Writes to the API server, and failed looks",
                "Per second; none while nothing changes.",
                "ops",
                (operator_rate(table.API_WRITES, "verb, kind"), "{{verb}} {{kind}}"),
                (operator_rate(table.RECONCILE_ERRORS, "kind"), "failed: {{kind}}"),
                columns=8,
            )
        )
    )


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
    for add in (overview, balance, training, resources, operator):
        dashboard = add(dashboard)
    return JSONEncoder(sort_keys=True, indent=2).encode(dashboard.build()) + "\n"


if __name__ == "__main__":
    sys.exit(write_or_check(render, PATH, "Render the Grafana dashboard."))
