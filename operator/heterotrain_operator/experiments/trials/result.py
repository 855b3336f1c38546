"""What came of a trial, and which worker it failed for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from heterotrain.contract import StepRecord
from heterotrain_operator.core.facts import bounds_of as group_bounds
from heterotrain_operator.core.model import Job
from heterotrain_operator.experiments.figures.history import TrialHistory
from heterotrain_operator.experiments.trials.journal import Entry
from heterotrain_operator.experiments.trials.stop import Interrupted
from heterotrain_operator.experiments.trials.trial import Trial
from heterotrain_operator.experiments.trials.workers import worker_names


@dataclass(frozen=True, slots=True)
class FailedWorker:
    """The worker for which a trial failed, and its log."""

    name: str
    log: Path


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What came of a trial: its history, the decisions taken, every worker's records, the signal that ended it, the
    fewest samples that workers reported to need, and the worker for which it failed.
    """

    trial: Trial
    history: TrialHistory
    entries: tuple[Entry, ...]
    series: dict[str, tuple[StepRecord, ...]]
    stopped_by: Interrupted | None = None
    least_batches: Mapping[str, int] = field(default_factory=dict)
    failed: FailedWorker | None = None

    @property
    def slug(self) -> str:
        """Its name in file names."""
        return self.trial.slug


def least_batches(job: Job, results: Iterable[TrialResult]) -> dict[str, int]:
    """The fewest samples that each worker reported to need in any trial, at most what its group may compute at once."""
    groups = [group for group in job.groups for _ in range(group.replicas)]
    reported = [result.least_batches for result in results]
    return {
        name: min(max((each.get(name, 0) for each in reported), default=0), group_bounds(job, group)[1])
        for name, group in zip(worker_names(job), groups, strict=True)
    }


def failing_worker(message: str, failures: Sequence[str]) -> str | None:
    """The worker for which a job failed: the one that the message names, else the one that failed first."""
    named = [name for name in failures if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", message)]
    return next(iter([*sorted(named, key=message.find), *failures]), None)
