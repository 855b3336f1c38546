"""All that is remembered between two decisions; one small JSON value, so the operator may die at any time.

It is stored beside the plan under the same precondition. Workers are remembered by their rank in the plan
that `plan_version` names, not by name: names and UIDs are in the plan already, and would double the size.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import Any

from heterotrain.foreign import MAX_WHOLE, is_number, is_text, is_whole, parse_object, shown

SCHEMA = 1
"""Schema of the JSON value that this version writes. Of newer ones, which only add to it, what is known is read."""

MAX_BYTES = 2**23
"""The longest value that is read: far above what any job's workers take."""

LONGEST_TEXT = 4096
"""Characters of a text that is read; those that are written are far shorter."""

SIGNIFICANT_DIGITS = 8
"""Kept of every number of a worker: far below any measurement's noise, and 200 bytes hold a worker then."""

BASELINE_DIGITS = 11
"""Kept of the counters' baselines, since a window is a small difference of two large counters."""


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """What is remembered of one worker; zeros mean "nothing yet".

    The counters as they were when the last window ended (`counted_*`); the running estimate of its own time
    under the plan in force (`mean_seconds`, the variance of one step in s^2, the steps behind it); its speed
    and the sums of the least-squares fit of its shape (`batch_cost.py`); the learned bound (`throughput_cap.py`) and
    the safe one (`memory_limit.py`); its batch before the plan in force (`rollback.py`); its peak memory at the
    smallest and the greatest batch seen, and its limit (`memory_model.py`); whether its speed is what a new CPU limit
    lets expect, and not yet measured (`foretold`, 1 if so); the fewest samples that its model trains well with
    (`least_batch.py`); where it runs (`prior.py`); and small bookkeeping.
    """

    counted_steps: float = 0.0
    counted_seconds: float = 0.0
    counted_squares: float = 0.0
    mean_seconds: float = 0.0
    variance: float = 0.0
    estimate_steps: float = 0.0
    cpu_limit: float = 0.0
    speed: float = 0.0
    sum_w: float = 0.0
    sum_wb: float = 0.0
    sum_wbb: float = 0.0
    sum_wy: float = 0.0
    sum_wby: float = 0.0
    raised_from: int = 0
    raised_throughput: float = 0.0
    falls: int = 0
    learned_max: int = 0
    learned_max_intervals: int = 0
    reference_batch: int = 0
    silent_since: float = 0.0
    safe_max: int = 0
    replaced_batch: int = 0
    memory_limit_mib: int = 0
    memory_low_batch: int = 0
    memory_low_mib: int = 0
    memory_high_batch: int = 0
    memory_high_mib: int = 0
    failed_batch: int = 0
    foretold: int = 0
    least_batch: int = 0
    place: int = 0

    @property
    def learned_bounds(self) -> tuple[int, int]:
        """What failures have taught, and only another one would teach again."""
        return self.learned_max, self.safe_max

    def unmeasured(self) -> WorkerMemory:
        """The same worker at the start of another plan: counters and estimate begin anew, knowledge stays."""
        return replace(
            self,
            counted_steps=0.0,
            counted_seconds=0.0,
            counted_squares=0.0,
            mean_seconds=0.0,
            variance=0.0,
            estimate_steps=0.0,
            silent_since=0.0,
        )

    def rounded(self) -> WorkerMemory:
        """Numbers cut to the digits that are kept; so a memory read back equals the one written."""
        values: dict[str, Any] = {}
        for name in _WORKER_FLOATS:
            value = getattr(self, name)
            if value:
                digits = BASELINE_DIGITS if name.startswith("counted") or name == "silent_since" else SIGNIFICANT_DIGITS
                values[name] = _cut(value, digits)
        return replace(self, **values)


