"""Run a job on this machine under one policy after the other, each trial in a cluster of its own."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from heterotrain.contract import StepRecord
from heterotrain_operator.api import HeteroTrainingJob, to_core
from heterotrain_operator.api.base import MAX_STEPS
from heterotrain_operator.clusters.local.cluster import LocalCluster
from heterotrain_operator.clusters.local.limits import LimitError, Mechanism
from heterotrain_operator.core.facts import bounds_of as group_bounds
from heterotrain_operator.core.facts import missing, survey
from heterotrain_operator.core.lifecycle.publishing import known_workers
from heterotrain_operator.core.model import Decision, Job, Seen
from heterotrain_operator.core.split.passes import in_passes
from heterotrain_operator.experiments import wording
from heterotrain_operator.experiments.checkpoints import newest_step
from heterotrain_operator.experiments.journal import Entry, committed_steps, entry_of, reached_steps
from heterotrain_operator.experiments.observer import Observer
from heterotrain_operator.experiments.schedule import Schedule
from heterotrain_operator.experiments.scheduled import ScheduledLimits
from heterotrain_operator.experiments.series import align, read_evaluations, read_series
from heterotrain_operator.experiments.stop import Insisted, Interrupted, StopSignals
from heterotrain_operator.experiments.summary import TrialHistory
from heterotrain_operator.loop import run_job

logger = logging.getLogger(__name__)

PROFILE = "Profile"

PROFILE_STEPS = 20
"""Measured steps, at least, of each plan of the profile: what all trials are held against must be steadier than
they."""

UNMEASURED_INTERVALS = 5
"""Control intervals in which no step was measured after which the profile expects none any more."""

INTERRUPTED = "Interrupted"


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


def trials_of(policies: Sequence[str], rounds: int, profile: bool, levels: int = 1) -> tuple[Trial, ...]:
    """What to run, in order: the policies in each round, reversed from one to the next; `levels` of CPU limits.

    A machine that warms up or slows down meanwhile then favours none (mechanisms, section 4).
    """
    trials = []
    for number in range(1, rounds + 1):
        order = policies if number % 2 else tuple(reversed(policies))
        trials += [Trial(policy, number) for policy in order]
    if not profile:
        return tuple(trials)
    before, after = (tuple(Trial(PROFILE, number, level) for level in range(levels)) for number in (0, 1))
    return (*before, *trials, *reversed(after))


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


def least_batches(job: Job, results: Iterable[TrialResult]) -> dict[str, int]:
    """The fewest samples that each worker reported to need in any trial, at most what its group may compute at once."""
    groups = [group for group in job.groups for _ in range(group.replicas)]
    reported = [result.least_batches for result in results]
    return {
        name: min(max((each.get(name, 0) for each in reported), default=0), group_bounds(job, group)[1])
        for name, group in zip(worker_names(job), groups, strict=True)
    }


def endless(job: HeteroTrainingJob) -> HeteroTrainingJob:
    """The same job without a target and without checkpoints; its workers are told that it does not end either, and it
    is stopped once it has been measured. Scripts see as many steps as ever."""
    training = job.spec.training.model_copy(update={"target": None})
    checkpoint = job.spec.checkpoint.model_copy(update={"every_steps": MAX_STEPS})
    spec = job.spec.model_copy(update={"training": training, "checkpoint": checkpoint})
    return job.model_copy(update={"spec": spec})


def measured(job: Job) -> Callable[[Seen, Decision], bool]:
    """Whether the policy has nothing more to try: everybody is measured under the plan in force, and it
    stays. Or nothing can be measured under it, as if its steps took more samples than the data has.
    """
    began: dict[int, int] = {}  # by version, at how many committed steps it was first followed by all

    def done(seen: Seen, decision: Decision) -> bool:
        if seen.plan is None or decision.plan is not None or decision.phase != "Running":
            return False
        metrics = {worker.name: worker.metrics for worker in seen.workers}
        version = seen.plan.version
        if all(known is not None and known.plan_version == version for known in metrics.values()):
            step = committed_steps(seen)
            unmeasured = step - began.setdefault(version, step) >= UNMEASURED_INTERVALS * job.interval
            if unmeasured and not any(known is not None and known.steps for known in metrics.values()):
                logger.warning(
                    "the profile ends early: of %d steps with batches %s none was fit for measuring",
                    step - began[version],
                    wording.batches(seen.plan.batch_sizes),
                )
                return True
        return all(
            (known := metrics.get(member.name)) is not None
            and known.plan_version == seen.plan.version
            and (known.steps >= job.interval or member.batch_size == 0)
            for member in seen.plan.members
        )

    return done


class Runner:
    """Runs trials of one job, showing each to the user."""

    def __init__(
        self,
        job: HeteroTrainingJob,
        *,
        mechanism: Mechanism,
        observer: Observer,
        stop: StopSignals,
        grace_seconds: float,
        schedule: Schedule,
        placements: Sequence[Mapping[str, int]],
        keeps_checkpoints: bool = True,
    ) -> None:
        """`placements` has for each level of the schedule a CPU for each worker, or none. Without `keeps_checkpoints`
        they are gone with the run, and none is promised.
        """
        self._keeps_checkpoints = keeps_checkpoints
        self._job = job
        self._schedule = schedule
        self._placements = placements
        self._mechanism = mechanism
        self._observer = observer
        self._stop = stop
        self._grace_seconds = grace_seconds

    def run(
        self, trial: Trial, title: str, folder: Path, checkpoints: Path, *, logs: Path | None = None, position: str = ""
    ) -> TrialResult:
        """Run one trial in `folder` to its end, its failure, or a signal; nothing of it is left running. `logs` is
        where the workers' logs lie (None: in `folder`).

        Raises ManifestError if the job cannot run here.
        """
        job = endless(self._job) if trial.is_profile else self._job
        core = replace(to_core(job), policy=trial.policy, resumable=True)  # in the run's folder if nowhere else
        if trial.is_profile:
            core = replace(core, dry_run=False, interval=max(core.interval, PROFILE_STEPS))
        names = worker_names(core)
        schedule, placements = self._schedule_of(trial)
        with LocalCluster(
            job,
            folder,
            str(checkpoints),
            mechanism=self._mechanism,
            cpus=placements[0],
            endless=trial.is_profile,
            logs=logs,
        ) as cluster:
            self._observer.begin(title, core, cluster.log_file, position=position, endless=trial.is_profile)
            limits = ScheduledLimits(schedule, cluster, placements, time.time, limits_of(core))
            round_of = _Rounds(self._observer, limits)
            stopped_by: Interrupted | None = None
            phase: str
            try:
                decision = run_job(
                    core,
                    cluster,
                    now=time.time,
                    pause=self._pause_in(cluster, limits),
                    on_round=round_of.note,
                    until=measured(core) if trial.is_profile else None,
                )
                phase, message = decision.phase, decision.reason
            except Interrupted as interrupted:
                stopped_by = interrupted
                phase, message = INTERRUPTED, str(interrupted)
                if not trial.is_profile:
                    self._leave(cluster)
            except (LimitError, OSError) as error:
                phase, message = "Failed", str(error)
            self._observer.end()
            adjustments, restarts, least_batches = _remembered(cluster)
            files = cluster.series_files()
        series = {name: tuple(chain.from_iterable(map(read_series, files.get(name, ())))) for name in names}
        history = TrialHistory(
            trial.policy,
            trial.round,
            align(series),
            adjustments,
            phase,
            message,
            restarts,
            trial.level,
            tuple(limits.changes),
            tuple(chain.from_iterable(map(read_evaluations, chain.from_iterable(files.values())))),
        )
        culprit = failing_worker(message, round_of.failures) if phase == "Failed" else None
        failed = None if culprit is None else FailedWorker(culprit, cluster.log_file(culprit))
        if limits.missed() and phase == "Succeeded":
            said = f"{title}: the job ended before the limits changed to {', '.join(limits.missed())}"
            self._observer.warn(said)
        if stopped_by is not None and not trial.is_profile:
            self._warn_of_early_end(history, checkpoints)
        return TrialResult(trial, history, tuple(round_of.entries), series, stopped_by, least_batches, failed)

    def _schedule_of(self, trial: Trial) -> tuple[Schedule, Sequence[Mapping[str, int]]]:
        """A trial has all of the schedule, a profile one level of it."""
        if not trial.is_profile:
            return self._schedule, self._placements
        return Schedule((self._schedule.levels[trial.level],)), (self._placements[trial.level],)

    def _pause_in(self, cluster: LocalCluster, limits: ScheduledLimits) -> Callable[[float], None]:
        def pause(seconds: float) -> None:
            self._stop.check()
            left = limits.seconds_left()
            cluster.wait(seconds if left is None else min(seconds, left), self._observer.look)
            self._stop.check()

        return pause

    def _leave(self, cluster: LocalCluster) -> None:
        """Let the workers write a checkpoint and end; a second signal cuts that short."""
        saving = " and write a checkpoint" if self._keeps_checkpoints else ""
        self._observer.warn(
            f"stopping: the workers finish their step{saving}, within {self._grace_seconds:g} s "
            "(ask again to kill them)"
        )
        try:
            with self._stop.insistable():
                if not cluster.interrupt(self._grace_seconds):
                    self._observer.warn("some workers did not end in time and were killed")
        except Insisted:
            self._observer.warn("killing the workers")

    def _warn_of_early_end(self, history: TrialHistory, checkpoints: Path) -> None:
        trained = history.steps[-1].number + 1 if history.steps else 0
        saved = newest_step(checkpoints)
        kept = "no checkpoint was written" if saved is None else f"the newest checkpoint holds {saved} steps"
        if not self._keeps_checkpoints:
            kept = "nothing can be resumed, for the job keeps no checkpoints (it has no spec.checkpoint.path)"
        self._observer.warn(f"{history.title}: stopped after {trained} steps; {kept}")


def failing_worker(message: str, failures: Sequence[str]) -> str | None:
    """The worker for which a job failed: the one that the message names, else the one that failed first."""
    named = [name for name in failures if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", message)]
    return next(iter([*sorted(named, key=message.find), *failures]), None)


def _remembered(cluster: LocalCluster) -> tuple[int, int, dict[str, int]]:
    """Adjustments and restarts, as the job's memory has counted them, and the fewest samples that workers need."""
    try:
        seen, memory = cluster.observe()
    except (OSError, ValueError) as error:
        logger.warning("adjustments and restarts are not known: %s", error)
        return 0, 0, {}
    if memory is None:
        return 0, 0, {}
    known = known_workers(memory, seen.plan)
    return memory.adjustments, memory.restarts, {name: worker.least_batch for name, worker in known.items()}


class _Rounds:
    """Listens to the loop: keeps what was decided and which workers failed, in that order, and shows it."""

    def __init__(self, observer: Observer, limits: ScheduledLimits) -> None:
        self.entries: list[Entry] = []
        self.failures: list[str] = []
        self._observer = observer
        self._limits = limits
        self._steps = 0
        self._began = time.monotonic()

    def note(self, seen: Seen, decision: Decision) -> None:
        """One round of the loop."""
        # A worker that has just ended may not have said yet how far it came.
        self._steps = reached_steps(seen) or self._steps
        changed = self._limits.look(seen)
        decision = replace(decision, events=(*decision.events, *changed))
        entry = entry_of(time.monotonic() - self._began, self._steps, decision)
        if entry is not None:
            self.entries.append(entry)
        self.failures += [w.name for w in seen.workers if w.exit_code and w.name not in self.failures]
        self._observer.show(seen, decision, entry)
