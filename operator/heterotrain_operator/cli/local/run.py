"""`heterotrain run`: check everything, say what will run, run it, and say what came of it."""

from __future__ import annotations

import logging
import math
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.logging import RichHandler
from rich.text import Text

from heterotrain_operator.api import ManifestError, Problem, to_core
from heterotrain_operator.cli import FAILED, SUCCEEDED
from heterotrain_operator.cli.local.checks import Options, Prepared, held_by, prepare
from heterotrain_operator.cli.local.job_file import JobFile
from heterotrain_operator.cli.local.live import View
from heterotrain_operator.cli.local.script_output import last_lines
from heterotrain_operator.cli.script_job import terms_of
from heterotrain_operator.cli.terminal import messages, print_json, print_report, say
from heterotrain_operator.clusters.local.limits import Mechanism, detect, machine_cores
from heterotrain_operator.experiments import checkpoints, runs
from heterotrain_operator.experiments.control import ControlServer
from heterotrain_operator.experiments.experiment import Experiment, placements_of, run_trials, summary_of
from heterotrain_operator.experiments.figures.history import WELL
from heterotrain_operator.experiments.figures.summary import Summary
from heterotrain_operator.experiments.locks import LOCK, HeldError, held
from heterotrain_operator.experiments.provenance import provenance_of
from heterotrain_operator.experiments.report import kept
from heterotrain_operator.experiments.report.trials import Course, report_of
from heterotrain_operator.experiments.runs import MARKER, cleared
from heterotrain_operator.experiments.trials.runner import INTERRUPTED
from heterotrain_operator.experiments.trials.stop import StopSignals, stop_signals
from heterotrain_operator.experiments.trials.trial import FailedWorker, TrialResult, limits_of, worker_names

_IN_POD = re.compile(r"^spec\.workerGroups\[\d+\]\.template\.(?:spec\.)?")


def introduce(view: View, prepared: Prepared, options: Options, mechanism: Mechanism, cpus: Mapping[str, int]) -> None:
    """Say what will run, under which limits, and where its checkpoints are; move earlier ones aside if asked to."""
    experiment = prepared.experiment
    view.say(in_force(prepared, options), style="bold")
    crowded = crowding(experiment, of_script=options.script is not None)
    if crowded:
        view.warn(crowded)
    view.say(f"Limits: {mechanism.describe()}")
    if cpus:
        view.say(f"Each worker keeps to one CPU: {', '.join(f'{name} to {cpu}' for name, cpu in cpus.items())}")
    for change in experiment.schedule.changes:
        view.say(f"Limits change to {change.label} at {experiment.schedule.unit} {change.at:g}")
    ignored = ignored_fields(prepared)
    if ignored:
        view.say(f"Ignored on this machine: {', '.join(ignored)}")
    if experiment.trained > 1:
        view.say("Every trial starts from the beginning; its checkpoints stay in the run's folder")
        return
    _introduce_checkpoints(view, experiment, options)


def in_force(prepared: Prepared, options: Options) -> str:
    """What will be trained, and in brackets who said it."""
    job = prepared.experiment.job
    training, replicas = job.spec.training, job.spec.total_replicas
    name = options.manifest.name
    end = f"{training.epochs} {'epoch' if training.epochs == 1 else 'epochs'}" if training.epochs is not None else ""
    end = end or f"{training.steps} {'step' if training.steps == 1 else 'steps'}"
    by = {"policy": "--policy" if options.policy else "default" if options.script else name}
    if options.script is not None:
        by |= terms_of(options.script, replicas).sources
        by |= {"workers": "--workers" if options.script.workers else "default", "end": by.get("epochs") or by["steps"]}
    else:
        by |= dict.fromkeys(("workers", "end", "globalBatchSize", "seed"), name)
        by |= {"seed": "--seed"} if options.seed is not None else {}
    said = (
        ("workers", f"{replicas} {'worker' if replicas == 1 else 'workers'}"),
        ("end", end),
        ("globalBatchSize", f"global batch {job.spec.global_batch_size}"),
        ("seed", f"seed {training.seed}"),
        ("policy", f"policy {prepared.experiment.policy}"),
    )
    parts = [
        f"{', '.join(words for _, words in alike)} ({source})"
        for source, alike in groupby(said, key=lambda each: by[each[0]])
    ]
    alone = "" if options.script is not None else "; what scripts give to join() counts only outside of jobs"
    return f"{job.metadata.name}: {', '.join(parts)}{alone}"


