"""`heterotrain run`: check everything first, run the trials, then say what came of them."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.logging import RichHandler
from rich.text import Text

from heterotrain_operator.api import HeteroTrainingJob, ManifestError, Problem, load_manifest, parse_manifest, to_core
from heterotrain_operator.api.availability import known_policies
from heterotrain_operator.api.hints import did_you_mean
from heterotrain_operator.cli import script_output
from heterotrain_operator.cli.live import View
from heterotrain_operator.cli.log_tail import last_lines
from heterotrain_operator.cli.observer import TerminalObserver
from heterotrain_operator.cli.script_job import ScriptJob, document_of, manifest_text
from heterotrain_operator.cli.scripts import located
from heterotrain_operator.cli.table import print_summary
from heterotrain_operator.clusters.local.detect import detect
from heterotrain_operator.clusters.local.limits import Mechanism, machine_cores
from heterotrain_operator.clusters.local.placement import place
from heterotrain_operator.clusters.local.template import ProcessTemplate, read_templates
from heterotrain_operator.experiments import checkpoints, runs
from heterotrain_operator.experiments.schedule import Schedule, load_schedule, unchanging
from heterotrain_operator.experiments.stop import StopSignals, stop_signals
from heterotrain_operator.experiments.summary import WELL, Summary, Target, summarize
from heterotrain_operator.experiments.trials import (
    FailedWorker,
    Runner,
    Trial,
    TrialResult,
    bounds_of,
    least_batches,
    limits_of,
    trials_of,
    worker_names,
)

SUCCEEDED = 0
FAILED = 1
BAD_INPUT = 2

MARKER = ".heterotrain-run"
"""In a folder that an earlier run made; only such a one is ever replaced."""

WRITTEN = ("*.png", "*.jsonl", "summary.json", "manifest.yaml", "schedule.yaml", "report.html")
PLAIN_WIDTH = 120
"""Columns of the tables where standard error is no terminal."""
LAST_LINES = 20
"""Of the failing worker's log, shown at the end of a run."""

_IN_POD = re.compile(r"^spec\.workerGroups\[\d+\]\.template\.(?:spec\.)?")


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asks of a run of a manifest, or of `script` alone."""

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

    def load(self) -> HeteroTrainingJob:
        """The job. Raises ManifestError with all that is wrong with it."""
        if self.script is not None:
            return parse_manifest(document_of(self.script))
        return load_manifest(self.manifest)

    def manifest_text(self) -> str:
        """The manifest, for the report."""
        if self.script is not None:
            return manifest_text(document_of(self.script))
        return self.manifest.read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that may begin: everything about it has been checked. `durable` is None: checkpoints are
    temporary.
    """

    job: HeteroTrainingJob
    policy: str
    trials: tuple[Trial, ...]
    templates: dict[str, ProcessTemplate]
    durable: Path | None
    schedule: Schedule

    @property
    def trained(self) -> int:
        """How many trials there are besides the profile."""
        return sum(not trial.is_profile for trial in self.trials)


def package_version() -> str:
    """The installed version; "unknown" in a checkout that is not installed."""
    try:
        return version("heterotrain")
    except PackageNotFoundError:
        return "unknown"


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
    several = bool(options.compare) or options.rounds > 1
    durable = None if several else checkpoints.local_folder(job, here)
    if several and options.resume:
        problems.append(Problem("--resume", "several trials each start from the beginning; there is none to resume"))
    elif durable is None and options.resume:
        problems.append(
            Problem("--resume", "the job has no spec.checkpoint.path, so no checkpoint to resume from is kept")
        )
    if durable is not None:
        problems += _checkpoint_problems(durable)
    if durable is not None and not (problems or options.resume or options.fresh):
        saved = checkpoints.newest_step(durable)
        if saved is not None:
            reason = f"{durable} holds a checkpoint of {saved} steps; go on with --resume or start with --fresh"
            problems.append(Problem("spec.checkpoint", reason))
    if options.out is not None:
        problems += _out_problems(options.out, options.fresh)
    if problems:
        raise ManifestError(problems)
    profiled = bool(options.compare) or options.ceiling
    wanted = trials_of((policy, *options.compare), options.rounds, profiled, len(schedule.levels))
    return Prepared(job, policy, wanted, templates, durable, schedule)


def _checkpoint_problems(durable: Path) -> Iterator[Problem]:
    """Found now, and not when the first checkpoint is lost."""
    hindrance = _hindrance(durable)
    if hindrance:
        yield Problem("spec.checkpoint.path", f"no checkpoint can be written to {durable}, because of {hindrance}")


def _hindrance(folder: Path) -> str:
    """Why a folder cannot be written to or made, empty if it can."""
    there = folder.absolute()
    try:
        while not there.exists():
            there = there.parent
        usable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    except OSError as error:
        return f"{there}: {error.strerror}"
    return "" if usable else str(there)


