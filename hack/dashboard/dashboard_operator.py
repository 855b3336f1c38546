"""The page of the operator: whether it leads, watches and keeps up, over all jobs."""

from __future__ import annotations

from dashboard_panels import GREEN, RED, YELLOW, graph, row, stat, timeline
from dashboard_queries import of_operators, operator_rate, or_none, quantile
from grafana_foundation_sdk.builders.dashboard import Dashboard

from heterotrain_operator.metrics import table

UID = "heterotrain-operator"

WATCHES = {"stands": GREEN, "has ended": RED}
JOBS = f"count(count by (namespace, training_job) ({table.JOB_INFO.series}))"
FAILED_LOOKS = f"sum(increase({table.RECONCILE_ERRORS.series}[10m]))"
LOOKS = f"sum(rate({table.RECONCILE_SECONDS.name}_count[$__rate_interval]))"
LATE = ((1, YELLOW), (5, RED))
"""Seconds."""

OVERVIEW = (
    stat("Leading replicas", f"sum({table.LEADER.series})", marks=((1, GREEN), (2, YELLOW)), base=RED),
    stat("Replicas", f"count({table.LEADER.series})"),
    stat("Jobs", or_none(JOBS)),
    stat("Watches that have ended", or_none(f"count({table.WATCH_UP.series} == 0)"), marks=((1, RED),)),
    stat("Failed looks in 10 minutes", f"round({FAILED_LOOKS})", marks=((1, YELLOW), (5, RED))),
    stat("One look, 95 %", quantile(0.95, table.RECONCILE_SECONDS), unit="s", decimals=None, marks=LATE),
)
STEERING = (
    graph(
        "From a plan's write to all workers following it",
        "Median and 95th percentile; with applyAt: epoch it is up to an epoch.",
        "s",
        (quantile(0.5, table.PLAN_FOLLOW_SECONDS), "median"),
        (quantile(0.95, table.PLAN_FOLLOW_SECONDS), "95 %"),
    ),
    graph(
        "One look at a job",
        "Observing, deciding and acting: median and 95th percentile.",
        "s",
        (quantile(0.5, table.RECONCILE_SECONDS), "median"),
        (quantile(0.95, table.RECONCILE_SECONDS), "95 %"),
        marks=LATE,
    ),
    graph(
        "Looks at jobs",
        "Per second, and those that failed.",
        "ops",
        (LOOKS, "looks"),
        (operator_rate(table.RECONCILE_ERRORS, "kind"), "failed: {{kind}}"),
    ),
    graph(
        "Writes to the API server",
        "Per second; none while nothing changes.",
        "ops",
        (operator_rate(table.API_WRITES, "verb, kind"), "{{verb}} {{kind}}"),
    ),
    timeline(
        "Watches",
        "Of the API server, by resource and namespace; where one has ended, jobs there are not steered.",
        WATCHES,
        f"2 - min by (resource, namespace) ({table.WATCH_UP.series})",
        "{{resource}} {{namespace}}",
    ).height(5),
)
PROCESS = (
    graph(
        "CPU",
        "Cores that each replica uses.",
        "suffix: cores",
        (of_operators("rate(process_cpu_seconds_total[$__rate_interval])"), "{{instance}}"),
    ),
    graph(
        "Memory",
        "Resident; the chart's limit is 512 MiB.",
        "bytes",
        (of_operators("process_resident_memory_bytes"), "{{instance}}"),
        marks=((400 * 2**20, YELLOW), (512 * 2**20, RED)),
    ),
    graph(
        "Descriptors",
        "Open, of those that the process may have.",
        "percentunit",
        (of_operators("process_open_fds / process_max_fds"), "{{instance}}"),
        marks=((0.8, RED),),
    ).max(1),
)


def fill(dashboard: Dashboard) -> Dashboard:
    """The dashboard with its rows."""
    row(dashboard, "Operator", 4, OVERVIEW)
    row(dashboard, "Steering", (12, 12, 12, 12, 24), STEERING)
    row(dashboard, "Process", 8, PROCESS)
    return dashboard
