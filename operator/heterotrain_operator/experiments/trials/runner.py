"""Run one trial of a job on this machine, from its first worker to its last."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path

from heterotrain_operator.api import HeteroTrainingJob, to_core
from heterotrain_operator.clusters.local.cluster import LocalCluster
from heterotrain_operator.clusters.local.limits import LimitError, Mechanism
from heterotrain_operator.core.lifecycle.publishing import known_workers
from heterotrain_operator.core.model import Decision, Job, Scaling, Seen, SizePoint
from heterotrain_operator.core.prediction.learned import Learned
from heterotrain_operator.experiments.checkpoints import keep_learned, learned_in, newest_step
from heterotrain_operator.experiments.control import ControlServer
from heterotrain_operator.experiments.figures.history import TrialHistory
from heterotrain_operator.experiments.figures.series import align, read_evaluations, read_series
from heterotrain_operator.experiments.progress import reached_steps
from heterotrain_operator.experiments.schedules.schedule import Schedule, ScheduledLimits
from heterotrain_operator.experiments.trials.faults import TrialFaults
from heterotrain_operator.experiments.trials.observer import Entry, Observer, entry_of
from heterotrain_operator.experiments.trials.profiling import PROFILE_STEPS, endless, measured
from heterotrain_operator.experiments.trials.stop import Insisted, Interrupted, StopSignals
from heterotrain_operator.experiments.trials.trial import (
    FailedWorker,
    Trial,
    TrialResult,
    failing_worker,
    limits_of,
    server_name,
    worker_names,
)
from heterotrain_operator.loop import run_job

logger = logging.getLogger(__name__)

INTERRUPTED = "Interrupted"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a trial ended: its last phase, the reason, and the signal that stopped it, None if none did."""

    phase: str
    message: str
    stopped_by: Interrupted | None = None


@dataclass(frozen=True, slots=True)
class Counted:
    """Adjustments, restarts and cost, as the job's memory has counted them, the fewest samples that workers need, and
    what the predictor has learned.
    """

    adjustments: int = 0
    restarts: int = 0
    least_batches: Mapping[str, int] = field(default_factory=dict)
    learned: tuple[Learned, ...] = ()
    cost: float | None = None


def counted_in(job: Job, cluster: LocalCluster) -> Counted:
    """What the job's memory has counted at the end; nothing if it cannot be read."""
    try:
        seen, memory = cluster.observe()
    except (OSError, ValueError) as error:
        logger.warning("adjustments and restarts are not known: %s", error)
        return Counted()
    if memory is None:
        return Counted()
    known = known_workers(job, memory, seen.plan)
    leasts = {name: worker.least_batch for name, worker in known.items()}
    cost = memory.cost.total(group.name for group in (*job.groups, job.server) if group is not None)
    return Counted(memory.batching.adjustments, memory.budget.restarts, leasts, memory.learned, cost)


