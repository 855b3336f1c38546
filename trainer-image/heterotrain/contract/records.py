"""The records that workers write of their steps and evaluations, one JSON line each.

Lines of both kinds share a file, so each kind refuses the other's.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from typing import Any, TypeGuard

from heterotrain.foreign import as_text, is_measurement, is_number, is_text, is_whole, parse_object

MAX_LINE = 2**16
"""Characters of a line that is read: far more than one is written with."""

_LONGEST_MARK = 253
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """The leader's account of one evaluation: `metrics` of the model after `step` committed steps, over the whole set.

    `time` is the moment at which it was known, Unix seconds.
    """

    time: float
    step: int
    metrics: dict[str, float]

    def to_json(self) -> str:
        """One line, without the newline."""
        return _line(self)

    @classmethod
    def from_json(cls, line: str) -> EvaluationRecord:
        """Fields that are not known here are passed over. Raises ValueError on a torn or foreign line."""
        document = parse_object(line, MAX_LINE)
        time, step, metrics = document.get("time"), document.get("step"), document.get("metrics")
        if not (is_number(time) and is_whole(step) and _are_metrics(metrics)):
            raise ValueError(f"not a record of an evaluation: {as_text(line, _SHOWN)}")
        return cls(time, step, metrics)


@dataclass(frozen=True, slots=True)
class UpdateRecord:
    """A parameter server's account of one update that it has applied, as the `step`th of the job.

    `worker` computed it in `seconds` of its own, on the parameters of `version`, by which time the model had changed
    `staleness` times since; on the samples from `start` to `stop` of the order of `epoch`. Learning rates were
    multiplied by `factor`. All updates in their order, with the first parameters, give the final ones.
    """

    time: float
    step: int
    worker: str
    version: int
    staleness: int
    epoch: int
    start: int
    stop: int
    factor: float
    seconds: float

    def to_json(self) -> str:
        """One line, without the newline."""
        return _line(self)

    @classmethod
    def from_json(cls, line: str) -> UpdateRecord:
        """Fields that are not known here are passed over. Raises ValueError on a torn or foreign line."""
        document = parse_object(line, MAX_LINE)
        values = [document.get(field.name) for field in fields(cls)]
        time, step, worker, *wholes, factor, seconds = values
        numbers = all(map(is_number, (time, factor, seconds)))
        if not (numbers and is_text(worker, _LONGEST_MARK) and all(map(is_whole, (step, *wholes)))):
            raise ValueError(f"not a record of an update: {as_text(line, _SHOWN)}")
        return cls(*values)  # type: ignore[arg-type]  # each was looked at


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One worker's account of one committed step.

    `time` is the moment of commitment, Unix seconds; `samples` is this worker's share of the step; `own` and `wait`
    are seconds; `loss` is this worker's share of the global loss (summed over the workers of a step it is the mean
    loss over the global batch), None if it had no samples; `mark` says why the step is unfit for measuring ("first",
    "partial", "checkpoint", "replay", "evaluation", "pause"), or is empty.
    """

    time: float
    step: int
    epoch: int
    version: int
    batch: int
    samples: int
    own: float
    wait: float
    loss: float | None
    mark: str

    def to_json(self) -> str:
        """One line, without the newline. It is written out, since json.dumps() would cost each step more."""
        loss = "null" if self.loss is None else _number(self.loss)
        return (
            f'{{"time": {self.time!r}, "step": {self.step}, "epoch": {self.epoch}, "version": {self.version}, '
            f'"batch": {self.batch}, "samples": {self.samples}, "own": {self.own!r}, "wait": {self.wait!r}, '
            f'"loss": {loss}, "mark": "{self.mark}"}}'
        )

    @classmethod
    def from_json(cls, line: str) -> StepRecord:
        """Fields that are not known here are passed over. Raises ValueError on a torn or foreign line."""
        document = parse_object(line, MAX_LINE)
        try:
            values = [document[name] for name in _STEP_FIELDS]
        except KeyError as error:
            raise ValueError(f"not a step record: {error} is missing") from error
        time, step, epoch, version, batch, samples, own, wait, loss, mark = values
        whole = all(map(is_whole, (step, epoch, version, batch, samples)))
        numbers = all(map(is_number, (time, own, wait))) and (loss is None or is_measurement(loss))
        if not (whole and numbers and is_text(mark, _LONGEST_MARK)):
            raise ValueError(f"not a step record: {as_text(line, _SHOWN)}")
        return cls(*values)


_STEP_FIELDS = tuple(field.name for field in fields(StepRecord))


def _are_metrics(value: object) -> TypeGuard[dict[str, float]]:
    return isinstance(value, dict) and all(
        is_text(name, _LONGEST_MARK) and is_measurement(figure) for name, figure in value.items()
    )


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else json.dumps(value)


def _line(record: Any) -> str:
    # asdict() would copy every value, which costs too much.
    return json.dumps({field.name: getattr(record, field.name) for field in fields(record)})
