"""The trials of an experiment in the order in which they run, their workers, and what came of each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from heterotrain.contract import StepRecord
from heterotrain_operator.core.facts import bounds_of as group_bounds
from heterotrain_operator.core.facts import missing, survey, worker_name
from heterotrain_operator.core.model import Job, Seen
from heterotrain_operator.core.split.passes import in_passes
from heterotrain_operator.experiments.figures.history import TrialHistory
from heterotrain_operator.experiments.trials.observer import Entry
from heterotrain_operator.experiments.trials.stop import Interrupted


def worker_names(job: Job) -> tuple[str, ...]:
    """Names of the job's workers in the order of their ranks."""
    return tuple(key.name for key in missing(job, survey(job, Seen())))


def limits_of(job: Job) -> dict[str, float | None]:
    """CPU limit of every worker, in cores."""
    names = iter(worker_names(job))
    return {next(names): group.cpu_limit for group in job.groups for _ in range(group.replicas)}


def bounds_of(job: Job) -> dict[str, tuple[int, int]]:
    """Least and most samples per step of every worker."""
    groups = [group for group in job.groups for _ in range(group.replicas)]
    bounds = in_passes(job.global_batch, [group_bounds(job, group) for group in groups])
    return dict(zip(worker_names(job), bounds, strict=True))


PROFILE = "Profile"


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial to run; `round` counts from 1. The profile runs before (0) and after (1) all others, once for each
    `level` of CPU limits.
    """

    policy: str
    round: int
    level: int = 0

    @property
    def is_profile(self) -> bool:
        """True if it only measures the workers."""
        return self.policy == PROFILE

    @property
    def slug(self) -> str:
        """Its name in file names."""
        return f"{self.policy.lower()}-{self.round}" + (f"-limits-{self.level}" if self.level else "")


def server_name(job: Job) -> str:
    """The name of the job's parameter server; empty if it has none."""
    return "" if job.server is None else worker_name(job.name, job.server.name, 0)


def trials_of(policies: Sequence[str], rounds: int, profile: bool, levels: int = 1) -> tuple[Trial, ...]:
    """What to run, in order: all policies in each round, and profiles before and after under each of `levels` sets of
    CPU limits.

    The order is reversed so that a machine which becomes slower or faster meanwhile favours no policy.
    """
    trials = []
    for number in range(1, rounds + 1):
        order = policies if number % 2 else tuple(reversed(policies))
        trials += [Trial(policy, number) for policy in order]
    if not profile:
        return tuple(trials)
    before, after = (tuple(Trial(PROFILE, number, level) for level in range(levels)) for number in (0, 1))
    return (*before, *trials, *reversed(after))


@dataclass(frozen=True, slots=True)
class FailedWorker:
    """The worker for which a trial failed, and its log."""

    name: str
    log: Path


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What came of a trial: its history, the decisions taken, every worker's records, the signal that ended it, the
    fewest samples that workers reported to need, the worker for which it failed, and the reason of the last decision
    while it trained.
    """

    trial: Trial
    history: TrialHistory
    entries: tuple[Entry, ...]
    series: dict[str, tuple[StepRecord, ...]]
    stopped_by: Interrupted | None = None
    least_batches: Mapping[str, int] = field(default_factory=dict)
    failed: FailedWorker | None = None
    reason: str = ""

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
