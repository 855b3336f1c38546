"""The table of workers' metrics, which is part of the contract between trainers and operator.

To add a metric, add its row here and its value to `heterotrain.reporting.metrics`. If decisions are to read it, the row
names its `field`, an attribute of `heterotrain_operator.core.model.WorkerMetrics`. `make manifests` documents it.
"""

from __future__ import annotations

from heterotrain.contract import PHASES
from heterotrain.metric import Kind, Table

COUNTER, GAUGE = Kind.COUNTER, Kind.GAUGE

JOB_LABEL = "training_job"  # not `job`, which Prometheus claims for itself
WORKER_LABEL = "worker"
GROUP_LABEL = "group"
VERSION_LABEL = "plan_version"

PHASE_LABEL = "phase"
METRIC_LABEL = "metric"
RESUMED_FROM_LABEL = "resumed_from"
BATCH_LABEL = "batch"
PEER_LABEL = "peer"
REASON_LABEL = "reason"

WORKERS = Table("heterotrain_worker_", (JOB_LABEL, WORKER_LABEL, GROUP_LABEL, VERSION_LABEL))

# Of the plan version that the worker follows.
OWN_SECONDS_EWMA = WORKERS.row(
    GAUGE,
    "own_seconds_ewma",
    "Moving average of own seconds per step.",
    unit="s",
    field="own_seconds_ewma",
    details="It begins again with each version. Own time does not include waiting for others.",
)
BATCH_SIZE = WORKERS.row(
    GAUGE, "batch_size", "Samples per step in the active plan.", unit="samples", field="batch_size"
)
PLAN_VERSION = WORKERS.row(GAUGE, "plan_version", "Version of the active plan.", field="plan_version")
GENERATION = WORKERS.row(
    GAUGE,
    "generation",
    "Generation of the active plan.",
    field="generation",
    details="It grows with every change of the members.",
)
RANK = WORKERS.row(
    GAUGE,
    "rank",
    "Rank in the active plan, from 0.",
    field="rank",
    details="It is absent before the first plan. A plan that is lost is restored in this order.",
)
MEMBERS = WORKERS.row(
    GAUGE,
    "members",
    "Workers with which it trains, itself among them.",
    unit="workers",
    field="members",
    details="They are fewer than the plan names while others go on without one that ended or is silent. It is absent "
    "before the first plan.",
)

# Of the worker.
STEP = WORKERS.row(
    GAUGE,
    "committed_step",
    "Committed steps.",
    unit="steps",
    field="step",
    details="They count since the job began.",
)
TOTAL_STEPS = WORKERS.row(
    GAUGE, "total_steps", "Steps of the whole job; 0 if not known yet.", unit="steps", field="total_steps"
)
LEAST_BATCH_SIZE = WORKERS.row(
    GAUGE,
    "least_batch_size",
    "Samples with fewer of which it trains badly.",
    unit="samples",
    field="least_batch_size",
    details="It is 8 with BatchNorm, else 1; the operator gives the worker that many per step where it can.",
)
PROTOCOL = WORKERS.row(
    GAUGE,
    "protocol",
    "Version of how workers meet that it speaks.",
    field="protocol",
    details="1: members stay the same until all of them start again; 3: some can join and leave while others train, "
    "and these go on without any that ends.",
)
EPOCH = WORKERS.row(GAUGE, "epoch", "Epoch, from 0.", field="epoch", details="An epoch is a pass over the data.")
IN_COLLECTIVE = WORKERS.row(GAUGE, "in_collective", "1 while only waiting for others.", field="in_collective")
LOSS = WORKERS.row(
    GAUGE, "loss", "Global training loss.", field="loss", details="It is that of the newest step for which it is known."
)
LEARNING_RATE_FACTOR = WORKERS.row(
    GAUGE,
    "learning_rate_factor",
    "By what learning rates are multiplied in the optimizer's step.",
    details="It follows the global batch of the active plan. It is absent without `training.learningRateScaling`.",
)
MEMORY_BYTES = WORKERS.row(GAUGE, "memory_bytes", "Resident memory.", unit="bytes", field="memory_bytes")
MEMORY_LIMIT_BYTES = WORKERS.row(
    GAUGE,
    "memory_limit_bytes",
    "Present memory limit.",
    unit="bytes",
    field="memory_limit_bytes",
    details="On a GPU it is the memory that this worker may use. It is absent if there is no limit.",
)
CPU_LIMIT = WORKERS.row(
    GAUGE,
    "cpu_limit_cores",
    "Present CPU limit, cores.",
    unit="cores",
    field="cpu_limit",
    details="It is absent if there is no limit.",
)

