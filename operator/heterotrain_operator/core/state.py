"""All that is remembered between two decisions; one small JSON value, so the operator may die at any time.

It is stored beside the plan under the same precondition, and made of one row for each worker (`remembered_worker.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any

from heterotrain.contract import Plan
from heterotrain.foreign import MAX_WHOLE, is_text, is_whole, parse_object, shown
from heterotrain_operator.core import fields
from heterotrain_operator.core.fields import Kept
from heterotrain_operator.core.prediction.learned import LEARNED, Learned
from heterotrain_operator.core.prediction.roughness import Roughness
from heterotrain_operator.core.prediction.whole_steps import WholeSteps
from heterotrain_operator.core.remembered.batching import Batching, Promises
from heterotrain_operator.core.remembered.cost import Cost
from heterotrain_operator.core.remembered.growth import Grown
from heterotrain_operator.core.remembered.job import Finish, Outcome, Placing, Progress, RestartBudget, Resumed, Start
from heterotrain_operator.core.remembered.members import PENDING, Following, Passages, Slot, TransitionRecord
from heterotrain_operator.core.remembered.replacements import Remedies
from heterotrain_operator.core.remembered.serving import Serving
from heterotrain_operator.core.remembered.sizes import Sizes
from heterotrain_operator.core.remembered_worker import (
    KEY_LENGTH,
    NO_KEY,
    NOBODY,
    RememberedWorker,
    key_of,
    rounded_workers,
)

SCHEMA = 1
"""Schema of the JSON value that this version writes. Of newer ones, which only add to it, what is known is read."""

MAX_BYTES = 2**23
"""The longest value that is read: far above what any job's workers take."""

_KEYS = "worker_keys"


