"""What the dashboard shows, row by row."""

from __future__ import annotations

from dashboard_panels import graph, stat, steps
from dashboard_queries import (
    MEMORY_SHARE,
    REPEATED,
    SELECTOR,
    THROUGHPUT,
    WAITING,
    by,
    growth,
    in_view,
    job,
    of_time,
    operator_rate,
    quantile,
    worker,
)
from grafana_foundation_sdk.builders.dashboard import Dashboard, Row
from grafana_foundation_sdk.models.common import BigValueTextMode, GraphDrawStyle

from heterotrain import worker_metrics as workers
from heterotrain_operator.metrics import table


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
        .with_panel(
            graph(
                "Cost",
                "What the pods of each group have cost, in the currency of their pricePerHour.",
                "short",
                (by("group", table.JOB_COST), "{{group}}"),
            )
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


ROWS = (overview, balance, training, resources, operator)
"""Each adds its row, in this order."""
