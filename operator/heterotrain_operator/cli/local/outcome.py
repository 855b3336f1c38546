"""What the user reads, and what is kept, when a run has ended."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from heterotrain_operator.api import to_core
from heterotrain_operator.cli.exit_codes import FAILED, SUCCEEDED
from heterotrain_operator.cli.local.log_tail import last_lines
from heterotrain_operator.cli.local.options import Options
from heterotrain_operator.cli.local.tables import print_summary
from heterotrain_operator.cli.version import package_version
from heterotrain_operator.clusters.local.limits import machine_cores
from heterotrain_operator.experiments.experiment import Experiment
from heterotrain_operator.experiments.figures.history import WELL
from heterotrain_operator.experiments.figures.summary import Summary
from heterotrain_operator.experiments.trials.ending import INTERRUPTED
from heterotrain_operator.experiments.trials.result import FailedWorker, TrialResult
from heterotrain_operator.experiments.trials.workers import worker_names

LAST_LINES = 20
"""Lines of the failing worker's log that are shown at the end of a run."""


def print_outcome(console: Console, summary: Summary, failed: FailedWorker | None, *, here: Path, logs: Path) -> None:
    """Print the tables, why the run failed if it did, and where its logs are."""
    print_summary(console, summary)
    if failed is not None:
        _print_last_lines(console, failed, here)
    if summary.message:
        colour = "yellow" if summary.phase == INTERRUPTED else "red"
        _say(console, f"{summary.job} {summary.phase.lower()}: {summary.message}", colour)
    _say(console, f"Logs: {_seen_from(here, logs)}")


def print_what_is_kept(
    console: Console, options: Options, experiment: Experiment, results: Sequence[TrialResult], report: Path | None
) -> None:
    """Print where the report is, and how an interrupted run is resumed."""
    if report is not None:
        _say(console, f"Report: {report}")
    if results[-1].stopped_by is not None and experiment.durable is not None:
        _say(console, f"Go on with: {shlex.join(options.words_to_resume())}", "yellow")


def print_json(summary: Summary) -> None:
    """Print the summary on standard output."""
    sys.stdout.write(json.dumps(summary.to_json(), indent=2, allow_nan=False) + "\n")
    sys.stdout.flush()


def write_report(
    folder: Path, options: Options, experiment: Experiment, results: Sequence[TrialResult], summary: Summary
) -> Path:
    """Write the report into the folder of `--out`; returns the page's path. Raises OSError."""
    # Drawing costs a second of imports that a run without a report does not need.
    from heterotrain_operator.experiments.report import contents, files  # noqa: PLC0415

    return files.write(
        folder,
        contents.ReportContents(
            summary=summary,
            trials=tuple(each for each in results if not each.trial.is_profile),
            profiles=tuple(each for each in results if each.trial.is_profile),
            names=worker_names(to_core(experiment.job)),
            manifest=options.manifest_text(),
            facts=contents.Facts(machine_cores(), summary.limits, package_version()),
            schedule=options.schedule.read_text(encoding="utf-8") if options.schedule is not None else "",
        ),
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
    _say(console, f"The last lines of {failed.name}, all of {place}:" if lines else f"{failed.name} printed nothing")
    for line in lines:
        console.print(Text("  ").append_text(Text.from_ansi(line)), soft_wrap=True)


def _seen_from(here: Path, path: Path) -> Path:
    """A path as short as it can be written from the current folder."""
    return path.relative_to(here) if path.is_relative_to(here) else path


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
