"""The tables of what the operator exports: about every job, and about itself.

To add a metric, add its row here, and its value to `own.py`.
`make manifests` documents it.
"""

from __future__ import annotations

from heterotrain.metric import Kind, Table

COUNTER, GAUGE, HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

JOBS = Table("heterotrain_job_", ("namespace", "training_job"))
OPERATOR = Table("heterotrain_operator_")

JOB_INFO = JOBS.row(
    GAUGE, "info", "1; what the job asks for is in the labels.", further=("policy", "apply_at", "dry_run")
)
JOB_PHASE = JOBS.row(GAUGE, "phase", "1 for the phase the job is in.", further=("phase",))
JOB_CONDITION = JOBS.row(
    GAUGE,
    "condition",
    "1 if the condition holds, 0 if not.",
    further=("condition",),
    details="There is no series while that is not known.",
)
JOB_PLANNED_BATCH_SIZE = JOBS.row(
    GAUGE,
    "planned_batch_size",
    "Samples per step in the active plan.",
    unit="samples",
    further=("worker", "group"),
)
JOB_EVALUATION = JOBS.row(GAUGE, "evaluation", "What the script evaluated last, by metric.", further=("metric",))
JOB_WORKERS_WANTED = JOBS.row(GAUGE, "workers_wanted", "Workers that the job asks for.")
JOB_WORKERS_READY = JOBS.row(GAUGE, "workers_ready", "Workers that train.")
JOB_WORKERS_SILENT = JOBS.row(GAUGE, "workers_silent", "Running workers whose metrics could not be read.")
JOB_PLAN_VERSION = JOBS.row(GAUGE, "plan_version", "Version of the active plan.")
JOB_GLOBAL_BATCH_SIZE = JOBS.row(
    GAUGE, "global_batch_size", "Samples per step over all workers in the active plan.", unit="samples"
)
JOB_IMBALANCE_RATIO = JOBS.row(
    GAUGE,
    "imbalance_ratio",
    "Own time of the slowest worker over the mean; 1 is balance.",
    details="It is the figure of `status.imbalancePercent` and of the condition `Balanced`: times under the active "
    "plan, as the newest decision used them.",
)
JOB_STRAGGLERS = JOBS.row(GAUGE, "stragglers", "Workers that are slow by fault, by the verdicts that stand.")
JOB_STRAGGLER_SLOWDOWN = JOBS.row(
    GAUGE,
    "straggler_slowdown_ratio",
    "Own time of a straggler over the one expected of it.",
    further=("worker", "group"),
    details="There is a series for each verdict that stands, as in `status.workers[].straggler`.",
)
JOB_STEP = JOBS.row(GAUGE, "step", "Committed steps.", unit="steps")
JOB_ADJUSTMENTS = JOBS.row(COUNTER, "adjustments", "Plans that changed a batch size.")
JOB_RESTARTS = JOBS.row(COUNTER, "restarts", "Restarts of all workers after one's own fault.")
JOB_TRANSITIONS = JOBS.row(
    COUNTER,
    "transitions",
    "Changes of the members that were carried out while others trained: swap, join or leave.",
    further=("kind",),
)
JOB_TRANSITION_SECONDS = JOBS.row(
    COUNTER,
    "transition_idle_seconds",
    "Seconds for which workers stood still in these changes.",
    unit="s",
    details="An estimate, as coarse as a step and the looks are: the time until all members had gone over, without the "
    "steps that were committed meanwhile.",
)
JOB_SCALING_THROUGHPUT = JOBS.row(
    GAUGE,
    "scaling_throughput",
    "Samples per second that scaling has measured, by size.",
    further=("size",),
    details="A size is the workers by group, as `gpu 2, spot 4`. There are at most 32.",
)
JOB_COST = JOBS.row(
    COUNTER,
    "cost",
    "What the pods of a group have cost, at its pricePerHour.",
    further=("group",),
    details="It counts each pod from its creation to its end, in the currency of the prices. There is no series of a "
    "group without a price.",
)
JOB_METRICS_SOURCE_UP = JOBS.row(GAUGE, "metrics_source_up", "1 if the workers' metrics could be asked for, 0 if not.")

LEADER = OPERATOR.row(GAUGE, "leader", "1 if this replica holds the Lease.")
RECONCILE_SECONDS = OPERATOR.row(
    HISTOGRAM,
    "reconcile_duration_seconds",
    "Seconds of one look at a job: observing, deciding and acting.",
    unit="s",
)
PLAN_FOLLOW_SECONDS = OPERATOR.row(
    HISTOGRAM, "plan_follow_seconds", "Seconds from a plan's write to its following by all workers.", unit="s"
)

FAILURE_API_SERVER = "api_server"
FAILURE_UNEXPECTED = "unexpected"
FAILURES = (FAILURE_API_SERVER, FAILURE_UNEXPECTED)
"""Values of the label `kind` of `RECONCILE_ERRORS`."""

RECONCILE_ERRORS = OPERATOR.row(
    COUNTER,
    "reconcile_errors",
    "Looks that failed.",
    further=("kind",),
    details=f"The label is {' or '.join(f'`{kind}`' for kind in FAILURES)}.",
)
API_WRITES = OPERATOR.row(
    COUNTER,
    "api_writes",
    "Writes to the API server.",
    further=("verb", "kind"),
    details="For example, `verb` is `patch` and `kind` is `ConfigMap`.",
)
WATCH_UP = OPERATOR.row(
    GAUGE,
    "watch_up",
    "1 while a watch stands.",
    further=("resource", "namespace"),
    details="It is 0 once a watch of the API server has ended. `namespace` is empty for a watch of all namespaces.",
)
