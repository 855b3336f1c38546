"""What the operator and the trainers agree on; imports neither torch nor kopf, so both sides can share it.

The plan travels as one JSON document; metrics travel as Prometheus series; the end of a worker travels as its
termination message. A change of any name here is a change of the protocol.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from heterotrain.evaluated import MAX_METRIC_NAME as MAX_METRIC_NAME  # noqa: PLC0414 - part of the contract
from heterotrain.evaluated import MAX_METRICS as MAX_METRICS  # noqa: PLC0414 - part of the contract
from heterotrain.evaluated import Evaluated as Evaluated  # noqa: PLC0414 - part of the contract
from heterotrain.records import EvaluationRecord as EvaluationRecord  # noqa: PLC0414 - part of the contract
from heterotrain.records import StepRecord as StepRecord  # noqa: PLC0414 - part of the contract

PLAN_SCHEMA = 1
"""Schema of the plan document that this version writes, and the newest that it reads."""

PLAN_FILE = "plan.json"
"""Key in the plan's ConfigMap, hence the file's name in its volume."""

# --- environment of a worker -----------------------------------------------------------------------------------

ENV_JOB = "HETEROTRAIN_JOB"
ENV_WORKER = "HETEROTRAIN_WORKER"  # the pod's name
ENV_UID = "HETEROTRAIN_UID"  # the pod's UID; tells a re-created pod from its predecessor
ENV_GROUP = "HETEROTRAIN_GROUP"
ENV_PLAN_DIR = "HETEROTRAIN_PLAN_DIR"  # the folder that holds PLAN_FILE
ENV_CONFIG = "HETEROTRAIN_CONFIG"  # TrainingConfig as JSON
ENV_GLOBAL_BATCH_SIZE = "HETEROTRAIN_GLOBAL_BATCH_SIZE"  # samples per step; not there if that may change
ENV_METRICS_PORT = "HETEROTRAIN_METRICS_PORT"
ENV_CPU_LIMIT = "HETEROTRAIN_CPU_LIMIT"  # cores, as the pod started
ENV_TERMINATION_LOG = "HETEROTRAIN_TERMINATION_LOG"
ENV_SERIES = "HETEROTRAIN_SERIES"  # file for one JSON line per step; unset: none is written

DEFAULT_METRICS_PORT = 9400
DEFAULT_TERMINATION_LOG = "/dev/termination-log"

EXIT_PREEMPTED = 143
"""Exit code of a worker that was asked to stop (SIGTERM) and left in order."""

# --- metrics ---------------------------------------------------------------------------------------------------

METRIC_PREFIX = "heterotrain_worker_"
# Counters since the version in force began. Only steps that are fit for measuring count: no partial step, not the
# first after a change, none with a checkpoint or a replay in it.
METRIC_STEPS = "heterotrain_worker_steps"
METRIC_SAMPLES = "heterotrain_worker_samples"
METRIC_OWN_SECONDS = "heterotrain_worker_own_seconds"
METRIC_OWN_SECONDS_SQUARED = "heterotrain_worker_own_seconds_squared"
METRIC_WAIT_SECONDS = "heterotrain_worker_wait_seconds"
# Gauges of the version in force.
METRIC_OWN_SECONDS_EWMA = "heterotrain_worker_own_seconds_ewma"
METRIC_BATCH_SIZE = "heterotrain_worker_batch_size"
METRIC_PLAN_VERSION = "heterotrain_worker_plan_version"
METRIC_GENERATION = "heterotrain_worker_generation"
# Gauges of the worker.
METRIC_STEP = "heterotrain_worker_committed_step"
METRIC_TOTAL_STEPS = "heterotrain_worker_total_steps"
METRIC_EPOCH = "heterotrain_worker_epoch"
METRIC_PHASE = "heterotrain_worker_phase"  # 1 for the phase in the label `phase`
METRIC_IN_COLLECTIVE = "heterotrain_worker_in_collective"  # 1 while it only waits for the others
METRIC_EVALUATION = "heterotrain_worker_evaluation"  # of the leader: what was measured last, by the label `metric`
METRIC_EVALUATION_STEP = "heterotrain_worker_evaluation_step"  # committed steps of the model that was measured
METRIC_LOSS = "heterotrain_worker_loss"  # global training loss of the newest step known
METRIC_MEMORY_BYTES = "heterotrain_worker_memory_bytes"
METRIC_MEMORY_PEAK_BYTES = "heterotrain_worker_memory_peak_bytes"  # of measured steps since the version began
METRIC_MEMORY_BATCH_SIZE = "heterotrain_worker_memory_batch_size"  # samples at once at which that peak was reached
METRIC_LEAST_BATCH_SIZE = "heterotrain_worker_least_batch_size"  # with fewer samples the model trains badly
METRIC_MEMORY_LIMIT_BYTES = "heterotrain_worker_memory_limit_bytes"
METRIC_CPU_LIMIT = "heterotrain_worker_cpu_limit_cores"
# Counters of the worker.
METRIC_CPU_THROTTLED_SECONDS = "heterotrain_worker_cpu_throttled_seconds"
METRIC_PLANS_REJECTED = "heterotrain_worker_plans_rejected"
METRIC_STEPS_REPLAYED = "heterotrain_worker_steps_replayed"
METRIC_STEPS_NONFINITE = "heterotrain_worker_steps_nonfinite"

LABELS = ("training_job", "worker", "group", "plan_version")
"""Labels of every series. `training_job`, because Prometheus claims `job` for itself."""

PHASE_PREPARING = "preparing"  # joined, but its script is not at its loop yet
PHASE_WAITING = "waiting"  # at its loop, in no plan yet: ready to be a member
PHASE_STARTING = "starting"  # member; building groups, loading a checkpoint
PHASE_TRAINING = "training"
PHASE_CHECKPOINTING = "checkpointing"
PHASE_EVALUATING = "evaluating"
PHASE_PAUSED = "paused"  # the script does something long between steps, and has said so
PHASE_REFORMING = "reforming"  # a collective failed; making new groups
PHASE_FINISHED = "finished"
PHASES = (
    PHASE_PREPARING,
    PHASE_WAITING,
    PHASE_STARTING,
    PHASE_TRAINING,
    PHASE_CHECKPOINTING,
    PHASE_EVALUATING,
    PHASE_PAUSED,
    PHASE_REFORMING,
    PHASE_FINISHED,
)

# --- the plan --------------------------------------------------------------------------------------------------


class PlanError(ValueError):
    """A plan document that a worker must not follow; the text says why."""


@dataclass(frozen=True, slots=True)
class Member:
    """One worker in a plan.

    `batch_size` is in samples per step and may be 0; `address` is `host:port`. With a `micro_batch_size` the worker
    does its part of a step in micro-batches of at most so many samples, whose gradients it adds up; 0: all at once.
    """

    name: str
    uid: str
    address: str
    group: str
    batch_size: int
    micro_batch_size: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Who trains, and with how many samples each.

    `version` grows with every change, `generation` with every change of membership. Ranks are positions in
    `members`; the first member is the leader.
    """

    version: int
    generation: int
    apply_at: str  # "step" | "epoch"
    members: tuple[Member, ...]

    @property
    def leader(self) -> str:
        """Name of the member that serves the rendezvous and announces newer plans."""
        return self.members[0].name

    @property
    def global_batch_size(self) -> int:
        """Samples per full step: the sum of the members' batch sizes."""
        return sum(member.batch_size for member in self.members)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Samples per step, by rank."""
        return tuple(member.batch_size for member in self.members)

    def rank_of(self, name: str, uid: str) -> int | None:
        """The rank of a worker; None if the plan does not hold it under this very identity."""
        for rank, member in enumerate(self.members):
            if member.name == name and member.uid == uid:
                return rank
        return None

    def to_json(self) -> str:
        """The document as it is stored in the ConfigMap."""
        return json.dumps(
            {
                "schema": PLAN_SCHEMA,
                "version": self.version,
                "generation": self.generation,
                "applyAt": self.apply_at,
                "leader": self.leader,
                "globalBatchSize": self.global_batch_size,
                "members": [
                    {
                        "name": m.name,
                        "uid": m.uid,
                        "address": m.address,
                        "group": m.group,
                        "batchSize": m.batch_size,
                    }
                    | ({"microBatchSize": m.micro_batch_size} if m.micro_batch_size else {})
                    for m in self.members
                ],
            }
        )


def _typed(document: Mapping[str, Any], key: str, kind: type, where: str) -> Any:
    value = document.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise PlanError(f"{where}{key}: expected {kind.__name__}, found {value!r}")
    return value


def parse_plan(text: str | bytes) -> Plan:
    """Read a plan document.

    Raises PlanError if it is malformed, of a newer schema, has a repeated or no member, or if its batches do not add
    up.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise PlanError(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise PlanError(f"expected an object, found {type(document).__name__}")
    schema = _typed(document, "schema", int, "")
    if schema > PLAN_SCHEMA:
        raise PlanError(f"schema: {schema} is newer than {PLAN_SCHEMA}, the newest that is understood here")
    apply_at = _typed(document, "applyAt", str, "")
    if apply_at not in ("step", "epoch"):
        raise PlanError(f"applyAt: expected 'step' or 'epoch', found {apply_at!r}")
    entries = _typed(document, "members", list, "")
    if not entries:
        raise PlanError("members: a plan needs at least one member")
    members = []
    for index, entry in enumerate(entries):
        where = f"members[{index}]."
        if not isinstance(entry, dict):
            raise PlanError(f"members[{index}]: expected an object, found {entry!r}")
        batch_size = _typed(entry, "batchSize", int, where)
        if batch_size < 0:
            raise PlanError(f"{where}batchSize: {batch_size} is negative")
        micro_batch_size = _typed(entry, "microBatchSize", int, where) if "microBatchSize" in entry else 0
        if micro_batch_size < 0:
            raise PlanError(f"{where}microBatchSize: {micro_batch_size} is negative")
        members.append(
            Member(
                name=_typed(entry, "name", str, where),
                uid=_typed(entry, "uid", str, where),
                address=_typed(entry, "address", str, where),
                group=_typed(entry, "group", str, where),
                batch_size=batch_size,
                micro_batch_size=micro_batch_size,
            )
        )
    plan = Plan(
        version=_typed(document, "version", int, ""),
        generation=_typed(document, "generation", int, ""),
        apply_at=apply_at,
        members=tuple(members),
    )
    if len({member.name for member in members}) != len(members):
        raise PlanError("members: a name occurs twice")
    leader = _typed(document, "leader", str, "")
    if leader != plan.leader:
        raise PlanError(f"leader: {leader!r} is not the first member, {plan.leader!r}")
    total = _typed(document, "globalBatchSize", int, "")
    if total != plan.global_batch_size:
        raise PlanError(f"globalBatchSize: {total}, but the members' batches add up to {plan.global_batch_size}")
    if total < 1:
        raise PlanError("globalBatchSize: must be at least 1")
    return plan


# --- what a worker is told once, at its start --------------------------------------------------------------------


_UNSAID = (("last_step", "Partial"), ("backend", "auto"), ("endless", False))
"""Fields of a `TrainingConfig`, with their defaults, that trainers of older images do not know."""

TRAINING_LOSS = "loss"
"""The metric that needs no evaluation: the mean global training loss of the last `target_every_steps` steps."""


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """The part of a job's spec that its trainers need; it never changes while the job runs.

    Exactly one of `epochs` and `steps` is set. The job ends once `target_metric`, taken every `target_every_steps`
    steps, is at least (`target_mode` Max) or at most (Min) `target_value`; None: no target. `last_step` says what
    becomes of an epoch's samples that do not fill a step; `backend`, with what gradients travel. The script of an
    `endless` job sees its end as ever, but the job goes on until it is stopped.
    """

    epochs: int | None = None
    steps: int | None = None
    seed: int = 0
    smoothing: float = 0.2
    device: str = "cpu"
    on_missing_device: str = "Fail"
    precision: str = "float32"  # or bfloat16, by autocast
    checkpoint_path: str | None = None
    checkpoint_every_steps: int = 100
    checkpoint_keep: int = 3
    target_metric: str = TRAINING_LOSS
    target_value: float | None = None
    target_mode: str = "Min"
    target_every_steps: int = 50
    progress_timeout_seconds: float = 60.0
    startup_deadline_seconds: float = 600.0
    last_step: str = "Partial"  # a smaller step; or Drop, or Carry: into the next epoch
    endless: bool = False
    backend: str = "auto"  # nccl where all workers have GPUs, else gloo; or gloo, whatever they have

    def reaches_target(self, value: float) -> bool:
        """Whether this value of the target's metric ends the job."""
        if self.target_value is None:
            return False
        return value >= self.target_value if self.target_mode == "Max" else value <= self.target_value

    def reaches_target_loss(self, loss: float) -> bool:
        """Whether the training loss ends the job."""
        return self.target_metric == TRAINING_LOSS and self.reaches_target(loss)

    def to_json(self) -> str:
        """As it travels in the environment; without the newest fields where they change nothing, since trainers of an
        older image refuse what they do not know.
        """
        document = asdict(self)
        return json.dumps({name: value for name, value in document.items() if (name, value) not in _UNSAID})

    @classmethod
    def from_json(cls, text: str) -> TrainingConfig:
        """Raises ValueError if the text is no such document."""
        document = json.loads(text)
        if not isinstance(document, dict):
            raise ValueError(f"{ENV_CONFIG}: expected a JSON object, found {text!r}")
        try:
            return cls(**document)
        except TypeError as error:
            raise ValueError(f"{ENV_CONFIG}: {error}") from error


# --- how a worker says how it ended ------------------------------------------------------------------------------


_TERMINATION_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Termination:
    """A worker's last words; Kubernetes shows at most 4096 bytes of them in the pod's status.

    `finished` is true only if the job's last step was committed: exit code 0 alone says nothing. `asked_to_stop`: all
    workers left in order between two steps, because one of them, not necessarily this one, got SIGTERM.
    `out_of_memory`: an allocation failed, so the batch was too large; whom the kernel kills for that has no last words.
    `script_error`: the script itself raised, after `step` committed steps, which the same step will likely do again.
    `fatal`: whatever the reason, another try from the newest checkpoint would do harm or is sure to fail. `evaluated`:
    what was measured last, of the leader.
    """

    finished: bool
    step: int = 0
    message: str = ""
    asked_to_stop: bool = False
    out_of_memory: bool = False
    script_error: bool = False
    fatal: bool = False
    evaluated: Evaluated | None = None

    def to_json(self) -> str:
        """At most 4096 bytes; a long message is cut."""
        message = self.message
        while True:
            document = {"finished": self.finished, "step": self.step, "message": message}
            document |= {"askedToStop": True} if self.asked_to_stop else {}
            document |= {"outOfMemory": True} if self.out_of_memory else {}
            document |= {"scriptError": True} if self.script_error else {}
            document |= {"fatal": True} if self.fatal else {}
            document |= {"evaluated": self.evaluated.to_document()} if self.evaluated is not None else {}
            text = json.dumps(document)
            excess = len(text) - _TERMINATION_BYTES  # JSON is ASCII here, so characters are bytes
            if excess <= 0:
                return text
            message = message[: -max(1, excess // 6)]  # an escaped character takes six bytes

    @classmethod
    def from_text(cls, text: str) -> Termination:
        """Read last words; text that is not ours (a crash before the library was imported) becomes the message."""
        try:
            document = json.loads(text)
        except ValueError:
            return cls(finished=False, message=text.strip())
        if not isinstance(document, dict):
            return cls(finished=False, message=text.strip())
        step = document.get("step")
        return cls(
            finished=document.get("finished") is True,
            step=step if isinstance(step, int) else 0,
            message=str(document.get("message", "")),
            asked_to_stop=document.get("askedToStop") is True,
            out_of_memory=document.get("outOfMemory") is True,
            script_error=document.get("scriptError") is True,
            fatal=document.get("fatal") is True,
            evaluated=Evaluated.from_document(document.get("evaluated")),
        )