def crowding(experiment: Experiment, *, of_script: bool) -> str:
    """What is wrong with limits that this machine cannot keep, in a sentence; empty if it can."""
    limits = [limit for limit in limits_of(to_core(experiment.job)).values() if limit is not None]
    cores, wanted = machine_cores(), sum(limits)
    if wanted <= cores:
        return ""
    fitting = [f"{max(math.floor(limit * cores / wanted * 100) / 100, 0.01):g}" for limit in limits]
    alike = [(limit, len(list(same))) for limit, same in groupby(fitting)]
    words = ",".join(limit if count == 1 else f"{count}x{limit}" for limit, count in alike)
    example = f"; --workers {words} would fit" if of_script and len(alike) <= 8 else ""
    return (
        f"The CPU limits add up to {wanted:g} cores, more than the {cores} of this machine: workers slow one another, "
        f"and figures say little of machines of their own{example}"
    )


def _introduce_checkpoints(view: View, experiment: Experiment, options: Options) -> None:
    job = experiment.job
    if experiment.durable is None:
        where = "in the run's folder" if options.out is not None else "temporary: nothing can be resumed"
        view.say(f"Checkpoints are {where} (the job has no spec.checkpoint.path)")
        return
    claim = job.spec.checkpoint.persistent_volume_claim
    stands = f", which stands for the claim {claim}" if claim is not None else ""
    view.say(f"Checkpoints: {experiment.durable}{stands}")
    if options.fresh and checkpoints.steps_in(experiment.durable):
        view.say(f"--fresh: earlier checkpoints were moved to {checkpoints.set_aside(experiment.durable)}")
    if options.resume:
        saved = checkpoints.newest_step(experiment.durable)
        view.say(
            f"Resuming after {saved} steps"
            if saved is not None
            else "There is no checkpoint yet: starting from the beginning",
        )


def ignored_fields(prepared: Prepared) -> list[str]:
    """Fields of the manifest without effect on this machine; fields of pod templates are named once, by their path in
    the pod."""
    in_templates = (path for template in prepared.templates.values() for path in template.ignored)
    paths = list(dict.fromkeys(_IN_POD.sub("", path) for path in in_templates))
    if prepared.experiment.job.spec.metrics.source != "Pods":
        paths.append("spec.metrics.source (the workers themselves are asked)")
    return paths


LAST_LINES = 20
"""Lines of the failing worker's log that are shown at the end of a run."""


def print_outcome(
    console: Console, summary: Summary, failed: FailedWorker | None, *, here: Path, logs: Path, report: Path | None
) -> None:
    """Print the tables, where logs and report are, and at last what came of it: the verdict, or why the run failed."""
    notes = [f"Logs: {_seen_from(here, logs)}", *([] if report is None else [f"Report: {report}"])]
    print_report(console, report_of(summary), notes)
    if failed is not None:
        _print_last_lines(console, failed, here)
    if summary.message:
        colour = "yellow" if summary.phase == INTERRUPTED else "red"
        say(console, f"{summary.job} {summary.phase.lower()}: {summary.message}", colour)


def print_how_to_go_on(
    console: Console, options: Options, experiment: Experiment, results: Sequence[TrialResult]
) -> None:
    """Print how a run that was interrupted, or has failed, is resumed."""
    last = results[-1]
    has_failed = last.history.phase == "Failed" and last.stopped_by is None
    if experiment.durable is None or not (has_failed or last.stopped_by is not None):
        return
    if not has_failed or checkpoints.newest_step(experiment.durable) is not None:
        begin = "Once that is mended, go on with" if has_failed else "Go on with"
        say(console, f"{begin}: {options.how_to_resume()}", "yellow")


def course_of(options: Options, experiment: Experiment, results: Sequence[TrialResult]) -> Course:
    """What the page of a run shows besides its figures."""
    return Course(
        trials=tuple(each for each in results if not each.trial.is_profile),
        profiles=tuple(each for each in results if each.trial.is_profile),
        names=worker_names(to_core(experiment.job)),
        manifest=options.manifest_text(),
        schedule=options.schedule.read_text(encoding="utf-8") if options.schedule is not None else "",
        prices={group.name: group.price_per_hour for group in experiment.job.spec.worker_groups},
    )


def exit_code(results: Sequence[TrialResult]) -> int:
    """What the command returns: the signal that stopped it, or whether all trials ended well."""
    stopped_by = next((result.stopped_by for result in results if result.stopped_by is not None), None)
    if stopped_by is not None:
        return stopped_by.exit_code
    return SUCCEEDED if all(result.history.phase in WELL for result in results) else FAILED


