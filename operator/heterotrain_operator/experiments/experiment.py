"""An experiment: one job on this machine, under one policy after the other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from heterotrain_operator.api import HeteroTrainingJob, to_core
from heterotrain_operator.clusters.local.limits import Mechanism, machine_cores
from heterotrain_operator.clusters.local.pod import place
from heterotrain_operator.clusters.local.template import read_templates
from heterotrain_operator.experiments.control import ControlServer
from heterotrain_operator.experiments.figures.history import WELL, Target
from heterotrain_operator.experiments.figures.summary import Summary, summarize
from heterotrain_operator.experiments.figures.verdict import Circumstances
from heterotrain_operator.experiments.runs import TRIALS, log_folder
from heterotrain_operator.experiments.schedules.schedule import Schedule, unchanging
from heterotrain_operator.experiments.trials.observer import Observer
from heterotrain_operator.experiments.trials.runner import Runner
from heterotrain_operator.experiments.trials.stop import StopSignals
from heterotrain_operator.experiments.trials.trial import (
    Trial,
    TrialResult,
    bounds_of,
    least_batches,
    limits_of,
    trials_of,
    worker_names,
)


@dataclass(frozen=True, slots=True)
class Experiment:
    """What is to be run. `policy` is the one with which all others are compared.

    `durable` is the folder in which the checkpoints of a single trial stay; None: those of every trial lie in the
    folder of the run.
    """

    job: HeteroTrainingJob
    policy: str
    trials: tuple[Trial, ...]
    schedule: Schedule
    durable: Path | None = None

    @property
    def trained(self) -> int:
        """How many trials there are besides profiles."""
        return sum(not trial.is_profile for trial in self.trials)

    @property
    def rounds(self) -> int:
        """How often each policy is run."""
        return max(trial.round for trial in self.trials if not trial.is_profile)

    def title(self, trial: Trial) -> str:
        """The name of a trial for people."""
        if trial.is_profile:
            when = "Profile before the trials" if trial.round == 0 else "Profile after the trials"
            levels = self.schedule.levels
            return when if len(levels) == 1 else f"{when}, limits {levels[trial.level].label}"
        return f"{trial.policy} (round {trial.round})" if self.rounds > 1 else trial.policy

    def positions(self) -> list[str]:
        """For each trial its place among those that are compared, in words; empty where there is nothing to say."""
        places = []
        position = 0
        for trial in self.trials:
            position += not trial.is_profile
            said = self.trained > 1 and not trial.is_profile
            places.append(f"trial {position} of {self.trained}" if said else "")
        return places


def experiment_of(
    job: HeteroTrainingJob,
    *,
    policy: str | None = None,
    compared: Sequence[str] = (),
    rounds: int = 1,
    ceiling: bool = False,
    schedule: Schedule | None = None,
    durable: Path | None = None,
) -> Experiment:
    """The experiment that runs a job under its own policy, or `policy`, and those it is compared with, each `rounds`
    times. Workers are profiled where policies are compared, or a `ceiling` is asked for.
    """
    own = policy or job.spec.batching.policy
    known = schedule or unchanging(limits_of(to_core(job)))
    trials = trials_of((own, *compared), rounds, bool(compared) or ceiling, len(known.levels))
    return Experiment(job, own, trials, known, durable)


def placements_of(experiment: Experiment) -> tuple[dict[str, int], ...]:
    """For each level of limits a CPU for each worker, where figures are to be compared and all levels allow it;
    otherwise none, since other jobs may run here, too.
    """
    levels = experiment.schedule.levels
    cpus = sorted(os.sched_getaffinity(0))
    placements = tuple(place(level.limits, cpus) for level in levels)
    if all(placements) and any(trial.is_profile for trial in experiment.trials):
        return placements
    return ({},) * len(levels)


def run_trials(
    experiment: Experiment,
    folder: Path,
    *,
    mechanism: Mechanism,
    observer: Observer,
    stop: StopSignals,
    placements: Sequence[Mapping[str, int]],
    logs: Path | None = None,
    keeps_checkpoints: bool = True,
    control: ControlServer | None = None,
) -> list[TrialResult]:
    """Run trial after trial in `folder`, until one does not end well. `logs` is where the workers' logs are kept (None:
    in `folder`); without `keeps_checkpoints` the folder is gone afterwards. Through `control` users put faults on
    workers while a trial runs.

    Raises ManifestError if the job cannot run on this machine.
    """
    runner = Runner(
        experiment.job,
        mechanism=mechanism,
        observer=observer,
        stop=stop,
        grace_seconds=max(template.grace_seconds for template in read_templates(experiment.job).values()),
        schedule=experiment.schedule,
        placements=placements,
        keeps_checkpoints=keeps_checkpoints,
        control=control,
    )
    results: list[TrialResult] = []
    for trial, position in zip(experiment.trials, experiment.positions(), strict=True):
        own = folder / TRIALS / trial.slug
        durable = None if trial.is_profile else experiment.durable
        kept = None if logs is None else log_folder(logs, trial.slug)
        title = experiment.title(trial)
        results.append(runner.run(trial, title, own, durable or own / "checkpoints", logs=kept, position=position))
        if results[-1].history.phase not in WELL:
            break
    return results


def summary_of(
    experiment: Experiment,
    results: Sequence[TrialResult],
    limits: str,
    *,
    of_script: bool = False,
    provenance: Mapping[str, str] | None = None,
) -> Summary:
    """The results in numbers; `limits` says how CPU limits were imposed, `of_script` that no manifest was given, and
    `provenance` where they come from.
    """
    core = to_core(experiment.job)
    trained = [result.history for result in results if not result.trial.is_profile]
    target = experiment.job.spec.training.target
    own = next((each for each in results if each.trial.policy == experiment.policy), None)
    circumstances = Circumstances(
        limits=limits_of(core),
        machine_cores=machine_cores(),
        interval=core.interval,
        of_script=of_script,
        dry_run=core.dry_run,
        reason="" if own is None else own.reason,
    )
    return summarize(
        core.name,
        # The experiment's own policy first in each round, whatever the order they ran in.
        sorted(trained, key=lambda trial: (trial.round, trial.policy != experiment.policy)),
        worker_names(core),
        bounds=bounds_of(core),
        profiled=[result.history for result in results if result.trial.is_profile],
        target=None if target is None else Target(target.value, target.every_steps, target.metric, target.direction),
        limits=limits,
        levels=experiment.schedule.levels,
        least=least_batches(core, results),
        circumstances=circumstances,
        provenance=provenance,
    )
