"""What is remembered of one worker, composed of values that belong to the modules which declare them.

It is stored as a row of numbers, whose columns those values name beside their fields, under a digest of the worker's
UID.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

from heterotrain_operator.core.columns import BASELINE_DIGITS, Column, Columns, checked, columns_of, cut, decoded, maker
from heterotrain_operator.core.prediction.batch_cost import BatchCost
from heterotrain_operator.core.prediction.memory_model import MemoryUse
from heterotrain_operator.core.prediction.noise import Variation
from heterotrain_operator.core.prediction.relapses import Relapses
from heterotrain_operator.core.prediction.resource_use import ResourceUse
from heterotrain_operator.core.prediction.series import Series
from heterotrain_operator.core.prediction.step_time import EXPECTED, Estimate, StepTime, rounded_times
from heterotrain_operator.core.prediction.throughput_cap import ThroughputCap
from heterotrain_operator.core.stragglers.evidence import Evidence

KEY_LENGTH = 6
"""Characters of a worker's key: 36 bits, so that two of 1,000 workers are alike in one job of 100,000. The UIDs are in
the plan at their full length already; here they would add a quarter to the bytes of a worker.
"""

NO_KEY = "." * KEY_LENGTH
"""Stands where a worker's key is not known; no key has such characters."""


@lru_cache(maxsize=2**15)
def key_of(uid: str) -> str:
    """What a worker's memory is kept under: a digest of its UID."""
    digest = hashlib.blake2s(uid.encode(errors="replace"), digest_size=KEY_LENGTH).digest()
    return urlsafe_b64encode(digest).decode()[:KEY_LENGTH]


LEFT_OUT = UNUSABLE = 3
"""So many windows in a row without a usable own time leave a worker out of decisions: one or two may be faults of
reading, or counters that began again, and cost two control intervals at most.
"""

UNREADABLE = 4
"""A worker that is left out since its metrics cannot be read."""


class RememberedWorker(NamedTuple):
    """What is remembered of one worker; zeros mean "nothing yet".

    Its own time (`prediction/step_time.py`), how that depends on the batch (`batch_cost.py`), what its memory holds
    (`memory_model.py`), what it used of the CPU (`resource_use.py`), the batch at which its throughput fell
    (`throughput_cap.py`), by how much its steps vary (`noise.py`), how often it became slow again (`relapses.py`), its
    last windows one by one, if anybody reads them (`series.py`), whether it is slow by fault
    (`stragglers/evidence.py`) and the fewest samples that its model trains well with (`batching/bounds.py`). Of single
    numbers: its batch before the active plan (`batching/rollback.py`), what its policy noted
    (`batching/policies/static.py`, `papers.py`, `lbbsp.py`), since when its metrics cannot be read
    (`lifecycle/progress.py`), where it runs (`lifecycle/prior.py`), and whether decisions leave it out
    (`batching/quorum.py`): `UNUSABLE`, `UNREADABLE`, or below these how many windows in a row could not be used; for
    how many decisions it has had no samples, and how often it was tried again (`batching/retries.py`); and how many
    ends of workers that had its place counted (`lifecycle/refill.py`).

    `key` is `key_of` its UID; a version that did not know keys leaves it empty, and its rows are those of the plan's
    members by rank. All of this is a named tuple, for one is built for every worker at every decision, and a frozen
    dataclass takes three times as long.
    """

    step_time: StepTime = StepTime()
    batch_cost: BatchCost = BatchCost()
    memory_use: MemoryUse = MemoryUse()
    throughput_cap: ThroughputCap = ThroughputCap()
    resource_use: ResourceUse = ResourceUse()
    evidence: Evidence = Evidence()
    noted: Annotated[int, Column(18)] = 0
    silent_since: Annotated[float, Column(19)] = 0.0
    replaced_batch: Annotated[int, Column(21)] = 0
    least_batch: Annotated[int, Column(29)] = 0
    place: Annotated[int, Column(30)] = 0
    key: str = ""
    left_out: Annotated[int, Column(31)] = 0
    idle: Annotated[int, Column(32)] = 0
    retries: Annotated[int, Column(33)] = 0
    variation: Variation = Variation()
    failures: Annotated[int, Column(54)] = 0
    tries: Annotated[int, Column(63)] = 0
    steady_at: Annotated[int, Column(64)] = 0
    relapses: Relapses = Relapses()
    series: Series = Series()

    def unmeasured(self, expected: Estimate | None = None, basis: int = EXPECTED) -> RememberedWorker:
        """The same worker at the start of another plan: counters begin again, and the estimate with what is `expected`;
        knowledge stays.
        """
        return self._replace(
            step_time=self.step_time.unmeasured(expected, basis),
            resource_use=self.resource_use.unmeasured(),
            silent_since=0.0,
        )

    def moved(self, seconds: float) -> RememberedWorker:
        """With its moments so much later, as after the clock has leapt."""
        if not (self.silent_since or self.steady_at):
            return self
        silent = self.silent_since + seconds if self.silent_since > 0 else 0.0
        return self._replace(silent_since=silent, steady_at=max(self.steady_at + int(seconds), 1) if self.tries else 0)

    def rounded(self, before: RememberedWorker) -> RememberedWorker:
        """As `rounded_workers` does it, of one worker."""
        return rounded_workers((self,), (before,))[0]

    def measured(
        self,
        step_time: StepTime,
        batch_cost: BatchCost,
        memory_use: MemoryUse,
        throughput_cap: ThroughputCap,
        resource_use: ResourceUse,
    ) -> RememberedWorker:
        """The same worker after a window of steps."""
        return _worker((step_time, batch_cost, memory_use, throughput_cap, resource_use, *self[5:]))

    def with_evidence(self, evidence: Evidence) -> RememberedWorker:
        """The same worker after it was judged."""
        if evidence is self.evidence:
            return self
        return _worker((*self[:5], evidence, *self[6:]))

    def row(self) -> list[Any]:
        """Its columns, without the empty ones at the end; whole numbers are written as such."""
        row = _EMPTY_ROW.copy()
        for part, columns in _PARTS:
            owner = getattr(self, part) if part else self
            for number, name, _ in columns:
                row[number] = getattr(owner, name)
        while row and not row[-1]:
            row.pop()
        return [int(value) if type(value) is float and _is_short(value) else value for value in row]

    @classmethod
    def from_row(cls, row: Any, key: str = "") -> RememberedWorker:
        """What a row holds of the worker with this key; a longer one is of a newer operator.

        Nothing is known of a worker whose row is malformed, or holds what no measurement can have left.
        """
        if not isinstance(row, list):
            return cls(key=key)
        try:
            values: dict[str, Any] = {part: decoded(kind, columns, row) for part, (kind, columns) in _VALUES.items()}
            for number, name, default in _OWN_COLUMNS:
                if number < len(row):
                    values[name] = checked(row[number], default, name)
            return _plausible(cls(key=key, **values))
        except ValueError:
            return cls(key=key)


