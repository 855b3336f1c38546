"""Names of what the operator exports; here once, so that dashboard, alerts and docs can be checked against them.

Counters are named without the `_total` that their series end in.
"""

from __future__ import annotations

# Of every job, labelled by JOB_LABELS.
JOB_INFO = "heterotrain_job_info"
JOB_PHASE = "heterotrain_job_phase"  # 1 for the phase in the label `phase`
JOB_CONDITION = "heterotrain_job_condition"  # 1 or 0 for the condition in the label `condition`
JOB_WORKERS_WANTED = "heterotrain_job_workers_wanted"
JOB_WORKERS_READY = "heterotrain_job_workers_ready"
JOB_WORKERS_SILENT = "heterotrain_job_workers_silent"
JOB_GLOBAL_BATCH_SIZE = "heterotrain_job_global_batch_size"
JOB_PLAN_VERSION = "heterotrain_job_plan_version"
JOB_PLANNED_BATCH_SIZE = "heterotrain_job_planned_batch_size"
JOB_IMBALANCE_RATIO = "heterotrain_job_imbalance_ratio"
JOB_STEP = "heterotrain_job_step"
JOB_EVALUATION = "heterotrain_job_evaluation"  # the last one, by the label `metric`
JOB_ADJUSTMENTS = "heterotrain_job_adjustments"
JOB_RESTARTS = "heterotrain_job_restarts"
JOB_METRICS_SOURCE_UP = "heterotrain_job_metrics_source_up"

JOB_LABELS = ("namespace", "training_job")

# Of the operator itself.
LEADER = "heterotrain_operator_leader"
RECONCILE_SECONDS = "heterotrain_operator_reconcile_duration_seconds"
RECONCILE_ERRORS = "heterotrain_operator_reconcile_errors"
WATCH_UP = "heterotrain_operator_watch_up"  # of what `resource` and `namespace` (empty: all) say
API_WRITES = "heterotrain_operator_api_writes"
PLAN_FOLLOW_SECONDS = "heterotrain_operator_plan_follow_seconds"

FAILURE_API_SERVER = "api_server"
FAILURE_UNEXPECTED = "unexpected"
FAILURES = (FAILURE_API_SERVER, FAILURE_UNEXPECTED)
"""Values of the label `kind` of errors."""
