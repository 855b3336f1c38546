"""What the operator and the trainers agree on; imports neither torch nor kopf, so both sides can share it.

The plan travels as one JSON document; metrics travel as Prometheus series, whose table is `heterotrain.worker_metrics`;
the end of a worker travels as its termination message. A change of any name here is a change of the protocol.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from heterotrain.evaluated import MAX_METRIC_NAME as MAX_METRIC_NAME  # noqa: PLC0414 - part of the contract
from heterotrain.evaluated import MAX_METRICS as MAX_METRICS  # noqa: PLC0414 - part of the contract
from heterotrain.evaluated import Evaluated as Evaluated  # noqa: PLC0414 - part of the contract
from heterotrain.foreign import MAX_WHOLE, as_text, is_number, is_text, is_whole, parse_object, shown
from heterotrain.records import EvaluationRecord as EvaluationRecord  # noqa: PLC0414 - part of the contract
from heterotrain.records import StepRecord as StepRecord  # noqa: PLC0414 - part of the contract

PLAN_SCHEMA = 1
"""Schema of the plan document that this version writes, and the newest that it reads."""

PLAN_FILE = "plan.json"
"""Key in the plan's ConfigMap, hence the file's name in its volume."""

# --- environment of a worker -----------------------------------------------------------------------------------

ENV_JOB = "HETEROTRAIN_JOB"
ENV_JOB_UID = "HETEROTRAIN_JOB_UID"  # tells a job from an earlier one of its name; not there on one machine
ENV_WORKER = "HETEROTRAIN_WORKER"  # the pod's name
ENV_UID = "HETEROTRAIN_UID"  # the pod's UID; tells a re-created pod from its predecessor
ENV_GROUP = "HETEROTRAIN_GROUP"
ENV_PLAN_DIR = "HETEROTRAIN_PLAN_DIR"  # the folder that holds PLAN_FILE
ENV_CONFIG = "HETEROTRAIN_CONFIG"  # TrainingConfig as JSON
ENV_GLOBAL_BATCH_SIZE = "HETEROTRAIN_GLOBAL_BATCH_SIZE"  # samples per step; not there if that may change
ENV_METRICS_PORT = "HETEROTRAIN_METRICS_PORT"
ENV_CPU_LIMIT = "HETEROTRAIN_CPU_LIMIT"  # cores, as the pod started
ENV_TERMINATION_LOG = "HETEROTRAIN_TERMINATION_LOG"
ENV_SECRET = "HETEROTRAIN_SECRET"  # by which a job's workers know one another; not there: whoever comes is believed
ENV_SERIES = "HETEROTRAIN_SERIES"  # file for one JSON line per step; unset: none is written

SECRET_BYTES = 32
"""Random bytes in a job's secret, which is their hexadecimal digits."""

DEFAULT_METRICS_PORT = 9400
DEFAULT_TERMINATION_LOG = "/dev/termination-log"

EXIT_PREEMPTED = 143
"""Exit code of a worker that was asked to stop (SIGTERM) and left in order."""

# --- phases of a worker's life; metrics are in `heterotrain.worker_metrics` ----------------------------------------

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


MAX_PLAN_BYTES = 2**20
"""What a ConfigMap may hold, and so the longest plan that is read."""

MAX_NAME_LENGTH = 253
"""Of the name of a Kubernetes object; UIDs, groups and addresses are shorter."""


def _whole(document: Mapping[str, Any], key: str, where: str = "") -> int:
    value = document.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise PlanError(f"{where}{key}: expected int, found {shown(value)}")
    if value < 0:
        raise PlanError(f"{where}{key}: {shown(value)} is negative")
    if value > MAX_WHOLE:
        raise PlanError(f"{where}{key}: {shown(value)} is above {MAX_WHOLE}")
    return value


def _text(document: Mapping[str, Any], key: str, where: str = "") -> str:
    value = document.get(key)
    if not isinstance(value, str):
        raise PlanError(f"{where}{key}: expected str, found {shown(value)}")
    if not is_text(value, MAX_NAME_LENGTH):
        raise PlanError(f"{where}{key}: expected at most {MAX_NAME_LENGTH} characters of text, found {shown(value)}")
    return value