_worker = maker(RememberedWorker)


def rounded_workers(
    workers: Sequence[RememberedWorker], before: Sequence[RememberedWorker]
) -> tuple[RememberedWorker, ...]:
    """With their numbers cut to the digits that are kept; so a memory read back equals the one written. What is still
    the very value of the rounded memories `before` is left alone, for most of a worker's values seldom change.
    """
    pairs = list(zip(workers, before, strict=True))
    times = rounded_times([worker.step_time for worker, old in pairs if worker.step_time is not old.step_time])
    return tuple(
        [
            old
            if worker is old
            else _rounded(worker, old, old.step_time if worker.step_time is old.step_time else next(times))
            for worker, old in pairs
        ]
    )


def _rounded(worker: RememberedWorker, before: RememberedWorker, step_time: StepTime) -> RememberedWorker:
    """The same of one worker whose own time is rounded already."""
    cost, cap, evidence, silent = worker.batch_cost, worker.throughput_cap, worker.evidence, worker.silent_since
    relapses = worker.relapses
    return _worker(
        (
            step_time,
            cost if cost is before.batch_cost else cost.rounded(before.batch_cost),
            worker.memory_use,
            cap if cap is before.throughput_cap else cap.rounded(),
            worker.resource_use,
            evidence if evidence is before.evidence else evidence.rounded(before.evidence),
            worker.noted,
            cut(silent, BASELINE_DIGITS) if silent else silent,
            *worker[8:-2],
            relapses if relapses is before.relapses else relapses.rounded(),
            worker.series,
        )
    )


LEAST_NUMBER = 1e-15
"""Below what measurements leave of seconds and steps, if it is not 0."""

MOST_DIGITS = 1e15
"""Whole numbers below this are written without an exponent; greater ones would only take more bytes."""


def _is_short(value: float) -> bool:
    return -MOST_DIGITS < value < MOST_DIGITS and value.is_integer()


def _plausible(worker: RememberedWorker) -> RememberedWorker:
    """The memory as it was read. Raises ValueError if decisions could not do arithmetic with it.

    Counters and limits may be anything that a worker says of itself, for they are only compared with what it says next.
    """
    time, cost = worker.step_time, worker.batch_cost
    throughput = worker.throughput_cap.raised_throughput
    healthy = worker.evidence.healthy_seconds
    numbers = (time.mean_seconds, time.steps, throughput, healthy)
    if any(number and number < LEAST_NUMBER for number in numbers):
        raise ValueError("a number is negative or of no possible size")
    if not cost.is_possible:
        raise ValueError("the speed or a sum of the fit is negative or of no possible size")
    if time.variance < 0 or worker.silent_since < 0:
        raise ValueError("the variance or a moment is negative")
    if any(getattr(worker if part == "" else getattr(worker, part), name) < 0 for part, name in _WHOLE):
        raise ValueError("a whole number is negative")
    return worker


_VALUES: dict[str, tuple[type[Any], Columns]] = {
    part: (kind, columns_of(kind))
    for part, kind in (
        ("step_time", StepTime),
        ("batch_cost", BatchCost),
        ("memory_use", MemoryUse),
        ("throughput_cap", ThroughputCap),
        ("resource_use", ResourceUse),
        ("variation", Variation),
        ("relapses", Relapses),
        ("series", Series),
        ("evidence", Evidence),
    )
}
_OWN_COLUMNS = columns_of(RememberedWorker)
_PARTS = (("", _OWN_COLUMNS), *((part, columns) for part, (_, columns) in _VALUES.items()))
_EMPTY_ROW: list[Any] = [0] * (1 + max(number for _, columns in _PARTS for number, _, _ in columns))

NOBODY = RememberedWorker()
"""Of a worker of whom nothing is known."""
_WHOLE = tuple((part, name) for part, columns in _PARTS for _, name, default in columns if isinstance(default, int))
