"""Turn the workers' records of their steps into one history of the job; pure but for reading the files.

Each worker writes what it has committed. After a restart the steps since the last checkpoint are trained again, so a
history keeps the last record of every step, and nothing of what was voided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from heterotrain.contract import EvaluationRecord, StepRecord
from heterotrain_operator.experiments.figures.steps import Step

Record = TypeVar("Record")

REPLAY = "replay"
"""Mark of a step that failed before."""


def read_series(path: Path) -> tuple[StepRecord, ...]:
    """The records in a worker's file, in the order written; torn lines (a worker was killed) are passed
    over.
    """
    return _read(path, StepRecord.from_json)


def read_evaluations(path: Path) -> tuple[EvaluationRecord, ...]:
    """The evaluations in a worker's file; only the leader's file has any."""
    return _read(path, EvaluationRecord.from_json)


def _read(path: Path, parse: Callable[[str], Record]) -> tuple[Record, ...]:
    records = []
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                records.append(parse(line))
            except ValueError:
                continue
    return tuple(records)


def last_records(records: Iterable[StepRecord]) -> dict[int, StepRecord]:
    """Of every step the last record. Going back to a step voids it and all that came after it."""
    kept: dict[int, StepRecord] = {}
    newest = 0
    for record in records:
        if record.step <= newest:
            kept = {step: old for step, old in kept.items() if step < record.step}
        kept[record.step] = record
        newest = record.step
    return kept


def last_evaluations(records: Iterable[EvaluationRecord]) -> tuple[EvaluationRecord, ...]:
    """The evaluations in the order of steps, of every step the last. Going back to a step voids what came after it."""
    kept: dict[int, EvaluationRecord] = {}
    for record in sorted(records, key=lambda record: record.time):
        kept = {step: old for step, old in kept.items() if step < record.step}
        kept[record.step] = record
    return tuple(kept.values())


def align(series: Mapping[str, Sequence[StepRecord]], *, together: bool = True) -> tuple[Step, ...]:
    """The job's history in the order of steps, from every worker's records. Where workers do not take their steps
    `together`, each record is a step of its own: a worker that had to wait knows a later number than its update's.

    The first worker in `series` is the leader: a step is committed at the time it says (the latest that any
    worker says, where the leader's own record is missing). What a worker did that is not there any more is void where
    the others did it again.
    """
    accounts = {name: last_records(records) for name, records in series.items()}
    if not together:
        alone = sorted((r.step, r.time, name) for name, account in accounts.items() for r in account.values())
        begin = alone[0][0] if alone else 0
        return tuple(
            Step(number, time, {name: accounts[name][step]})
            for number, (step, time, name) in enumerate(alone, start=begin)
        )
    leader = next(iter(accounts), "")
    steps: list[Step] = []
    newest = 0
    for number in sorted(set().union(*accounts.values())):
        records = _valid({name: account[number] for name, account in accounts.items() if number in account})
        version = max(record.version for record in records.values())
        if version < newest:
            continue  # versions only grow, so all who did this step have ended, and nobody did it again
        newest = version
        seconds = records[leader].time if leader in records else max(record.time for record in records.values())
        steps.append(Step(number, seconds, records))
    return tuple(steps)


def _valid(records: Mapping[str, StepRecord]) -> dict[str, StepRecord]:
    """The records of one step by those who did it last: under the newest plan, and again if any of them did so."""
    newest = max(record.version for record in records.values())
    last = {name: record for name, record in records.items() if record.version == newest}
    again = {name: record for name, record in last.items() if record.mark == REPLAY}
    return again or last
