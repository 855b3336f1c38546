"""The page of all jobs: one line for each, what needs attention, and the way to the page of each."""

from __future__ import annotations

import dashboard_job
from dashboard_panels import (
    GRID_COLUMNS,
    JOB_PHASE_COLOURS,
    RED,
    YELLOW,
    colours,
    graph,
    limits,
    lined,
    link,
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
from grafana_foundation_sdk.builders.dashboard import Dashboard, Row
from grafana_foundation_sdk.models.common import BigValueTextMode, TableColoredBackgroundCellOptions

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


def in_colours(limits_of_column: object) -> list[object]:
    """A column of a table whose values have the colours of thresholds."""
    return [
        setting("custom.cellOptions", TableColoredBackgroundCellOptions()),
        setting("thresholds", limits_of_column),
    ]


def overview(dashboard: Dashboard) -> Dashboard:
    """How many there are in each phase, and what needs attention."""
    by_phase = f"count by (phase) ({every_job(metrics.JOB_PHASE, 'phase')})"
    phases = stat("Jobs", "short", by_phase, "{{phase}}", mode=BigValueTextMode.VALUE_AND_NAME, columns=9)
    for phase, colour in JOB_PHASE_COLOURS.items():
        phases = phases.override_by_name(phase, [setting("color", {"mode": "fixed", "fixedColor": colour})])
    attention = limits((1, YELLOW))
    return (
        dashboard.with_row(Row("Now"))
        .with_panel(phases)
        .with_panel(stat("Workers that train", "short", or_none(f"sum({every_job(metrics.JOB_WORKERS_READY)})")))
        .with_panel(
            stat("Stragglers", "short", or_none(f"sum({every_job(metrics.JOB_STRAGGLERS)})"), thresholds=attention)
        )
        .with_panel(
            stat(
                "Workers not read",
                "short",
                or_none(f"sum({every_job(metrics.JOB_WORKERS_SILENT)})"),
                thresholds=attention,
            )
        )
        .with_panel(stat("Alerts that fire", "short", or_none(f"count({FIRING})"), thresholds=limits((1, RED))))
        .with_panel(stat("Cost per hour", "short", or_none(f"sum({COST_PER_HOUR_OF_EVERY_JOB})"), decimals=2))
    )


def jobs(dashboard: Dashboard) -> Dashboard:
    """A line for each."""
    listed = (
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
        .override_by_name(
            "phase",
            [
                setting("custom.cellOptions", TableColoredBackgroundCellOptions()),
                setting("mappings", colours(JOB_PHASE_COLOURS)),
            ],
        )
        .override_by_name("imbalance", [*in_colours(limits(*dashboard_job.UNBALANCED).build()), setting("decimals", 2)])
        .override_by_name("restarts in view", in_colours(limits((1, YELLOW), (2, RED)).build()))
        .override_by_name("cost", [setting("decimals", 2)])
    )
    return (
        dashboard.with_row(Row("Jobs"))
        .with_panel(listed)
        .with_panel(timeline("Phases", "Of each job.", JOB_PHASE_COLOURS, PHASE, NAME).data_links([TO_SERIES_JOB]))
        .with_panel(
            table(
                "Alerts that fire",
                "Each has a page in docs/runbooks that says what to do.",
                {"alerts": f"count by (alertname, severity, namespace, training_job) ({FIRING})"},
                hidden=("alerts", "Value"),
            ).override_by_name("training_job", [setting("links", [TO_ROWS_JOB.build()])])
        )
    )


def balance(dashboard: Dashboard) -> Dashboard:
    """How well they train, and what that costs."""
    half = GRID_COLUMNS // 2
    return (
        dashboard.with_row(Row("Balance and cost"))
        .with_panel(
            lined(
                graph(
                    "Imbalance",
                    "Own time of the slowest worker over the mean; 1 is balance.",
                    "none",
                    (every_job(metrics.JOB_IMBALANCE_RATIO), NAME),
                    columns=half,
                ),
                *dashboard_job.UNBALANCED,
            ).data_links([TO_SERIES_JOB])
        )
        .with_panel(
            lined(
                graph(
                    "Share of waiting",
                    "Of the time of measured steps, the part that a worker waits for the others, as a mean.",
                    "percentunit",
                    (WAITING_OF_EVERY_JOB, NAME),
                    columns=half,
                ).max(1),
                *dashboard_job.WAITS,
            ).data_links([TO_SERIES_JOB])
        )
        .with_panel(
            graph(
                "Throughput",
                "Samples per second in measured steps.",
                "suffix: samples/s",
                (THROUGHPUT_OF_EVERY_JOB, NAME),
                columns=half,
            ).data_links([TO_SERIES_JOB])
        )
        .with_panel(
            graph(
                "Cost per hour",
                "Of the pods that are there now, in the currency of their pricePerHour.",
                "short",
                (COST_PER_HOUR_OF_EVERY_JOB, NAME),
                columns=half,
            )
            .decimals(2)
            .data_links([TO_SERIES_JOB])
        )
    )


def fill(dashboard: Dashboard) -> Dashboard:
    """The dashboard with its rows."""
    for add in (overview, jobs, balance):
        dashboard = add(dashboard)
    return dashboard
