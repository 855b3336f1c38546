"""The page of one job, *batch convergence*: whether unequal workers take equal time, and what that costs."""

from __future__ import annotations

from dashboard_panels import (
    BLUE,
    JOB_PHASE_COLOURS,
    ORANGE,
    PURPLE,
    RED,
    WORKER_PHASE_COLOURS,
    YELLOW,
    Events,
    bars,
    colours,
    graph,
    limits,
    lined,
    stat,
    steps,
    timeline,
)
from dashboard_queries import (
    COST_OF_A_MILLION,
    COST_PER_SECOND,
    JOB_THROUGHPUT,
    MATCHERS,
    MEMBERS_CHANGED,
    MEMORY_SHARE,
    PLAN_CHANGED,
    REPEATED,
    RESTARTED,
    SELECTOR,
    STALENESS,
    THROUGHPUT,
    UPDATES,
    WAITING,
    by,
    growth,
    in_view,
    job,
    numbered,
    of_time,
    worker,
)
from grafana_foundation_sdk.builders.dashboard import Dashboard, Row
from grafana_foundation_sdk.models.common import BigValueColorMode, GraphDrawStyle

from heterotrain import worker_metrics as workers
from heterotrain_operator.metrics import table

UID = "heterotrain-batch-convergence"

UNBALANCED = ((1.1, YELLOW), (1.25, RED))
"""Own time of the slowest over the mean; the alert is at the second."""

WAITS = ((0.1, YELLOW), (0.25, RED))
"""Shares of the time of a step."""

NO_SERVER = "the job has no parameter server"

PHASE = numbered(table.JOB_PHASE, JOB_PHASE_COLOURS, MATCHERS, "training_job")


def overview(dashboard: Dashboard) -> Dashboard:
    """The state of the job."""
    return (
        dashboard.with_row(Row("Job"))
        .with_panel(
            stat("Phase", "short", PHASE, thresholds=limits())
            .mappings(colours(JOB_PHASE_COLOURS))
            .color_mode(BigValueColorMode.BACKGROUND)
        )
        .with_panel(stat("Workers that train", "short", job(table.JOB_WORKERS_READY)))
        .with_panel(stat("Workers wanted", "short", job(table.JOB_WORKERS_WANTED)))
        .with_panel(stat("Step", "short", job(table.JOB_STEP)))
        .with_panel(stat("Active plan", "short", job(table.JOB_PLAN_VERSION)))
        .with_panel(
            stat("Imbalance", "none", job(table.JOB_IMBALANCE_RATIO), decimals=2, thresholds=limits(*UNBALANCED))
        )
        .with_panel(stat("Adjustments in view", "short", in_view(table.JOB_ADJUSTMENTS)))
        .with_panel(
            stat("Restarts in view", "short", in_view(table.JOB_RESTARTS), thresholds=limits((1, YELLOW), (2, RED)))
        )
    )


