"""What the user asks of `heterotrain run`, checked before anything is started or changed.

Scripts are looked for where the job would look for them, else beside its manifest.
"""

from __future__ import annotations

import copy
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heterotrain_operator.api import HeteroTrainingJob, ManifestError, Problem, load_manifest, parse_manifest, to_core
from heterotrain_operator.api.availability import known_policies
from heterotrain_operator.api.problems import did_you_mean, render_path
from heterotrain_operator.cli.local import script_output
from heterotrain_operator.cli.script_job import SUFFIX, ScriptJob, document_of, manifest_text
from heterotrain_operator.clusters.local.gpus import gpu_problems
from heterotrain_operator.clusters.local.template import ProcessTemplate, read_templates
from heterotrain_operator.core.model import SERVER_GROUP
from heterotrain_operator.experiments import checkpoints
from heterotrain_operator.experiments.experiment import Experiment, experiment_of
from heterotrain_operator.experiments.locks import LOCK, holder_of
from heterotrain_operator.experiments.runs import hindrance_of, out_problems
from heterotrain_operator.experiments.schedules.schedule import Schedule, unchanging
from heterotrain_operator.experiments.schedules.schedule_file import load_schedule
from heterotrain_operator.experiments.trials.trial import limits_of


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asks of a run of a manifest, or of `script` alone; `words` are those of the command line."""

    manifest: Path
    compare: tuple[str, ...] = ()
    rounds: int = 1
    as_json: bool = False
    out: Path | None = None
    resume: bool = False
    fresh: bool = False
    policy: str | None = None
    ceiling: bool = False
    schedule: Path | None = None
    logs: str = script_output.LEADER
    script: ScriptJob | None = None
    seed: int | None = None
    words: tuple[str, ...] = ()

    @property
    def is_compared(self) -> bool:
        """Whether several trials are compared; each of them starts from the beginning."""
        return bool(self.compare) or self.rounds > 1

    def load(self) -> HeteroTrainingJob:
        """The job. Raises ManifestError with all that is wrong with it."""
        if self.script is not None:
            return parse_manifest(document_of(self.script))
        job = load_manifest(self.manifest)
        if self.seed is None:
            return job
        training = job.spec.training.model_copy(update={"seed": self.seed})
        return job.model_copy(update={"spec": job.spec.model_copy(update={"training": training})})

    def manifest_text(self) -> str:
        """The manifest, for the report."""
        if self.script is not None:
            return manifest_text(document_of(self.script))
        return self.manifest.read_text(encoding="utf-8")

    def how_to_resume(self) -> str:
        """The command that resumes the run after it was interrupted."""
        if self.script is not None:
            return "the same command and --resume"
        words = ["heterotrain", "run", str(self.manifest), "--resume"]
        if self.policy:
            words += ["--policy", self.policy]
        if self.seed is not None:
            words += ["--seed", str(self.seed)]
        if self.schedule:
            words += ["--schedule", str(self.schedule)]
        return shlex.join(words)


_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
"""Options of python that take the next word."""

FOLDERS_ABOVE = 2
"""Folders above that of the manifest in which scripts are sought: manifests usually lie no deeper in a repository."""


def script_at(words: Sequence[str]) -> int | None:
    """The position of the script in a command such as `python -u train.py`; None if it cannot be found."""
    if not words or not Path(words[0]).name.startswith("python"):
        return None
    position = 1
    while position < len(words) and words[position].startswith("-"):
        if words[position].startswith(("-m", "-c")) or words[position] == "-":
            return None
        position += 2 if words[position] in _WITH_VALUE else 1
    return position if position < len(words) and words[position].endswith(SUFFIX) else None


def located(job: HeteroTrainingJob, manifest: Path, here: Path, problems: list[Problem]) -> HeteroTrainingJob:
    """The job with the absolute path of every relative script, and a problem for each script that is not found.

    A script is sought below `here`, the current folder, then below that of the manifest and FOLDERS_ABOVE more, so that
    a path that was written for the top of a repository holds from anywhere; with a workingDir only below that.
    Paths with references such as $(HOME) are left as they are.
    """
    templates = {}
    for name, path, found in job.spec.templates:
        template = templates[name] = copy.deepcopy(found)
        containers = template["spec"]["containers"]
        if containers:
            place = render_path((*path, "spec", "containers", 0))
            _locate(containers[0], manifest, here, place, problems)
    groups = tuple(group.model_copy(update={"template": templates[group.name]}) for group in job.spec.worker_groups)
    server = job.spec.parameter_server
    if server is not None:
        server = server.model_copy(update={"template": templates.get(SERVER_GROUP)})
    spec = job.spec.model_copy(update={"worker_groups": groups, "parameter_server": server})
    return job.model_copy(update={"spec": spec})


def _locate(container: dict[str, Any], manifest: Path, here: Path, place: str, problems: list[Problem]) -> None:
    command, arguments = list(container.get("command") or ()), list(container.get("args") or ())
    if not command:
        return
    words = [*command, *arguments]
    position = script_at(words)
    if position is None or "$(" in words[position] or "$(" in (container.get("workingDir") or ""):
        return
    script = words[position]
    beside = manifest.absolute().parent
    asked = container.get("workingDir")
    folders = (
        [Path(asked)] if asked is not None else list(dict.fromkeys((here, beside, *beside.parents[:FOLDERS_ABOVE])))
    )
    if asked is not None and not folders[0].is_dir():
        return  # reading the templates refuses such a folder
    found = next((folder / script for folder in folders if (folder / script).is_file()), None)
    if found is None:
        field = "command" if position < len(command) else "args"
        sought = "" if Path(script).is_absolute() else f" in {', '.join(map(str, folders))}"
        advice = "" if Path(script).is_absolute() or asked is not None else "; name its folder in workingDir"
        problems.append(Problem(f"{place}.{field}", f"there is no {script}{sought}{advice}"))
    elif asked is None and found.parent != (here / script).parent:
        if position < len(command):
            container["command"][position] = str(found)
        else:
            container["args"][position - len(command)] = str(found)


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
    if options.ceiling and job.spec.training.mode == "ASP":
        problems.append(Problem("--ceiling", "is of steps that all workers take together, of which mode ASP has none"))
    if templates:
        problems += gpu_problems(job, templates)
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
        yield Problem(
            "--resume",
            "the job has no spec.checkpoint.path, so no checkpoint to resume from is kept; a script's are kept in the "
            "folder that --checkpoints names",
        )


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
    if holder := holder_of(durable / LOCK):
        yield held_by(durable, holder)


def held_by(durable: Path, holder: str) -> Problem:
    """A run that lives writes its checkpoints into the folder; there is no way to share it."""
    return Problem("spec.checkpoint", f"{durable} belongs to {holder}; wait for its end, or name another folder")
