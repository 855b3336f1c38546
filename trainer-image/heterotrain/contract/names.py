"""Names that operator and workers share: a worker's environment, exit code and phases, and how workers meet."""

# The variables by which the operator says who a worker is, and what the worker exits with.

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
ENV_ROLE = "HETEROTRAIN_ROLE"  # ROLE_SERVER; unset: a worker
ENV_WARM_UP = "HETEROTRAIN_WARM_UP"  # 1: others train already, so it is to warm up before it says that it waits
ENV_SERIES = "HETEROTRAIN_SERIES"  # file for one JSON line per step; unset: none is written
ENV_LOOK = "HETEROTRAIN_LOOK"  # outside a job: a file for what join() was given; the script ends once that is known

ROLE_SERVER = "server"
"""The role of an asynchronous job's parameter server, which runs the same script as the workers."""

SECRET_BYTES = 32
"""Random bytes in a job's secret, which is their hexadecimal digits."""

DEFAULT_METRICS_PORT = 9400
DEFAULT_TERMINATION_LOG = "/dev/termination-log"

EXIT_PREEMPTED = 143
"""Exit code of a worker that was asked to stop (SIGTERM) and left in order."""

# The phases of a worker's life, as its metrics show them.

PHASE_PREPARING = "preparing"  # joined, but its script is not at its loop yet
PHASE_WARMING = "warming"  # at its loop, which runs for a few batches alone, for nothing but to be fast afterwards
PHASE_WAITING = "waiting"  # at its loop, in no plan yet: ready to be a member
PHASE_STARTING = "starting"  # member; building groups, loading a checkpoint
PHASE_TRAINING = "training"
PHASE_CHECKPOINTING = "checkpointing"
PHASE_EVALUATING = "evaluating"
PHASE_PAUSED = "paused"  # the script does something long between steps, inside session.pause()
PHASE_HOLDING = "holding"  # the plan says that too few workers are there to train
PHASE_REFORMING = "reforming"  # a collective failed; making new groups
PHASE_FINISHED = "finished"
PHASES = (
    PHASE_PREPARING,
    PHASE_WARMING,
    PHASE_WAITING,
    PHASE_STARTING,
    PHASE_TRAINING,
    PHASE_CHECKPOINTING,
    PHASE_EVALUATING,
    PHASE_PAUSED,
    PHASE_HOLDING,
    PHASE_REFORMING,
    PHASE_FINISHED,
)

# Versions of how workers meet. Each has what those before it have; a worker exports its own.

MEMBERS_STAY = 1
"""Members stay the same until all of them start again."""

MEMBERS_MAY_END = 3
"""Members go on by themselves without any that ends, and a plan that continues their generation can let some of them go
and take in others. Workers of level 2 could only do the latter; no release speaks it, and it counts as the one below.
"""