def parse_plan(text: str | bytes) -> Plan:
    """Read a plan document; fields that are not known here are passed over.

    Raises PlanError if it is malformed, longer than `MAX_PLAN_BYTES`, of a newer schema, has a repeated or no member,
    a number above 2**53, or if its batches do not add up.
    """
    try:
        document = parse_object(text, MAX_PLAN_BYTES)
    except ValueError as error:
        raise PlanError(str(error)) from error
    schema = _whole(document, "schema")
    if schema > PLAN_SCHEMA:
        raise PlanError(f"schema: {schema} is newer than {PLAN_SCHEMA}, the newest that is understood here")
    apply_at = _text(document, "applyAt")
    if apply_at not in ("step", "epoch"):
        raise PlanError(f"applyAt: expected 'step' or 'epoch', found {shown(apply_at)}")
    entries = document.get("members")
    if not isinstance(entries, list):
        raise PlanError(f"members: expected list, found {shown(entries)}")
    if not entries:
        raise PlanError("members: a plan needs at least one member")
    members = []
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise PlanError(f"members[{index}]: expected an object, found {shown(entry)}")
        where = f"members[{index}]."
        members.append(
            Member(
                name=_text(entry, "name", where),
                uid=_text(entry, "uid", where),
                address=_text(entry, "address", where),
                group=_text(entry, "group", where),
                batch_size=_whole(entry, "batchSize", where),
                micro_batch_size=_whole(entry, "microBatchSize", where) if "microBatchSize" in entry else 0,
            )
        )
    plan = Plan(_whole(document, "version"), _whole(document, "generation"), apply_at, tuple(members))
    if len({member.name for member in members}) != len(members):
        raise PlanError("members: a name occurs twice")
    leader = _text(document, "leader")
    if leader != plan.leader:
        raise PlanError(f"leader: {shown(leader)} is not the first member, {shown(plan.leader)}")
    total = _whole(document, "globalBatchSize")
    if total != plan.global_batch_size:
        raise PlanError(f"globalBatchSize: {total}, but the members' batches add up to {plan.global_batch_size}")
    if total < 1:
        raise PlanError("globalBatchSize: must be at least 1")
    return plan


# --- what a worker is told once, at its start --------------------------------------------------------------------


_UNSAID = (("last_step", "Partial"), ("backend", "auto"), ("endless", False))
"""Fields of a `TrainingConfig`, with their defaults, that trainers of older images do not know, and refuse."""

_ESSENTIAL = "essential"
"""Beside the fields of a `TrainingConfig`, the names of those that a trainer must not pass over: without them it would
train something else than what was asked for. Each that this version knows of is known to all images of it.
"""

_MAX_CONFIG_BYTES = 2**17
"""What Linux lets one variable hold."""

_LONGEST_PATH = 8192
_NAMED = 8

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
        """Read what an operator wrote, which may be newer: fields that are not known here are passed over.

        Raises ValueError if the text is no such document, or if one of those is essential.
        """
        try:
            document = parse_object(text, _MAX_CONFIG_BYTES)
        except ValueError as error:
            raise ValueError(f"{ENV_CONFIG}: {error}") from error
        essential = document.get(_ESSENTIAL, [])
        if not isinstance(essential, list):
            raise ValueError(f"{ENV_CONFIG}: {_ESSENTIAL}: expected a list, found {shown(essential)}")
        known = {field.name: field for field in fields(cls)}
        missing = [shown(name) for name in essential if not isinstance(name, str) or name not in known]
        if missing:
            raise ValueError(
                f"{ENV_CONFIG}: the job asks for what this version of the library does not know: "
                f"{', '.join(missing[:_NAMED])}; use an image of the operator's version"
            )
        for name, field in known.items():
            if name in document and not _fits(document[name], field.type):
                raise ValueError(f"{ENV_CONFIG}: {name}: expected {field.type}, found {shown(document[name])}")
        return cls(**{name: value for name, value in document.items() if name in known})

    @staticmethod
    def unknown_in(text: str) -> tuple[str, ...]:
        """The fields of a document, one that `from_json` reads, that are passed over."""
        known = {_ESSENTIAL, *(field.name for field in fields(TrainingConfig))}
        return tuple(shown(name) for name in parse_object(text, _MAX_CONFIG_BYTES) if name not in known)


def _fits(value: object, kind: object) -> bool:
    """Whether a value is of the type that a field's annotation names, within bounds."""
    names = str(kind).split(" | ")
    if value is None:
        return "None" in names
    if "bool" in names:
        return isinstance(value, bool)
    if "str" in names:
        return is_text(value, _LONGEST_PATH)
    return is_whole(value) if "int" in names else is_number(value)


# --- how a worker says how it ended ------------------------------------------------------------------------------


_TERMINATION_BYTES = 4096

ERROR_MISSING_DEVICE = "MissingDeviceError"
ERRORS_THAT_PASS = frozenset({"MembershipError", "CollectiveError", "CheckpointError"})
"""Last words of a worker that an error ended begin with the name of its class, and a colon. The first of these stays as
long as the worker's place has no such device, the others speak of other workers, the network and storage.
"""


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
        """Read last words; text that is not ours (a crash before the library was imported) becomes the message, of
        which the end is kept. What is malformed in them counts as unsaid.
        """
        text = text.strip()
        try:
            document = parse_object(text, _TERMINATION_BYTES)
        except ValueError:
            return cls(finished=False, message=as_text(text[-_TERMINATION_BYTES:], _TERMINATION_BYTES))
        step, message = document.get("step"), document.get("message")
        return cls(
            finished=document.get("finished") is True,
            step=step if is_whole(step) else 0,
            message=as_text(message, _TERMINATION_BYTES) if isinstance(message, str) else "",
            asked_to_stop=document.get("askedToStop") is True,
            out_of_memory=document.get("outOfMemory") is True,
            script_error=document.get("scriptError") is True,
            fatal=document.get("fatal") is True,
            evaluated=Evaluated.from_document(document.get("evaluated")),
        )