# Memory under the plan version that the worker follows.
MEMORY_PEAK_BYTES = WORKERS.row(
    GAUGE,
    "memory_peak_bytes",
    "Most memory in a measured step of the version.",
    unit="bytes",
    field="memory_peak_bytes",
    details="It includes what loader processes hold; on a GPU it is GPU memory.",
)
MEMORY_BATCH_SIZE = WORKERS.row(
    GAUGE,
    "memory_batch_size",
    "Samples at once in those steps.",
    unit="samples",
    field="memory_batch_size",
    details="The steps are those of `heterotrain_worker_memory_peak_bytes`; the samples are a batch, or a "
    "micro-batch of it.",
)

# Since the plan version began, of steps that are fit for measuring.
STEPS = WORKERS.row(
    COUNTER,
    "steps",
    "Measured steps of the version.",
    unit="steps",
    field="steps",
    details="It counts whole steps only: not the first after a change, and none with a checkpoint or a replay in it; "
    "but where more than ten steps in a row hold a checkpoint, an evaluation or a pause, these are what a step takes.",
)
SAMPLES = WORKERS.row(COUNTER, "samples", "Samples in measured steps.", unit="samples", field="samples")
OWN_SECONDS = WORKERS.row(
    COUNTER,
    "own_seconds",
    "Own seconds in measured steps.",
    unit="s",
    field="own_seconds",
    details="Own time does not include waiting for others.",
)
OWN_SECONDS_SQUARED = WORKERS.row(
    COUNTER,
    "own_seconds_squared",
    "Sum of squared own seconds of measured steps.",
    unit="s²",
    field="own_seconds_squared",
)
WAIT_SECONDS = WORKERS.row(
    COUNTER,
    "wait_seconds",
    "Seconds waited in measured steps.",
    unit="s",
    field="wait_seconds",
    details="The worker waits for the others.",
)

SMALLER_STEP_SECONDS = WORKERS.row(
    GAUGE,
    "smaller_step_seconds",
    "Own seconds per step in the version's smaller steps, by samples.",
    unit="s",
    further=(BATCH_LABEL,),
    field="smaller_steps",
    details="A smaller step is the last one of an epoch whose samples do not fill it. It is none of the measured "
    "steps, but shows what a smaller batch costs. The first of a size, and those that hold a pause, an evaluation or a "
    "checkpoint, do not count.",
)

# Since the plan version's first measured step, whatever the worker did: what it used of the CPU.
OBSERVED_SECONDS = WORKERS.row(
    COUNTER,
    "observed_seconds",
    "Seconds of the version in which CPU use was counted.",
    unit="s",
    field="observed_seconds",
    details="It is wall time since the first measured step, and includes waiting for others.",
)
CPU_SECONDS = WORKERS.row(
    COUNTER,
    "cpu_seconds",
    "CPU seconds used in the version.",
    unit="s",
    field="cpu_seconds",
    details="Processes that load data count.",
)
CPU_THROTTLED_OF_VERSION = WORKERS.row(
    COUNTER,
    "version_cpu_throttled_seconds",
    "Seconds held back by the CPU limit in the version.",
    unit="s",
    field="cpu_throttled_seconds",
    details="They are summed over CPUs.",
)
CPU_WAIT_SECONDS = WORKERS.row(
    COUNTER,
    "cpu_wait_seconds",
    "Seconds waited in the version for a CPU that others used.",
    unit="s",
    field="cpu_wait_seconds",
    details="It is the mean over threads by the CPU time that each used, without what the CPU limit held back.",
)
CPU_PRESSURE_SECONDS = WORKERS.row(
    COUNTER,
    "cpu_pressure_seconds",
    "Seconds in the version in which some task waited for a CPU.",
    unit="s",
    field="cpu_pressure_seconds",
    details="It is the kernel's pressure stall information, of the worker's container, or of the whole node where "
    "containers have none.",
)
COMPUTING_THREADS = WORKERS.row(
    GAUGE,
    "computing_threads",
    "Threads that compute side by side in the version.",
    unit="threads",
    field="computing_threads",
    details="As many would have used its CPU seconds if each had used as many as any other. Processes that load data "
    "count.",
)

