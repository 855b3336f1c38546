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
    graph,
    row,
    share,
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
from grafana_foundation_sdk.builders.dashboard import Dashboard

from heterotrain import worker_metrics as workers
from heterotrain_operator.metrics import table

UID = "heterotrain-batch-convergence"

UNBALANCED = ((1.1, YELLOW), (1.25, RED))
"""Own time of the slowest over the mean; the alert is at the second."""

WAITS = ((0.1, YELLOW), (0.25, RED))
"""Shares of the time of a step."""

NO_SERVER = "the job has no parameter server"
WORKER, PEER, GROUP = "{{worker}}", "{{peer}}", "{{group}}"

PHASE = numbered(table.JOB_PHASE, JOB_PHASE_COLOURS, MATCHERS, "training_job")

OVERVIEW = (
    stat("Phase", PHASE, names=JOB_PHASE_COLOURS),
    stat("Workers that train", job(table.JOB_WORKERS_READY)),
    stat("Workers wanted", job(table.JOB_WORKERS_WANTED)),
    stat("Step", job(table.JOB_STEP), unit="locale"),
    stat("Active plan", job(table.JOB_PLAN_VERSION)),
    stat("Imbalance", job(table.JOB_IMBALANCE_RATIO), unit="none", decimals=2, marks=UNBALANCED),
    stat("Adjustments in view", in_view(table.JOB_ADJUSTMENTS)),
    stat("Restarts in view", in_view(table.JOB_RESTARTS), marks=((1, YELLOW), (2, RED))),
)
BALANCE = (
    steps(
        "Batch size",
        "Samples per step that each worker has in the plan that it follows.",
        "suffix: samples",
        (worker(workers.BATCH_SIZE), WORKER),
    ),
    graph(
        "Own time per step",
        "Without waiting for others, as a moving average since the plan began. Equal is the aim.",
        "s",
        (worker(workers.OWN_SECONDS_EWMA), WORKER),
    ),
    graph(
        "Imbalance",
        "Own time of the slowest worker over the mean; 1 is balance.",
        "none",
        (job(table.JOB_IMBALANCE_RATIO), "slowest over mean"),
        marks=UNBALANCED,
    ).min(1),
    graph(
        "Share of waiting",
        "Of the time of measured steps, the part that a worker waits for the others.",
        "percentunit",
        (WAITING, WORKER),
        marks=WAITS,
    ).max(1),
)
TRAINING = (
    graph(
        "Throughput",
        "Samples per second in measured steps.",
        "suffix: samples/s",
        (THROUGHPUT, WORKER),
        (JOB_THROUGHPUT, "job"),
    ),
    graph("Loss", "Global training loss of the newest step known.", "short", (job(workers.LOSS), "loss")),
    graph(
        "Evaluation",
        "What the script evaluated last, by metric.",
        "short",
        (by("metric", table.JOB_EVALUATION), "{{metric}}"),
    ),
    steps(
        "Plan version",
        "The active version, and the one that each worker follows.",
        "short",
        (worker(workers.PLAN_VERSION), WORKER),
        (job(table.JOB_PLAN_VERSION), "active"),
    ),
    steps(
        "Adjustments and restarts",
        "Plans that changed a batch size, and restarts after a worker's own fault, since the job began.",
        "short",
        (job(table.JOB_ADJUSTMENTS), "adjustments"),
        (job(table.JOB_RESTARTS), "restarts"),
    ),
)
ASYNCHRONOUS = (
    graph(
        "Updates",
        "Those that the parameter server applied, by worker. Equal is the aim.",
        "suffix: updates/s",
        (UPDATES, PEER),
    ).no_value(NO_SERVER),
    graph(
        "Staleness",
        "By how many updates of others the model had changed since a worker took it, in the mean.",
        "suffix: versions",
        (STALENESS, PEER),
    ).no_value(NO_SERVER),
)
PHASES = (
    timeline("Phase of the job", "As in its status.", JOB_PHASE_COLOURS, PHASE, "{{training_job}}"),
    timeline(
        "Phases of the workers",
        "What each worker is doing; green trains.",
        WORKER_PHASE_COLOURS,
        numbered(workers.PHASE, WORKER_PHASE_COLOURS, MATCHERS, "worker"),
        WORKER,
    ),
)
SCALING_AND_COST = (
    steps(
        "Workers",
        "Those that the job asks for, which scaling changes, and those that train.",
        "short",
        (job(table.JOB_WORKERS_WANTED), "wanted"),
        (job(table.JOB_WORKERS_READY), "training"),
    ),
    bars(
        "Throughput by size",
        "Samples per second at each number of workers that scaling has measured.",
        "suffix: samples/s",
        by("size", table.JOB_SCALING_THROUGHPUT),
        "{{size}}",
    ).no_value("scaling has measured nothing"),
    steps(
        "Global batch",
        "Samples per step over all workers.",
        "suffix: samples",
        (job(table.JOB_GLOBAL_BATCH_SIZE), "samples"),
    ),
    graph(
        "Cost",
        "What the pods of each group have cost, in the currency of their pricePerHour.",
        "short",
        (by("group", table.JOB_COST), GROUP),
    ),
    graph(
        "Cost per hour",
        "Of the pods that are there now, by group.",
        "short",
        (f"3600 * {COST_PER_SECOND}", GROUP),
    ),
    graph(
        "Cost of a million samples",
        "At the present prices and throughput; scaling pays where it does not rise.",
        "short",
        (COST_OF_A_MILLION, "cost"),
    ),
)
RESOURCES = (
    share(
        "Held back by the CPU limit",
        "Seconds per second, of several threads more than one: a limit that is lower or binds more.",
        (of_time(workers.CPU_THROTTLED_OF_VERSION), WORKER),
    ),
    share(
        "Waiting for a CPU that others use",
        "Seconds per second, of several threads more than one: a neighbour.",
        (of_time(workers.CPU_WAIT_SECONDS), WORKER),
    ),
    graph(
        "CPU used",
        "Cores. Less of it in a slower worker that neither the limit nor others hold back: its script waits.",
        "suffix: cores",
        (of_time(workers.CPU_SECONDS), WORKER),
    ),
    graph(
        "Stragglers",
        "Own time over the expected one, of workers that are slow by fault; none is good.",
        "short",
        (by("worker", table.JOB_STRAGGLER_SLOWDOWN), WORKER),
    ).no_value("no worker is slow by fault"),
    graph(
        "Changes of the members",
        "Swaps, joins and leaves in the last five minutes, while the others train; and the seconds for which "
        "they stood still for that.",
        "short",
        (f"round(max by (kind) (increase({table.JOB_TRANSITIONS.series}{SELECTOR}[5m])))", "{{kind}}"),
        (growth(table.JOB_TRANSITION_SECONDS, "5m"), "seconds idle"),
    ),
    graph(
        "Samples repeated",
        "In the last five minutes: those of steps that a failure has broken, by the present global batch.",
        "short",
        (REPEATED, "samples"),
    ),
    steps(
        "CPU limit",
        "Cores, as they are now; a resize in place changes it.",
        "suffix: cores",
        (worker(workers.CPU_LIMIT), WORKER),
    ).no_value("no worker knows a CPU limit"),
    graph("Memory", "Resident memory of each worker.", "bytes", (worker(workers.MEMORY_BYTES), WORKER)),
    share(
        "Peak memory of the limit",
        "Of an ordinary step under the active plan; batches grow to 95 %.",
        (MEMORY_SHARE, WORKER),
        marks=((0.9, YELLOW), (0.95, RED)),
    ).no_value("no worker knows a memory limit"),
)


def fill(dashboard: Dashboard) -> Dashboard:
    """The dashboard with its rows, and with events marked in all graphs."""
    row(dashboard, "Job", 3, OVERVIEW)
    row(dashboard, "Balance", 12, BALANCE)
    row(dashboard, "Training", (12, 12, 8, 8, 8), TRAINING)
    row(dashboard, "Phases", (8, 16), PHASES)
    row(dashboard, "Scaling and cost", 8, SCALING_AND_COST)
    row(dashboard, "Resources", 8, RESOURCES)
    row(dashboard, "Asynchronous training", 12, ASYNCHRONOUS)
    return (
        dashboard.annotation(Events("Plan changes", PLAN_CHANGED, "new plan", BLUE))
        .annotation(Events("Changes of the members", MEMBERS_CHANGED, "{{kind}}", PURPLE))
        .annotation(Events("Restarts", RESTARTED, "restart of all workers", ORANGE))
    )
