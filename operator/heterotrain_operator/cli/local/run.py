"""`heterotrain run`: check everything, say what will run, run it, and say what came of it."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.logging import RichHandler

from heterotrain_operator.api import ManifestError, Problem
from heterotrain_operator.cli.exit_codes import FAILED
from heterotrain_operator.cli.local.checks import Prepared, prepare
from heterotrain_operator.cli.local.introduction import introduce
from heterotrain_operator.cli.local.live import View
from heterotrain_operator.cli.local.observer import TerminalObserver
from heterotrain_operator.cli.local.options import Options
from heterotrain_operator.cli.local.outcome import (
    exit_code,
    print_json,
    print_outcome,
    print_what_is_kept,
    write_report,
)
from heterotrain_operator.clusters.local.limits import detect
from heterotrain_operator.experiments import runs
from heterotrain_operator.experiments.control import ControlServer
from heterotrain_operator.experiments.experiment import placements_of, run_trials, summary_of
from heterotrain_operator.experiments.folder import cleared
from heterotrain_operator.experiments.trials.stop import StopSignals, stop_signals

logger = logging.getLogger(__name__)

PLAIN_WIDTH = 120
"""Columns of the tables where standard error is no terminal."""


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
    experiment = prepared.experiment
    mechanism = detect()
    with _run_folder(options.out) as folder:
        logs = runs.begin(here, experiment.job.metadata.name, folder if options.out is not None else None)
        with View(console, time.monotonic) as view, _control(logs) as control:
            placements = placements_of(experiment)
            introduce(view, prepared, options, mechanism, placements[0])
            results = run_trials(
                experiment,
                folder,
                mechanism=mechanism,
                observer=TerminalObserver(view, options.logs),
                stop=stop,
                placements=placements,
                logs=logs,
                keeps_checkpoints=experiment.durable is not None or options.out is not None,
                control=control,
            )
        summary = summary_of(experiment, results, mechanism.describe())
        print_outcome(console, summary, results[-1].failed, here=here, logs=logs)
        report = write_report(folder, options, experiment, results, summary) if options.out is not None else None
        print_what_is_kept(console, options, experiment, results, report)
        if options.as_json:
            print_json(summary)
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
def _run_folder(out: Path | None) -> Iterator[Path]:
    """The folder of a run: the user's, emptied of an earlier run, or one that is gone in the end."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="heterotrain-") as temporary:
            yield Path(temporary)
        return
    try:
        folder = cleared(out)
    except OSError as error:
        raise ManifestError([Problem("--out", f"nothing can be written to {out}: {error.strerror}")]) from error
    yield folder
