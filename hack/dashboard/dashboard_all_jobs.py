"""The page of all jobs: one line for each, what needs attention, and the way to the page of each."""

from __future__ import annotations

import dashboard_job
from dashboard_panels import (
    JOB_PHASE_COLOURS,
    RED,
    YELLOW,
    colours,
    graph,
    limits,
    link,
    row,
    setting,
    stat,
    table,
    timeline,
)
from dashboard_queries import (
    COST_PER_HOUR_OF_EVERY_JOB,
    FIRING,
    OF_ALL,
    THROUGHPUT_OF_EVERY_JOB,
    WAITING_OF_EVERY_JOB,
    every_job,
    growth_of_every_job,
    numbered,
    or_none,
)
from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.builders.stat import Panel as Stat
from grafana_foundation_sdk.models.common import BigValueColorMode, BigValueTextMode, TableColoredBackgroundCellOptions
from grafana_foundation_sdk.models.dashboard import DynamicConfigValue

from heterotrain_operator.metrics import table as metrics

UID = "heterotrain-all-jobs"

PHASE = numbered(metrics.JOB_PHASE, JOB_PHASE_COLOURS, OF_ALL, "namespace, training_job")
NAME = "{{namespace}}/{{training_job}}"

TO_SERIES_JOB = link(
    "Batch convergence of this job",
    dashboard_job.UID,
    namespace="${__field.labels.namespace}",
    job="${__field.labels.training_job}",
)
TO_ROWS_JOB = link(
    "Batch convergence of this job",
    dashboard_job.UID,
    namespace="${__data.fields.namespace}",
    job="${__data.fields.training_job}",
)


IN_COLOUR = setting("custom.cellOptions", TableColoredBackgroundCellOptions())


def in_colours(*marks: tuple[float, str]) -> list[DynamicConfigValue]:
    """A column of a table whose values have the colours of thresholds."""
    return [IN_COLOUR, setting("thresholds", limits(*marks).build())]


def phases() -> Stat:
    """How many jobs are in each phase."""
    by_phase = f"count by (phase) ({every_job(metrics.JOB_PHASE, 'phase')})"
    panel = stat("Jobs", by_phase, legend="{{phase}}")
    panel = panel.text_mode(BigValueTextMode.VALUE_AND_NAME).color_mode(BigValueColorMode.VALUE)
    for phase, colour in JOB_PHASE_COLOURS.items():
        panel = panel.override_by_name(phase, [setting("color", {"mode": "fixed", "fixedColor": colour})])
    return panel


ATTENTION = ((1, YELLOW),)
NOW = (
    phases(),
    stat("Workers that train", or_none(f"sum({every_job(metrics.JOB_WORKERS_READY)})")),
    stat("Stragglers", or_none(f"sum({every_job(metrics.JOB_STRAGGLERS)})"), marks=ATTENTION),
    stat("Workers not read", or_none(f"sum({every_job(metrics.JOB_WORKERS_SILENT)})"), marks=ATTENTION),
    stat("Alerts that fire", or_none(f"count({FIRING})"), marks=((1, RED),)),
    stat("Cost per hour", or_none(f"sum({COST_PER_HOUR_OF_EVERY_JOB})"), decimals=2),
)
JOBS = (
    table(
        "Jobs",
        "The name of a job leads to its page.",
        {
            "phase": PHASE,
            "training": every_job(metrics.JOB_WORKERS_READY),
            "wanted": every_job(metrics.JOB_WORKERS_WANTED),
            "step": every_job(metrics.JOB_STEP),
            "imbalance": every_job(metrics.JOB_IMBALANCE_RATIO),
            "restarts in view": f"round({growth_of_every_job(metrics.JOB_RESTARTS, '$__range')})",
            "cost": f"sum by (namespace, training_job) ({every_job(metrics.JOB_COST, 'group')})",
        },
    )
    .override_by_name("training_job", [setting("links", [TO_ROWS_JOB.build()])])
    .override_by_name("phase", [IN_COLOUR, setting("mappings", colours(JOB_PHASE_COLOURS))])
    .override_by_name("imbalance", [*in_colours(*dashboard_job.UNBALANCED), setting("decimals", 2)])
    .override_by_name("restarts in view", in_colours((1, YELLOW), (2, RED)))
    .override_by_name("cost", [setting("decimals", 2)]),
    timeline("Phases", "Of each job.", JOB_PHASE_COLOURS, PHASE, NAME).data_links([TO_SERIES_JOB]),
    table(
        "Alerts that fire",
        "Each has a page in docs/runbooks that says what to do.",
        {"alerts": f"count by (alertname, severity, namespace, training_job) ({FIRING})"},
        hidden=("alerts", "Value"),
    )
    .override_by_name("training_job", [setting("links", [TO_ROWS_JOB.build()])])
    .no_value("no alert fires"),
)
BALANCE_AND_COST = (
    graph(
        "Imbalance",
        "Own time of the slowest worker over the mean; 1 is balance.",
        "none",
        (every_job(metrics.JOB_IMBALANCE_RATIO), NAME),
        marks=dashboard_job.UNBALANCED,
    ).min(1),
    graph(
        "Share of waiting",
        "Of the time of measured steps, the part that a worker waits for the others, as a mean.",
        "percentunit",
        (WAITING_OF_EVERY_JOB, NAME),
        marks=dashboard_job.WAITS,
    ).max(1),
    graph("Throughput", "Samples per second in measured steps.", "suffix: samples/s", (THROUGHPUT_OF_EVERY_JOB, NAME)),
    graph(
        "Cost per hour",
        "Of the pods that are there now, in the currency of their pricePerHour.",
        "short",
        (COST_PER_HOUR_OF_EVERY_JOB, NAME),
    ),
)


def fill(dashboard: Dashboard) -> Dashboard:
    """The dashboard with its rows."""
    row(dashboard, "Now", (9, 3, 3, 3, 3, 3), NOW)
    row(dashboard, "Jobs", (24, 12, 12), JOBS)
    row(dashboard, "Balance and cost", 12, [panel.data_links([TO_SERIES_JOB]) for panel in BALANCE_AND_COST])
    return dashboard
