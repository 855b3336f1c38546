"""The phases of a worker's life, as its metrics show them; the metrics are in `heterotrain.worker_metrics`."""

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