# Since the worker began.
CPU_THROTTLED_SECONDS = WORKERS.row(
    COUNTER,
    "cpu_throttled_seconds",
    "Seconds held back by the CPU limit.",
    unit="s",
    details="They count since the container began, and are summed over CPUs.",
)
PLANS_REJECTED = WORKERS.row(COUNTER, "plans_rejected", "Plans that were refused.")
STEPS_REPLAYED = WORKERS.row(
    COUNTER,
    "steps_replayed",
    "Steps replayed after a failure.",
    unit="steps",
    details="The failure is that of a collective operation.",
)
STEPS_NONFINITE = WORKERS.row(COUNTER, "steps_nonfinite", "Steps with a loss that is no number.", unit="steps")
CHECKPOINT_STEP = WORKERS.row(
    GAUGE,
    "checkpoint_step",
    "Committed steps in the newest checkpoint.",
    unit="steps",
    details="Only the leader exports it, once a checkpoint that it wrote is on the disk.",
)
CHECKPOINT_SECONDS = WORKERS.row(
    GAUGE,
    "checkpoint_seconds",
    "Seconds that it took to write the newest checkpoint.",
    unit="s",
    details="Training goes on meanwhile where memory allows it; if it takes longer than the steps between two "
    "checkpoints, training waits. Only the leader exports it.",
)

# With labels of their own.
RESUMED_STEP = WORKERS.row(
    GAUGE,
    "resumed_step",
    "Step of an earlier job's checkpoint that training went on from.",
    unit="steps",
    further=(RESUMED_FROM_LABEL,),
    field="resumed_step",
    details="Only the leader exports it, and only if training went on from an earlier job's checkpoint. The label is "
    "that job's UID, empty if the checkpoint does not say.",
)
WARM_UP_SECONDS = WORKERS.row(
    GAUGE,
    "warm_up_seconds",
    "Own seconds per step in the warm-up, by batch size.",
    unit="s",
    further=(BATCH_LABEL,),
    field="warm_up",
    details="A worker that is created while others train runs its loop for a few batches before it joins them. The "
    "first step of each size does not count, and the optimizer's step is not in it. It is absent once the worker is a "
    "member.",
)
PHASE = WORKERS.row(
    GAUGE,
    "phase",
    "1 for the phase the worker is in.",
    further=(PHASE_LABEL,),
    field="phase",
    details=f"The phase is one of {', '.join(PHASES)}.",
)
EVALUATION = WORKERS.row(
    GAUGE,
    "evaluation",
    "What was evaluated last, by metric.",
    further=(METRIC_LABEL,),
    field="evaluated",
    details="`session.evaluate()` measures it, at most 16 metrics. Only the leader exports it.",
)
EVALUATION_STEP = WORKERS.row(
    GAUGE,
    "evaluation_step",
    "Committed steps of the model evaluated last.",
    unit="steps",
    details="Only the leader exports it.",
)

# Of the parameter server of an asynchronous job, by the worker that sends.
SERVER = Table("heterotrain_server_", (JOB_LABEL, WORKER_LABEL))

SERVER_UPDATES = SERVER.row(COUNTER, "updates", "Updates applied, by worker.", unit="updates", further=(PEER_LABEL,))
SERVER_STALENESS = SERVER.row(
    Kind.HISTOGRAM,
    "staleness",
    "Versions by which the model had changed since it was given out, by worker.",
    unit="versions",
    further=(PEER_LABEL,),
    details="It is that of each update that is applied.",
)
SERVER_DISCARDED = SERVER.row(
    COUNTER,
    "discarded",
    "Updates that were not applied, by worker and reason.",
    unit="updates",
    further=(PEER_LABEL, REASON_LABEL),
    details="The reason is `late` (`training.asynchronous.late: Discard`) or `nonfinite`. Their samples go out again.",
)
SERVER_WAITED_SECONDS = SERVER.row(
    COUNTER,
    "waited_seconds",
    "Seconds between a worker's update and its next parameters.",
    unit="s",
    further=(PEER_LABEL,),
    details="With a bound on staleness it is mostly waiting for slower workers.",
)
SERVER_REFUSED = SERVER.row(
    COUNTER,
    "refused",
    "Connections and messages that were refused, by reason.",
    further=(REASON_LABEL,),
    details="`unproven`: without the job's secret; `crowded`: more at a time than are let in; `malformed`: what no "
    "worker would send; `different`: another script; `lease`: for samples that the worker does not hold; `silent` and "
    "`unread`: nothing came from it, or it read nothing, for `heartbeatTimeoutSeconds`.",
)
