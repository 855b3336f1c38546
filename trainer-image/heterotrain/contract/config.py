"""What a worker gets to know once, at its start: the part of the job's spec that concerns training."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields

from heterotrain.contract.names import ENV_CONFIG
from heterotrain.foreign import is_number, is_text, is_whole, parse_object, shown

_CHANGES_THE_MODEL = (
    "learning_rate_scaling",
    "learning_rate_own_batch",
    "mode",
    "max_staleness",
    "late",
    "push",
)
"""Fields that are essential, unless they have their defaults."""

_UNSAID = {"last_step", "backend", "endless", "heartbeat_timeout_seconds", *_CHANGES_THE_MODEL}
"""Fields of a `TrainingConfig` that trainers of older images do not know, and refuse."""

_ESSENTIAL = "essential"
"""Beside the fields of a `TrainingConfig`, the names of those that a trainer must not pass over: without them it would
train something else than what was asked for. Every image of this version knows all that this version may name.
"""

_MAX_CONFIG_BYTES = 2**17
"""The longest value of an environment variable on Linux."""

_LONGEST_PATH = 8192
_NAMED = 8

BSP, ASP = "BSP", "ASP"
"""Ways of training together: in steps that all take together, or each by itself, through a parameter server."""

PUSH_MODEL = "Model"
"""What workers of an asynchronous job send in place of gradients, if it says so."""

TRAINING_LOSS = "loss"
"""The metric that needs no evaluation: the mean global training loss of the last `target_every_steps` steps."""


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """The part of a job's spec that its trainers need; it never changes while the job runs.

    Exactly one of `epochs` and `steps` is set. The job ends once `target_metric`, taken every `target_every_steps`
    steps, is at least (`target_mode` Max) or at most (Min) `target_value`; None: no target. `last_step` says what
    becomes of an epoch's samples that do not fill a step; `backend`, with what gradients travel. The script of an
    `endless` job sees its end as ever, but the job goes on until it is stopped. Its learning rates are those for a
    global batch of `learning_rate_own_batch` samples, and follow another one as `learning_rate_scaling` says.

    With `mode` ASP a parameter server applies each worker's update by itself, at rates that follow that worker's batch
    in the same way. A worker that is more than `max_staleness` updates ahead of the slowest waits for it (None: nobody
    waits), or, with `late` Discard, goes on, and what the slowest one sends is not applied. Workers `push` gradients,
    or the model that they have trained, in place of the server's.
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
    heartbeat_timeout_seconds: float = 5.0
    last_step: str = "Partial"  # a smaller step; or Drop, or Carry: into the next epoch
    endless: bool = False
    backend: str = "auto"  # nccl where all workers have GPUs, else gloo; or gloo, whatever they have
    learning_rate_scaling: str = "None"  # they stay; Linear: in proportion; Sqrt: with its square root
    learning_rate_own_batch: int = 0
    mode: str = BSP
    max_staleness: int | None = None
    late: str = "Apply"  # or Discard
    push: str = "Gradients"  # or Model

    def reaches_target(self, value: float) -> bool:
        """Whether this value of the target's metric ends the job."""
        if self.target_value is None:
            return False
        return value >= self.target_value if self.target_mode == "Max" else value <= self.target_value

    def reaches_target_loss(self, loss: float) -> bool:
        """Whether the training loss ends the job."""
        return self.target_metric == TRAINING_LOSS and self.reaches_target(loss)

    def to_json(self) -> str:
        """The document for the environment; without the newest fields where they change nothing, since trainers of an
        older image refuse fields that they do not know.
        """
        values = [(field, getattr(self, field.name)) for field in fields(self)]
        said = {field.name: value for field, value in values if field.name not in _UNSAID or value != field.default}
        essential = [name for name in _CHANGES_THE_MODEL if name in said]
        return json.dumps({**said, **({_ESSENTIAL: essential} if essential else {})})

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