@dataclass(frozen=True, slots=True)
class Remembered:
    """What is remembered of one job. Moments are Unix seconds; None: has not happened.

    `workers` are the members of plan `plan_version`, by rank; each says whose memory it is. All members speak this
    `protocol`, by which they meet. `pending` are places whose workers are lacking (`lifecycle/refill.py`).
    `learned` is what a predictor that looks ahead knows of each group.
    """

    plan_version: Annotated[int, Kept(most=MAX_WHOLE)] = 0
    generation: Annotated[int, Kept(most=MAX_WHOLE)] = 0
    published_at: float | None = None
    protocol: int = 1
    budget: RestartBudget = field(default_factory=RestartBudget)
    outcome: Outcome = field(default_factory=Outcome)
    start: Start = field(default_factory=Start)
    placing: Placing = field(default_factory=Placing)
    resumed: Resumed = field(default_factory=Resumed)
    following: Following = field(default_factory=Following)
    transitions: TransitionRecord = field(default_factory=TransitionRecord)
    progress: Progress = field(default_factory=Progress)
    finish: Finish = field(default_factory=Finish)
    batching: Batching = field(default_factory=Batching)
    promises: Promises = field(default_factory=Promises)
    learned: Annotated[tuple[Learned, ...], LEARNED] = ()
    roughness: Roughness = field(default_factory=Roughness)
    whole_steps: WholeSteps = field(default_factory=WholeSteps)
    remedies: Remedies = field(default_factory=Remedies)
    sizes: Sizes = field(default_factory=Sizes)
    grown: Grown = field(default_factory=Grown)
    cost: Cost = field(default_factory=Cost)
    serving: Serving = field(default_factory=Serving)
    passages: Passages = field(default_factory=Passages)
    pending: Annotated[tuple[Slot, ...], PENDING] = ()
    workers: tuple[RememberedWorker, ...] = ()

    @classmethod
    def initial(cls) -> Remembered:
        """Of a job that nothing was decided about yet."""
        return cls()

    def moved(self, seconds: float) -> Remembered:
        """With all moments so much later, as after the clock has leapt."""
        workers = tuple(worker.moved(seconds) for worker in self.workers)
        return fields.moved(self, seconds, workers=workers)

    def same_but_measurements(self, other: Remembered) -> bool:
        """Whether losing the difference would cost only measurements, which can be taken again.

        Memory at another batch than the present one cannot: that batch may not come again.
        """
        return self._learned == other._learned and fields.same_but_measurements(self, other)

    @property
    def _learned(self) -> tuple[list[tuple[int, int]], list[tuple[int, int, int]], list[int], list[int]]:
        """What failures have taught, and only another one would teach again; at which batches memory was seen; and who
        is named a straggler, which is reported once; and how many workers a place has lost.
        """
        uses = [worker.memory_use for worker in self.workers]
        bounds = [
            (worker.throughput_cap.cap, use.guessed_batch) for worker, use in zip(self.workers, uses, strict=True)
        ]
        seen = [(use.low_batch, use.high_batch, use.failed_batch) for use in uses]
        named = [rank for rank, worker in enumerate(self.workers) if worker.evidence.named]
        failures = [worker.failures + worker.tries for worker in self.workers]
        return bounds, seen if any(map(any, seen)) else [], named, failures if any(failures) else []

    def rounded(self, before: Remembered | None = None) -> Remembered:
        """With every worker's numbers cut to the digits that are kept; `before` is the memory that this one follows."""
        known = before.workers if before is not None and len(before.workers) == len(self.workers) else ()
        workers = rounded_workers(self.workers, known or (NOBODY,) * len(self.workers))
        return fields.rounded(self, workers=workers)

    def to_json(self) -> str:
        """The value as it is stored; what equals its default is left out."""
        document: dict[str, Any] = {"schema": SCHEMA, **fields.stored(self)}
        if any(worker.key for worker in self.workers):
            document[_KEYS] = "".join(worker.key or NO_KEY for worker in self.workers)
        document["workers"] = [worker.row() for worker in self.workers]
        return json.dumps(document, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes, *, most_workers: int | None = None) -> Remembered:
        """Read what `to_json` wrote, of so many workers at most (None: of any number).

        An operator one version older or newer may have written it: fields that are not known here are passed over, and
        a worker with a malformed row is one of whom nothing is known. Raises ValueError, saying what is
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
        if most_workers is not None and len(rows) > most_workers:
            raise ValueError(f"memory.workers: has {len(rows)} entries, of which at most {most_workers} are read")
        workers = map(RememberedWorker.from_row, rows, _keys_in(document.get(_KEYS), len(rows)))
        return fields.read(cls, document, "memory", workers=tuple(workers))


def _keys_in(text: Any, workers: int) -> Iterable[str]:
    """The keys of so many workers; none in what is not that many keys, as an older or a damaged memory has it."""
    if not is_text(text, MAX_BYTES) or len(text) != KEY_LENGTH * workers:
        return [""] * workers
    keys = (text[start : start + KEY_LENGTH] for start in range(0, len(text), KEY_LENGTH))
    return ["" if key == NO_KEY else key for key in keys]


def members_memory(memory: Remembered, plan: Plan) -> tuple[RememberedWorker, ...]:
    """What is remembered of each member of a plan, by rank and with its key; nothing of a worker that is another one.

    A memory of a version that did not know keys is that of the members by rank, if it is of a plan of the same
    generation and as many members.
    """
    keys = [key_of(member.uid) for member in plan.members]
    known = {worker.key: worker for worker in memory.workers}
    by_rank = memory.generation == plan.generation and len(memory.workers) == len(keys)
    if by_rank and ("" in known or len(known) < len(keys)):
        return tuple(_keyed(worker, key) for worker, key in zip(memory.workers, keys, strict=True))
    return tuple(_keyed(known.get(key, NOBODY), key) for key in keys)


def is_of(memory: Remembered, plan: Plan) -> bool:
    """Whether the memory is that of exactly this plan's members, by rank."""
    return (
        memory.plan_version == plan.version
        and len(memory.workers) == len(plan.members)
        and all(
            worker.key in ("", key_of(member.uid)) for worker, member in zip(memory.workers, plan.members, strict=True)
        )
    )


def _keyed(worker: RememberedWorker, key: str) -> RememberedWorker:
    return worker if worker.key == key else worker._replace(key=key)
