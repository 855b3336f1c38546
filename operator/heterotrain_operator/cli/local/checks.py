"""Check a run before anything is started or changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from heterotrain_operator.api import HeteroTrainingJob, ManifestError, Problem, to_core
from heterotrain_operator.api.availability import known_policies
from heterotrain_operator.api.problems import did_you_mean
from heterotrain_operator.cli.local.located import located
from heterotrain_operator.cli.local.options import Options
from heterotrain_operator.cli.out_folder import hindrance_of, out_problems
from heterotrain_operator.clusters.local.template import ProcessTemplate, read_templates
from heterotrain_operator.experiments import checkpoints
from heterotrain_operator.experiments.experiment import Experiment, experiment_of
from heterotrain_operator.experiments.schedules.schedule import Schedule, unchanging
from heterotrain_operator.experiments.schedules.schedule_file import load_schedule
from heterotrain_operator.experiments.trials.workers import limits_of


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that may begin: everything about it has been checked. `templates` are by worker group."""

    experiment: Experiment
    templates: dict[str, ProcessTemplate]


def prepare(options: Options, here: Path) -> Prepared:
    """Check a run without starting or changing anything; `here` is the current folder.

    Raises ManifestError with all that is wrong.
    """
    problems: list[Problem] = []
    try:
        job = options.load()
    except ManifestError as error:
        raise ManifestError([*error.problems, *policy_problems(options, "")]) from None
    policy = options.policy or job.spec.batching.policy
    problems += policy_problems(options, policy)
    schedule = _schedule(job, options, problems)
    if options.script is None:
        job = located(job, options.manifest, here, problems)
    templates = _templates(job, problems)
    if job.spec.run_policy.suspend:
        problems.append(Problem("spec.runPolicy.suspend", "a suspended job does not run; set it to false"))
    if options.rounds < 1:
        problems.append(Problem("--rounds", f"must be at least 1, found {options.rounds}"))
    durable = None if options.is_compared else checkpoints.local_folder(job, here)
    problems += _resume_problems(options, durable)
    if durable is not None:
        problems += _checkpoint_problems(durable)
        if not (problems or options.resume or options.fresh):
            problems += _unasked_resume(durable)
    if options.out is not None:
        problems += out_problems(options.out, fresh=options.fresh)
    if problems:
        raise ManifestError(problems)
    experiment = experiment_of(
        job,
        policy=policy,
        compared=options.compare,
        rounds=options.rounds,
        ceiling=options.ceiling,
        schedule=schedule,
        durable=durable,
    )
    return Prepared(experiment, templates)


def policy_problems(options: Options, policy: str) -> Iterator[Problem]:
    """What is wrong with the policies named on the command line."""
    known = known_policies()
    named = [("--policy", options.policy)] if options.policy is not None else []
    named += [("--compare", name) for name in options.compare]
    for option, name in named:
        if name not in known:
            yield Problem(option, f"{name!r} is no policy; known are {', '.join(known)}{did_you_mean(name, known)}")
    for name in dict.fromkeys(options.compare):
        if options.compare.count(name) > 1 or name == policy:
            yield Problem("--compare", f"{name} would run twice; name each policy besides {policy} once")


def _templates(job: HeteroTrainingJob, problems: list[Problem]) -> dict[str, ProcessTemplate]:
    try:
        return read_templates(job)
    except ManifestError as error:
        problems += error.problems
        return {}


def _schedule(job: HeteroTrainingJob, options: Options, problems: list[Problem]) -> Schedule:
    core = to_core(job)
    declared = limits_of(core)
    if options.schedule is not None:
        try:
            return load_schedule(options.schedule, core, declared)
        except ManifestError as error:
            problems += error.problems
    return unchanging(declared)


def _resume_problems(options: Options, durable: Path | None) -> Iterator[Problem]:
    if options.is_compared and options.resume:
        yield Problem("--resume", "several trials each start from the beginning; there is none to resume")
    elif durable is None and options.resume:
        yield Problem("--resume", "the job has no spec.checkpoint.path, so no checkpoint to resume from is kept")


def _unasked_resume(durable: Path) -> Iterator[Problem]:
    saved = checkpoints.newest_step(durable)
    if saved is not None:
        reason = f"{durable} holds a checkpoint of {saved} steps; go on with --resume or start with --fresh"
        yield Problem("spec.checkpoint", reason)


def _checkpoint_problems(durable: Path) -> Iterator[Problem]:
    """A folder that cannot be written to is reported before the run, not when the first checkpoint is lost."""
    hindrance = hindrance_of(durable)
    if hindrance:
        yield Problem("spec.checkpoint.path", f"no checkpoint can be written to {durable}, because of {hindrance}")