def _print_last_lines(console: Console, failed: FailedWorker, here: Path) -> None:
    """The last lines that the failing worker's script printed, and where all of them are."""
    lines = last_lines(failed.log, LAST_LINES)
    place = _seen_from(here, failed.log)
    say(console, f"The last lines of {failed.name}, all of {place}:" if lines else f"{failed.name} printed nothing")
    for line in lines:
        console.print(Text("  ").append_text(Text.from_ansi(line)), soft_wrap=True)


def _seen_from(here: Path, path: Path) -> Path:
    """A path as short as it can be written from the current folder."""
    return path.relative_to(here) if path.is_relative_to(here) else path


logger = logging.getLogger(__name__)


def run(options: Options, here: Path) -> int:
    """Do what the user asks, and return the exit code.

    Raises ManifestError (nothing was started) with all that is wrong with the input.
    """
    prepared = prepare(options, here)
    console = messages()
    _show_warnings(console)
    try:
        with stop_signals() as stop:
            return _run(options, prepared, console, stop, here)
    except OSError as error:
        say(console, f"the run failed: {error}", "red")
        return FAILED


def _show_warnings(console: Console) -> None:
    """Show what the libraries log; a terminal's table stays whole, and elsewhere a record is one line."""
    if console.is_terminal:
        handler: logging.Handler = RichHandler(console=console, show_path=False)
        logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    else:
        form = "[%(asctime)s] %(levelname)-8s %(message)s"
        logging.basicConfig(level=logging.WARNING, format=form, datefmt="%x %X", stream=sys.stderr)


def _run(options: Options, prepared: Prepared, console: Console, stop: StopSignals, here: Path) -> int:
    experiment = prepared.experiment
    mechanism = detect()
    with _checkpoint_folder(experiment.durable), _run_folder(options.out) as folder:
        logs = runs.begin(here, experiment.job.metadata.name, folder if options.out is not None else None)
        holds = held(logs / MARKER) if options.out is None else nullcontext()
        with holds, View(console, time.monotonic, options.logs) as view, _control(logs) as control:
            placements = placements_of(experiment)
            introduce(view, prepared, options, mechanism, placements[0])
            job_file = JobFile(view, experiment.job, logs)
            results = run_trials(
                experiment,
                folder,
                mechanism=mechanism,
                observer=job_file,
                stop=stop,
                placements=placements,
                logs=logs,
                keeps_checkpoints=experiment.durable is not None or options.out is not None,
                control=control,
            )
        summary = summary_of(
            experiment,
            results,
            mechanism.describe(),
            of_script=options.script is not None,
            provenance=provenance_of(options.words, datetime.now(UTC), here),
        )
        course, report = course_of(options, experiment, results), None
        if options.out is not None:
            kept.keep(folder, summary, course)
            report = kept.draw(folder, summary, course)
        else:
            try:
                kept.keep(logs, summary, course)
            except OSError as error:
                logger.warning("`heterotrain explain` will not find this run: %s: %s", logs, error.strerror)
        job_file.finish(summary)
        print_outcome(console, summary, results[-1].failed, here=here, logs=logs, report=report)
        print_how_to_go_on(console, options, experiment, results)
        if options.as_json:
            print_json(summary.to_json())
        return exit_code(results)


@contextmanager
def _control(folder: Path) -> Iterator[ControlServer | None]:
    """The socket by which `heterotrain chaos` reaches the run; none where the folder's file system has no sockets."""
    try:
        server = ControlServer(folder)
    except OSError as error:
        logger.warning("`heterotrain chaos` cannot reach this run: no socket in %s: %s", folder, error.strerror)
        yield None
        return
    with server:
        yield server


@contextmanager
def _checkpoint_folder(durable: Path | None) -> Iterator[None]:
    """The folder of the checkpoints, if they stay, belongs to this run as long as it lives."""
    if durable is None:
        yield
        return
    with ExitStack() as stack:
        try:
            stack.enter_context(held(durable / LOCK))
        except HeldError as error:
            raise ManifestError([held_by(durable, str(error))]) from error
        except OSError as error:
            why = f"nothing can be written to {durable}: {error.strerror}"
            raise ManifestError([Problem("spec.checkpoint.path", why)]) from error
        yield


@contextmanager
def _run_folder(out: Path | None) -> Iterator[Path]:
    """The folder of a run: the user's, emptied of an earlier run, or one that is gone in the end."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="heterotrain-") as temporary:
            yield Path(temporary)
        return
    with ExitStack() as stack:
        try:
            stack.enter_context(held(out / MARKER))
            folder = cleared(out)
        except HeldError as error:
            raise ManifestError([Problem("--out", f"{out} belongs to {error}; name another folder")]) from error
        except OSError as error:
            raise ManifestError([Problem("--out", f"nothing can be written to {out}: {error.strerror}")]) from error
        yield folder