class Rounds:
    """Keeps what was decided, why the batches were left as they are, and which workers failed, in the order in which
    they failed, and passes it on."""

    def __init__(self, observer: Observer, limits: ScheduledLimits, faults: TrialFaults) -> None:
        self.entries: list[Entry] = []
        self.failures: list[str] = []
        self.reason = ""
        self.sizes: tuple[SizePoint, ...] = ()
        self._observer = observer
        self._limits = limits
        self._faults = faults
        self._steps = 0
        self._began = time.monotonic()

    def note(self, seen: Seen, decision: Decision) -> None:
        """One round of the loop."""
        # A worker that has just ended may not have reported yet how far it came.
        self._steps = reached_steps(seen) or self._steps
        faults = self._faults.look(seen)  # first, for what was decided may be their effect
        decision = replace(decision, events=(*faults, *decision.events, *self._limits.look(seen)))
        entry = entry_of(time.monotonic() - self._began, self._steps, decision)
        if entry is not None:
            self.entries.append(entry)
        if decision.scaling is not None:
            self.sizes = decision.scaling.points
        # Workers that end together fall silent together; that is not why the batches stayed until then.
        readable = any(worker.metrics is not None for worker in seen.workers) or not self.reason
        trains = decision.phase == "Running" and all(each.reason != "Finishing" for each in decision.conditions)
        if trains and readable and not any(worker.exit_code is not None for worker in seen.workers):
            self.reason = decision.reason
        self.failures += [w.name for w in seen.workers if w.exit_code and w.name not in self.failures]
        self._observer.show(seen, decision, entry)


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs trials of one job on this machine, and reports each to an observer.

    `placements` has for each level of the schedule a CPU for each worker, or none. Without `keeps_checkpoints` they are
    gone with the run, and none is promised. Through `control` users put faults on workers.
    """

    job: HeteroTrainingJob
    mechanism: Mechanism
    observer: Observer
    stop: StopSignals
    grace_seconds: float
    schedule: Schedule
    placements: Sequence[Mapping[str, int]]
    keeps_checkpoints: bool = True
    control: ControlServer | None = None

    def run(
        self, trial: Trial, title: str, folder: Path, checkpoints: Path, *, logs: Path | None = None, position: str = ""
    ) -> TrialResult:
        """Run one trial in `folder` to its end, its failure, or a signal; nothing of it is left running. `logs` is
        where the workers' logs lie (None: in `folder`).

        Raises ManifestError if the job cannot run here.
        """
        job = endless(self.job) if trial.is_profile else self.job
        core = core_of(job, trial)
        schedule, placements = self._schedule_of(trial)
        with LocalCluster(
            job,
            folder,
            str(checkpoints),
            mechanism=self.mechanism,
            cpus=placements[0],
            endless=trial.is_profile,
            logs=logs,
        ) as cluster:
            self.observer.begin(title, core, cluster.log_file, position=position, endless=trial.is_profile)
            limits = ScheduledLimits(schedule, cluster, placements, time.time, limits_of(core))
            faults = TrialFaults(core, trial.slug, worker_names(core), cluster)
            rounds = Rounds(self.observer, limits, faults)
            former = partial(learned_in, checkpoints)
            ending = self._steered(trial, core, cluster, folder, former, limits=limits, rounds=rounds, faults=faults)
            self.observer.end()
            counted = counted_in(core, cluster)
            files = cluster.series_files()
        if not trial.is_profile:
            try:
                keep_learned(checkpoints, counted.learned)
            except OSError as error:
                self.observer.warn(f"{title}: what was learned is not kept: {error.filename}: {error.strerror}")
        everybody = dict.fromkeys((*worker_names(core), *sorted(files)))  # also those that joined
        everybody.pop(server_name(core), None)  # which takes no steps of its own
        series = {name: tuple(chain.from_iterable(map(read_series, files.get(name, ())))) for name in everybody}
        evaluations = tuple(chain.from_iterable(map(read_evaluations, chain.from_iterable(files.values()))))
        history = TrialHistory(
            policy=trial.policy,
            round=trial.round,
            steps=align(series, together=core.server is None),
            adjustments=counted.adjustments,
            phase=ending.phase,
            message=ending.message,
            restarts=counted.restarts,
            level=trial.level,
            changes=tuple(limits.changes),
            evaluations=evaluations,
            faults=tuple(faults.records),
            sizes=rounds.sizes,
            cost=counted.cost,
            asynchronous=core.server is not None,
        )
        if limits.missed() and ending.phase == "Succeeded":
            self.observer.warn(f"{title}: the job ended before the limits changed to {', '.join(limits.missed())}")
        if ending.stopped_by is not None and not trial.is_profile:
            self._warn_of_early_end(history, checkpoints)
        blamed = failing_worker(ending.message, rounds.failures) if ending.phase == "Failed" else None
        failed = None if blamed is None else FailedWorker(blamed, cluster.log_file(blamed))
        return TrialResult(
            trial,
            history,
            tuple(rounds.entries),
            series,
            ending.stopped_by,
            counted.least_batches,
            failed,
            rounds.reason,
        )

    def _steered(
        self,
        trial: Trial,
        core: Job,
        cluster: LocalCluster,
        folder: Path,
        former: Callable[[], tuple[Learned, ...]],
        *,
        limits: ScheduledLimits,
        rounds: Rounds,
        faults: TrialFaults,
    ) -> Ending:
        """Steer the trial until it ends, whatever ends it; no fault lasts beyond that."""
        try:
            with closing(faults):  # first of all, for a stopped worker could not end
                decision = run_job(
                    core,
                    cluster,
                    now=time.time,
                    pause=self._pause_in(cluster, limits, faults),
                    on_round=rounds.note,
                    until=measured(core) if trial.is_profile else None,
                    wanted=faults.wanted,
                    learned=former,
                    on_memory=self.observer.remember,
                )
        except Interrupted as interrupted:
            if not trial.is_profile:
                self._leave(cluster)
            return Ending(INTERRUPTED, str(interrupted), interrupted)
        except LimitError as error:
            return Ending("Failed", str(error))
        except OSError as error:  # that of a write on a full disk names no file
            return Ending("Failed", f"{error.filename or folder}: {error.strerror or error}")
        return Ending(decision.phase, decision.reason)

    def _schedule_of(self, trial: Trial) -> tuple[Schedule, Sequence[Mapping[str, int]]]:
        """A trial has all of the schedule, a profile one level of it."""
        if not trial.is_profile:
            return self.schedule, self.placements
        return Schedule((self.schedule.levels[trial.level],)), (self.placements[trial.level],)

    def _pause_in(self, cluster: LocalCluster, limits: ScheduledLimits, faults: TrialFaults) -> Callable[[float], None]:
        def look() -> None:
            self.observer.look()
            faults.tend()
            if self.control is not None:
                self.control.serve(faults.answer)

        def pause(seconds: float) -> None:
            self.stop.check()
            left = limits.seconds_left()
            cluster.wait(seconds if left is None else min(seconds, left), look)
            self.stop.check()

        return pause

    def _leave(self, cluster: LocalCluster) -> None:
        """Let the workers write a checkpoint and end; a second signal cuts that short."""
        saving = " and write a checkpoint" if self.keeps_checkpoints else ""
        self.observer.warn(
            f"stopping: the workers finish their step{saving}, within {self.grace_seconds:g} s (ask again to kill them)"
        )
        try:
            with self.stop.insistable():
                if not cluster.interrupt(self.grace_seconds):
                    self.observer.warn("some workers did not end in time and were killed")
        except Insisted:
            self.observer.warn("killing the workers")

    def _warn_of_early_end(self, history: TrialHistory, checkpoints: Path) -> None:
        """Report how far a trial has come that a signal ended, and what is kept of it."""
        trained = history.steps[-1].number + 1 if history.steps else 0
        saved = newest_step(checkpoints)
        kept = "no checkpoint was written" if saved is None else f"the newest checkpoint holds {saved} steps"
        if not self.keeps_checkpoints:
            kept = "nothing can be resumed, for the job keeps no checkpoints (it has no spec.checkpoint.path)"
        self.observer.warn(f"{history.title}: stopped after {trained} steps; {kept}")


def core_of(job: HeteroTrainingJob, trial: Trial) -> Job:
    """The job as decisions see it in this trial. It is resumable, if only within the run's folder."""
    core = replace(to_core(job), policy=trial.policy, resumable=True)
    if trial.is_profile:  # which measures the workers that there are
        core = replace(core, dry_run=False, scaling=Scaling(), interval=max(core.interval, PROFILE_STEPS))
    return core