_EXACT = frozenset({"counted_seconds", "counted_squares", "silent_since"})
_WORKER_FIELDS = fields(WorkerMemory)
_WORKER_FLOATS = tuple(field.name for field in _WORKER_FIELDS if isinstance(field.default, float))


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered of one job. Moments are Unix seconds; None: has not happened.

    `workers` are the members of plan `plan_version`, by rank. `interruptions` are the restarts that did not count, one
    soon after the other, and `generation_at` is when the present workers got their first plan; `unexplained_at`: since
    then workers have ended who say that they were asked to stop, and nobody else does. `placements` are the tries to
    place all workers that were given up; since `half_placed_at` only some have places, at most `most_placed`.
    `draining`: all pods are being deleted, and none is created before `restart_at`. `outcome`, once set, is final;
    `reason` and `message` say why (or why it restarts). `script_error_step`: the script raised, and training had come
    so far by then (-1: it has not, or training has got past it since). `stepped`: this generation of workers has
    committed a step. `stage` counts the plans of the Profile policy, `adjustments` the plans that changed batches only.
    Training went on from an earlier job's checkpoint, of step `resumed_step` (-1: it did not), whose UID was
    `resumed_from`. What the plan in force promised, what the one before it took, and what one took that was taken back
    by half (own seconds of a step), and the `doubt` about such promises (a share of the step) after `missed_promises`
    of them are those of `rollback.py`.
    """

    plan_version: int = 0
    generation: int = 0
    created_at: float | None = None
    started_at: float | None = None
    starting_at: float | None = None
    pods_created_at: float | None = None
    published_at: float | None = None
    restarts: int = 0
    interruptions: int = 0
    unexplained_at: float | None = None
    generation_at: float | None = None
    placements: int = 0
    half_placed_at: float | None = None
    most_placed: int = 0
    draining: bool = False
    restart_at: float | None = None
    script_error_step: int = -1
    progress_step: int = -1
    progress_at: float | None = None
    advanced_at: float | None = None
    between_steps: bool = False
    stepped: bool = False
    slow_step_seconds: float = 0.0
    outcome: str = ""
    ended_at: float | None = None
    reason: str = ""
    message: str = ""
    stage: int = 0
    adjustments: int = 0
    resumed_step: int = -1
    resumed_from: str = ""
    promised_seconds: float = 0.0
    replaced_seconds: float = 0.0
    retreated_seconds: float = 0.0
    doubt: float = 0.0
    missed_promises: int = 0
    workers: tuple[WorkerMemory, ...] = ()

    @classmethod
    def initial(cls) -> Memory:
        """Of a job that nothing was decided about yet."""
        return cls()

    def moved(self, seconds: float) -> Memory:
        """With all moments so much later, as after the clock has leapt."""
        moments = {name: getattr(self, name) for name in _MOMENTS}
        return replace(
            self,
            workers=tuple(
                replace(worker, silent_since=worker.silent_since + seconds) if worker.silent_since > 0 else worker
                for worker in self.workers
            ),
            **{name: moment + seconds for name, moment in moments.items() if moment is not None},
        )

    def same_but_measurements(self, other: Memory) -> bool:
        """Whether losing the difference would cost only measurements, which can be taken again.

        Memory at another batch than the present one cannot: that batch may not come again.
        """
        if [worker.learned_bounds for worker in self.workers] != [worker.learned_bounds for worker in other.workers]:
            return False
        return self._batches_seen == other._batches_seen and all(
            getattr(self, field.name) == getattr(other, field.name)
            for field in _JOB_FIELDS
            if field.name not in _MEASURED
        )

    @property
    def _batches_seen(self) -> tuple[tuple[int, int, int], ...]:
        seen = tuple((w.memory_low_batch, w.memory_high_batch, w.failed_batch) for w in self.workers)
        return seen if any(map(any, seen)) else ()

    def rounded(self) -> Memory:
        """With every worker's numbers cut to the digits that are kept."""
        return replace(
            self,
            promised_seconds=_cut(self.promised_seconds, SIGNIFICANT_DIGITS),
            replaced_seconds=_cut(self.replaced_seconds, SIGNIFICANT_DIGITS),
            retreated_seconds=_cut(self.retreated_seconds, SIGNIFICANT_DIGITS),
            doubt=_cut(self.doubt, SIGNIFICANT_DIGITS),
            workers=tuple(worker.rounded() for worker in self.workers),
        )

    def to_json(self) -> str:
        """The value as it is stored; what equals its default is left out."""
        document: dict[str, Any] = {"schema": SCHEMA}
        for field in _JOB_FIELDS:
            value = getattr(self, field.name)
            if value != field.default:
                document[field.name] = value
        document["workers"] = [_row(worker) for worker in self.workers]
        return json.dumps(document, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Memory:
        """Read what `to_json` wrote.

        An operator one version older or newer may have written it: fields that are not known here are passed over, and
        a worker of whom something malformed is told is one of whom nothing is known. Raises ValueError, saying what is
        wrong, if anything else is malformed; a caller starts from `initial()` then.
        """
        try:
            document = parse_object(text, MAX_BYTES)
        except ValueError as error:
            raise ValueError(f"memory: {error}") from error
        schema = document.get("schema")
        if not is_whole(schema, low=1):
            raise ValueError(f"memory: schema {shown(schema)} is none")
        rows = document.get("workers", [])
        if not isinstance(rows, list):
            raise ValueError(f"memory.workers: expected a list, found {shown(rows)}")
        values = {
            field.name: _checked(document[field.name], field.default, f"memory.{field.name}")
            for field in _JOB_FIELDS
            if field.name in document
        }
        return cls(workers=tuple(map(_worker, rows)), **values)


_MEASURED = frozenset(
    {
        "progress_step",
        "progress_at",
        "advanced_at",
        "between_steps",
        "stepped",
        "slow_step_seconds",
        "half_placed_at",
        "most_placed",
        "promised_seconds",
        "replaced_seconds",
        "retreated_seconds",
        "doubt",
    }
)
_MOMENTS = tuple(field.name for field in fields(Memory) if field.name.endswith("_at"))
_JOB_FIELDS = tuple(field for field in fields(Memory) if field.name != "workers")


def _cut(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def _row(worker: WorkerMemory) -> list[float]:
    row = [getattr(worker, field.name) for field in _WORKER_FIELDS]
    while row and not row[-1]:
        row.pop()
    return [int(value) if isinstance(value, float) and value.is_integer() else value for value in row]


def _worker(row: Any) -> WorkerMemory:
    """What a row tells; a longer one is of a newer operator."""
    if not isinstance(row, list):
        return WorkerMemory()
    try:
        told = {
            field.name: _checked(value, field.default, field.name)
            for field, value in zip(_WORKER_FIELDS, row, strict=False)
        }
    except ValueError:
        return WorkerMemory()
    return WorkerMemory(**told)


def _checked(value: Any, default: Any, where: str) -> Any:
    """The value in the type of the field's default; None stands for a moment, a float that may be missing."""
    if default is None and value is None:
        return None
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ValueError(f"{where}: expected bool, found {shown(value)}")
        return value
    if isinstance(default, str):
        if not is_text(value, LONGEST_TEXT):
            raise ValueError(f"{where}: expected at most {LONGEST_TEXT} characters, found {shown(value)}")
        return value
    if isinstance(default, int):
        if not is_whole(value, low=-MAX_WHOLE):
            raise ValueError(f"{where}: expected a whole number of at most 2**53, found {shown(value)}")
        return value
    if not is_number(value):
        raise ValueError(f"{where}: expected a number, found {shown(value)}")
    return float(value)