def _out_problems(out: Path, fresh: bool) -> Iterator[Problem]:
    hindrance = _hindrance(out)
    if hindrance:
        yield Problem("--out", f"nothing can be written to {out}, because of {hindrance}")
        return
    try:
        if not out.exists() or not any(out.iterdir()):
            return
    except OSError as error:
        yield Problem("--out", f"{out}: {error.strerror}")
        return
    if not (out / MARKER).exists():
        yield Problem("--out", f"{out} is not empty; name a new folder")
    elif not fresh:
        yield Problem("--out", f"{out} holds an earlier run; name another folder, or replace it with --fresh")


@contextmanager
def _run_folder(out: Path | None) -> Iterator[Path]:
    """The folder of a run: the user's, emptied of an earlier run, or one that is gone in the end."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="heterotrain-") as folder:
            yield Path(folder)
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / MARKER).touch()
    except OSError as error:
        raise ManifestError([Problem("--out", f"nothing can be written to {out}: {error.strerror}")]) from error
    shutil.rmtree(out / "arms", ignore_errors=True)
    for pattern in WRITTEN:
        for path in out.glob(pattern):
            path.unlink()
    yield out.absolute()


def _placed(prepared: Prepared) -> tuple[dict[str, int], ...]:
    """For each level of limits a CPU for each worker, where figures are to be compared and all levels allow it;
    otherwise none, since other jobs may run here, too.
    """
    levels = prepared.schedule.levels
    cpus = sorted(os.sched_getaffinity(0))
    placements = tuple(place(level.limits, cpus) for level in levels)
    if all(placements) and any(trial.is_profile for trial in prepared.trials):
        return placements
    return ({},) * len(levels)


def ignored_fields(prepared: Prepared) -> list[str]:
    """Fields of the manifest that mean nothing on this machine; those of templates by their path in the pod, once."""
    in_templates = (path for template in prepared.templates.values() for path in template.ignored)
    paths = list(dict.fromkeys(_IN_POD.sub("", path) for path in in_templates))
    if prepared.job.spec.metrics.source != "Pods":
        paths.append("spec.metrics.source (the workers themselves are asked)")
    return paths


def _introduce(view: View, prepared: Prepared, options: Options, mechanism: Mechanism, cpus: Mapping[str, int]) -> None:
    job = prepared.job
    replicas = job.spec.replicas
    view.say(
        f"{job.metadata.name}: {replicas} {'worker' if replicas == 1 else 'workers'}, global batch "
        f"{job.spec.global_batch_size}, policy {prepared.policy}",
        style="bold",
    )
    view.say(f"Limits: {mechanism.describe()}")
    if cpus:
        view.say(f"Each worker keeps to one CPU: {', '.join(f'{name} to {cpu}' for name, cpu in cpus.items())}")
    for change in prepared.schedule.changes:
        view.say(f"Limits change to {change.label} at {prepared.schedule.unit} {change.at:g}")
    ignored = ignored_fields(prepared)
    if ignored:
        view.say(f"Ignored on this machine: {', '.join(ignored)}")
    if prepared.trained > 1:
        view.say("Every trial starts from the beginning; its checkpoints stay in the run's folder")
        return
    if prepared.durable is None:
        where = "in the run's folder" if options.out is not None else "temporary: nothing can be resumed"
        view.say(f"Checkpoints are {where} (the job has no spec.checkpoint.path)")
        return
    claim = job.spec.checkpoint.persistent_volume_claim
    stands = f", which stands for the claim {claim}" if claim is not None else ""
    view.say(f"Checkpoints: {prepared.durable}{stands}")
    if options.fresh and checkpoints.steps_in(prepared.durable):
        view.say(f"--fresh: earlier checkpoints were moved to {checkpoints.set_aside(prepared.durable)}")
    if options.resume:
        saved = checkpoints.newest_step(prepared.durable)
        view.say(
            f"Resuming after {saved} steps"
            if saved is not None
            else "There is no checkpoint yet: starting from the beginning",
        )


def _title(trial: Trial, rounds: int, schedule: Schedule) -> str:
    if trial.is_profile:
        when = "Profile before the trials" if trial.round == 0 else "Profile after the trials"
        return when if len(schedule.levels) == 1 else f"{when}, limits {schedule.levels[trial.level].label}"
    return f"{trial.policy} (round {trial.round})" if rounds > 1 else trial.policy


def _run_trials(runner: Runner, prepared: Prepared, options: Options, folder: Path, kept: Path) -> list[TrialResult]:
    """Run trial after trial, until one does not end well."""
    results: list[TrialResult] = []
    position = 0
    for trial in prepared.trials:
        position += not trial.is_profile
        place = folder / "arms" / trial.slug
        single = prepared.durable is not None and not trial.is_profile
        saved = prepared.durable if single and prepared.durable else place / "checkpoints"
        which = f"trial {position} of {prepared.trained}" if prepared.trained > 1 and not trial.is_profile else ""
        title, logs = _title(trial, options.rounds, prepared.schedule), runs.log_folder(kept, trial.slug)
        results.append(runner.run(trial, title, place, saved, logs=logs, position=which))
        if results[-1].history.phase not in WELL:
            break
    return results


def _summary(prepared: Prepared, results: Sequence[TrialResult], mechanism: Mechanism) -> Summary:
    job = prepared.job
    core = to_core(job)
    trials = [result.history for result in results if not result.trial.is_profile]
    target = job.spec.training.target
    return summarize(
        core.name,
        # The job's own policy first in each round, whatever the order they ran in.
        sorted(trials, key=lambda trial: (trial.round, trial.policy != prepared.policy)),
        worker_names(core),
        bounds=bounds_of(core),
        profiled=[result.history for result in results if result.trial.is_profile],
        target=None if target is None else Target(target.value, target.every_steps, target.metric, target.direction),
        limits=mechanism.describe(),
        levels=prepared.schedule.levels,
        least=least_batches(core, results),
    )


def _report(
    prepared: Prepared, options: Options, results: Sequence[TrialResult], summary: Summary, folder: Path
) -> Path:
    # Drawing costs a second of imports that a run without a report does not need.
    from heterotrain_operator.experiments import report  # noqa: PLC0415

    reported = [
        (result, report.TrialReport(result.history, result.trial.slug, result.entries, result.series))
        for result in results
    ]
    return report.write(
        folder,
        report.Run(
            summary=summary,
            trials=tuple(each for result, each in reported if not result.trial.is_profile),
            profiles=tuple(each for result, each in reported if result.trial.is_profile),
            names=worker_names(to_core(prepared.job)),
            manifest=options.manifest_text(),
            facts=report.Facts(machine_cores(), summary.limits, package_version()),
            schedule=options.schedule.read_text(encoding="utf-8") if options.schedule is not None else "",
        ),
    )


def _exit_code(results: Sequence[TrialResult]) -> int:
    stopped_by = next((result.stopped_by for result in results if result.stopped_by is not None), None)
    if stopped_by is not None:
        return stopped_by.exit_code
    return SUCCEEDED if all(result.history.phase in WELL for result in results) else FAILED


def run(options: Options, here: Path) -> int:
    """Do what the user asks, and return the exit code.

    Raises ManifestError (nothing was started) with all that is wrong with the input.
    """
    prepared = prepare(options, here)
    console = Console(stderr=True)
    if not console.is_terminal:
        console = Console(stderr=True, width=PLAIN_WIDTH)
    logging.basicConfig(
        level=logging.WARNING, format="%(message)s", handlers=[RichHandler(console=console, show_path=False)]
    )
    try:
        with stop_signals() as stop:
            return _run(options, prepared, console, stop, here)
    except OSError as error:
        console.print(f"the run failed: {error}", style="red", markup=False, highlight=False)
        return FAILED


def _run(options: Options, prepared: Prepared, console: Console, stop: StopSignals, here: Path) -> int:
    mechanism = detect()
    with _run_folder(options.out) as folder:
        kept = runs.begin(here, prepared.job.metadata.name, folder if options.out is not None else None)
        with View(console, time.monotonic) as view:
            placements = _placed(prepared)
            _introduce(view, prepared, options, mechanism, placements[0])
            runner = Runner(
                prepared.job,
                mechanism=mechanism,
                observer=TerminalObserver(view, options.logs),
                stop=stop,
                grace_seconds=max(template.grace_seconds for template in prepared.templates.values()),
                schedule=prepared.schedule,
                placements=placements,
                keeps_checkpoints=prepared.durable is not None or options.out is not None,
            )
            results = _run_trials(runner, prepared, options, folder, kept)
        summary = _summary(prepared, results, mechanism)
        print_summary(console, summary)
        if (failed := results[-1].failed) is not None:
            _print_last_lines(console, failed, here)
        if summary.message:
            colour = "yellow" if summary.phase == "Interrupted" else "red"
            _say(console, f"{summary.job} {summary.phase.lower()}: {summary.message}", colour)
        _say(console, f"Logs: {_seen_from(here, kept)}")
        if options.out is not None:
            _say(console, f"Report: {_report(prepared, options, results, summary, folder)}")
        if results[-1].stopped_by is not None and prepared.durable is not None:
            _say(console, f"Go on with: {shlex.join(words_to_go_on(options))}", "yellow")
        if options.as_json:
            sys.stdout.write(json.dumps(summary.to_json(), indent=2, allow_nan=False) + "\n")
            sys.stdout.flush()
        return _exit_code(results)


def _print_last_lines(console: Console, failed: FailedWorker, here: Path) -> None:
    """The last lines that the failing worker's script printed, and where all of them are."""
    lines = last_lines(failed.log, LAST_LINES)
    place = _seen_from(here, failed.log)
    _say(console, f"The last lines of {failed.name}, all of {place}:" if lines else f"{failed.name} printed nothing")
    for line in lines:
        console.print(Text("  ").append_text(Text.from_ansi(line)), soft_wrap=True)


def _seen_from(here: Path, path: Path) -> Path:
    """A path as short as it can be written from the current folder."""
    return path.relative_to(here) if path.is_relative_to(here) else path


def words_to_go_on(options: Options) -> list[str]:
    """The command that resumes an interrupted run."""
    words = ["heterotrain", "run", str(options.manifest), "--resume"]
    if options.policy:
        words += ["--policy", options.policy]
    if options.schedule:
        words += ["--schedule", str(options.schedule)]
    return words


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
