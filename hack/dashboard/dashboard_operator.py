"""The page of the operator: whether it leads, watches and keeps up, over all jobs."""

from __future__ import annotations

from dashboard_panels import GREEN, GRID_COLUMNS, RED, YELLOW, graph, limits, lined, stat, timeline
from dashboard_queries import of_operators, operator_rate, or_none, quantile
from grafana_foundation_sdk.builders.dashboard import Dashboard, Row

from heterotrain_operator.metrics import table

UID = "heterotrain-operator"

WATCHES = {"stands": GREEN, "has ended": RED}
FAILED_LOOKS = f"sum(increase({table.RECONCILE_ERRORS.series}[10m]))"


def overview(dashboard: Dashboard) -> Dashboard:
    """Whether it works at all."""
    sixth = GRID_COLUMNS // 6
    ended = f"count({table.WATCH_UP.series} == 0)"
    jobs = f"count(count by (namespace, training_job) ({table.JOB_INFO.series}))"
    return (
        dashboard.with_row(Row("Operator"))
        .with_panel(
            stat(
                "Leading replicas",
                "short",
                f"sum({table.LEADER.series})",
                columns=sixth,
                thresholds=limits((1, GREEN), (2, YELLOW), base=RED),
            )
        )
        .with_panel(stat("Replicas", "short", f"count({table.LEADER.series})", columns=sixth))
        .with_panel(stat("Jobs", "short", or_none(jobs), columns=sixth))
        .with_panel(
            stat("Watches that have ended", "short", or_none(ended), columns=sixth, thresholds=limits((1, RED)))
        )
        .with_panel(
            stat(
                "Failed looks in 10 minutes",
                "short",
                f"round({FAILED_LOOKS})",
                columns=sixth,
                thresholds=limits((1, YELLOW), (5, RED)),
            )
        )
        .with_panel(
            stat(
                "One look, 95 %",
                "s",
                quantile(0.95, table.RECONCILE_SECONDS),
                decimals=2,
                columns=sixth,
                thresholds=limits((1, YELLOW), (5, RED)),
            )
        )
    )


def steering(dashboard: Dashboard) -> Dashboard:
    """How quickly it looks at jobs, and workers follow."""
    looks = f"sum(rate({table.RECONCILE_SECONDS.name}_count[$__rate_interval]))"
    return (
        dashboard.with_row(Row("Steering"))
        .with_panel(
            graph(
                "From a plan's write to all workers following it",
                "Median and 95th percentile; with applyAt: epoch it is up to an epoch.",
                "s",
                (quantile(0.5, table.PLAN_FOLLOW_SECONDS), "median"),
                (quantile(0.95, table.PLAN_FOLLOW_SECONDS), "95 %"),
            )
        )
        .with_panel(
            lined(
                graph(
                    "One look at a job",
                    "Observing, deciding and acting: median and 95th percentile.",
                    "s",
                    (quantile(0.5, table.RECONCILE_SECONDS), "median"),
                    (quantile(0.95, table.RECONCILE_SECONDS), "95 %"),
                ),
                (1, YELLOW),
                (5, RED),
            )
        )
        .with_panel(graph("Looks", "At jobs, per second.", "ops", (looks, "looks")))
        .with_panel(
            graph(
                "Writes to the API server, and failed looks",
                "Per second; none while nothing changes.",
                "ops",
                (operator_rate(table.API_WRITES, "verb, kind"), "{{verb}} {{kind}}"),
                (operator_rate(table.RECONCILE_ERRORS, "kind"), "failed: {{kind}}"),
            )
        )
        .with_panel(
            timeline(
                "Watches",
                "Of the API server, by resource and namespace; where one has ended, jobs there are not steered.",
                WATCHES,
                f"2 - min by (resource, namespace) ({table.WATCH_UP.series})",
                "{{resource}} {{namespace}}",
            )
        )
    )


def process(dashboard: Dashboard) -> Dashboard:
    """What it costs."""
    return (
        dashboard.with_row(Row("Process"))
        .with_panel(
            graph(
                "CPU",
                "Cores that each replica uses.",
                "suffix: cores",
                (of_operators("rate(process_cpu_seconds_total[$__rate_interval])"), "{{instance}}"),
                columns=8,
            )
        )
        .with_panel(
            lined(
                graph(
                    "Memory",
                    "Resident; the chart's limit is 512 MiB.",
                    "bytes",
                    (of_operators("process_resident_memory_bytes"), "{{instance}}"),
                    columns=8,
                ),
                (400 * 2**20, YELLOW),
                (512 * 2**20, RED),
            )
        )
        .with_panel(
            lined(
                graph(
                    "Descriptors",
                    "Open, of those that the process may have.",
                    "percentunit",
                    (of_operators("process_open_fds / process_max_fds"), "{{instance}}"),
                    columns=8,
                ).max(1),
                (0.8, RED),
            )
        )
    )


def fill(dashboard: Dashboard) -> Dashboard:
    """The dashboard with its rows."""
    for add in (overview, steering, process):
        dashboard = add(dashboard)
    return dashboard