def balance(dashboard: Dashboard) -> Dashboard:
    """Whether unequal workers take equal time."""
    return (
        dashboard.with_row(Row("Balance"))
        .with_panel(
            steps(
                "Batch size",
                "Samples per step that each worker has in the plan that it follows.",
                "suffix: samples",
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
            lined(
                graph(
                    "Imbalance",
                    "Own time of the slowest worker over the mean; 1 is balance.",
                    "none",
                    (job(table.JOB_IMBALANCE_RATIO), "slowest over mean"),
                ),
                *UNBALANCED,
            )
        )
        .with_panel(
            lined(
                graph(
                    "Share of waiting",
                    "Of the time of measured steps, the part that a worker waits for the others.",
                    "percentunit",
                    (WAITING, "{{worker}}"),
                ).max(1),
                *WAITS,
            )
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
                "suffix: samples/s",
                (JOB_THROUGHPUT, "job"),
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


def asynchronous(dashboard: Dashboard) -> Dashboard:
    """How evenly workers train through a parameter server."""
    return (
        dashboard.with_row(Row("Asynchronous training"))
        .with_panel(
            graph(
                "Updates",
                "Those that the parameter server applied, by worker. Equal is the aim.",
                "suffix: updates/s",
                (UPDATES, "{{peer}}"),
            ).no_value(NO_SERVER)
        )
        .with_panel(
            graph(
                "Staleness",
                "By how many updates of others the model had changed since a worker took it, in the mean.",
                "suffix: versions",
                (STALENESS, "{{peer}}"),
            ).no_value(NO_SERVER)
        )
    )


def scaling_and_cost(dashboard: Dashboard) -> Dashboard:
    """How many workers there are, whether more would pay, and what they cost."""
    return (
        dashboard.with_row(Row("Scaling and cost"))
        .with_panel(
            steps(
                "Workers",
                "Those that the job asks for, which scaling changes, and those that train.",
                "short",
                (job(table.JOB_WORKERS_WANTED), "wanted"),
                (job(table.JOB_WORKERS_READY), "training"),
                columns=8,
            )
        )
        .with_panel(
            bars(
                "Throughput by size",
                "Samples per second at each number of workers that scaling has measured.",
                "suffix: samples/s",
                by("size", table.JOB_SCALING_THROUGHPUT),
                "{{size}}",
                columns=8,
            ).no_value("scaling has measured nothing")
        )
        .with_panel(
            steps(
                "Global batch",
                "Samples per step over all workers.",
                "suffix: samples",
                (job(table.JOB_GLOBAL_BATCH_SIZE), "samples"),
                columns=8,
            )
        )
        .with_panel(
            graph(
                "Cost",
                "What the pods of each group have cost, in the currency of their pricePerHour.",
                "short",
                (by("group", table.JOB_COST), "{{group}}"),
                columns=8,
            ).decimals(2)
        )
        .with_panel(
            graph(
                "Cost per hour",
                "Of the pods that are there now, by group.",
                "short",
                (f"3600 * {COST_PER_SECOND}", "{{group}}"),
                columns=8,
            ).decimals(2)
        )
        .with_panel(
            graph(
                "Cost of a million samples",
                "At the present prices and throughput; scaling pays where it does not rise.",
                "short",
                (COST_OF_A_MILLION, "cost"),
                columns=8,
            ).decimals(2)
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
                "suffix: cores",
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
                "suffix: cores",
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
            lined(
                graph(
                    "Peak memory of the limit",
                    "Of an ordinary step under the active plan; batches grow to 95 %.",
                    "percentunit",
                    (MEMORY_SHARE, "{{worker}}"),
                    columns=8,
                ),
                (0.9, YELLOW),
                (0.95, RED),
            )
        )
    )


def phases(dashboard: Dashboard) -> Dashboard:
    """What the job and its workers were doing."""
    return (
        dashboard.with_row(Row("Phases"))
        .with_panel(
            timeline("Phase of the job", "As in its status.", JOB_PHASE_COLOURS, PHASE, "{{training_job}}", columns=12)
        )
        .with_panel(
            timeline(
                "Phases of the workers",
                "What each worker is doing; green trains.",
                WORKER_PHASE_COLOURS,
                numbered(workers.PHASE, WORKER_PHASE_COLOURS, MATCHERS, "worker"),
                "{{worker}}",
                columns=12,
            )
        )
    )


def fill(dashboard: Dashboard) -> Dashboard:
    """The dashboard with its rows, and with events marked in all graphs."""
    for add in (overview, balance, training, asynchronous, phases, scaling_and_cost, resources):
        dashboard = add(dashboard)
    return (
        dashboard.annotation(Events("Plan changes", PLAN_CHANGED, "new plan", BLUE))
        .annotation(Events("Changes of the members", MEMBERS_CHANGED, "{{kind}}", PURPLE))
        .annotation(Events("Restarts", RESTARTED, "restart of all workers", ORANGE))
    )
