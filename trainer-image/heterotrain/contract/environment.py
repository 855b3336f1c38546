"""The environment of a worker: the variables by which the operator says who it is, and what it exits with."""

ENV_JOB = "HETEROTRAIN_JOB"
ENV_JOB_UID = "HETEROTRAIN_JOB_UID"  # distinguishes a job from an earlier one of its name; unset on one machine
ENV_WORKER = "HETEROTRAIN_WORKER"  # the pod's name
ENV_UID = "HETEROTRAIN_UID"  # the pod's UID; distinguishes a re-created pod from its predecessor
ENV_GROUP = "HETEROTRAIN_GROUP"
ENV_PLAN_DIR = "HETEROTRAIN_PLAN_DIR"  # the folder that holds PLAN_FILE
ENV_CONFIG = "HETEROTRAIN_CONFIG"  # TrainingConfig as JSON
ENV_GLOBAL_BATCH_SIZE = "HETEROTRAIN_GLOBAL_BATCH_SIZE"  # samples per step; unset if that may change
ENV_METRICS_PORT = "HETEROTRAIN_METRICS_PORT"
ENV_CPU_LIMIT = "HETEROTRAIN_CPU_LIMIT"  # cores, as the pod started
ENV_TERMINATION_LOG = "HETEROTRAIN_TERMINATION_LOG"
ENV_SECRET = "HETEROTRAIN_SECRET"  # by which a job's workers know one another; unset: every peer is believed
ENV_ELASTIC = "HETEROTRAIN_ELASTIC"  # 0: members stay, and all start again; unset or 1: they change in training
ENV_WARM_UP = "HETEROTRAIN_WARM_UP"  # 1: others train already, so it is to warm up before it says that it waits
ENV_SERIES = "HETEROTRAIN_SERIES"  # file for one JSON line per step; unset: none is written

SECRET_BYTES = 32
"""Random bytes in a job's secret, which is their hexadecimal digits."""

DEFAULT_METRICS_PORT = 9400
DEFAULT_TERMINATION_LOG = "/dev/termination-log"

EXIT_PREEMPTED = 143
"""Exit code of a worker that was asked to stop (SIGTERM) and left in order."""
