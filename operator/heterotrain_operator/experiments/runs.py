"""Folders of runs: that of --out, what the next run may replace of it, and where the newest runs' logs are kept."""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from heterotrain_operator.api import Problem
from heterotrain_operator.experiments.locks import holder_of

MARKER = ".heterotrain-run"
"""In a folder that an earlier run made; only such a one is ever replaced. A run locks it while it lives."""

WRITTEN = (
    "*.png",
    "*.jsonl",
    "summary.json",
    "results.json",
    "manifest.yaml",
    "scenario.yaml",
    "schedule.yaml",
    "report.html",
    "trace.json",
    "job.json",
)
TRIALS = "arms"
"""The folder of the trials' own files, by its former name, which other programs know."""


def cleared(out: Path) -> Path:
    """Make the folder, remove what an earlier run has left in it, and return its absolute path. Raises OSError."""
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).touch()
    shutil.rmtree(out / TRIALS, ignore_errors=True)
    for pattern in WRITTEN:
        for path in out.glob(pattern):
            path.unlink()
    return out.absolute()


logger = logging.getLogger(__name__)

RUNS = Path(".heterotrain") / "runs"
"""Below the current folder: for each job a folder, and in it for each run a folder, or a link to that of --out."""
KEPT = 10
"""Runs of one job whose logs are kept."""

_MOMENT = re.compile(r"\d{8}T\d{12}")
_WORKERS, _LOG = "workers", "log"


def log_folder(run: Path, slug: str) -> Path:
    """The folder of the logs of one trial of a run; a worker's is `<name>/log` in it."""
    return run / TRIALS / slug / _WORKERS


SUBMITTED = "-submitted"
"""The end of the name of a folder beside that of a run: what was submitted from Python, and what the run printed."""


def run_folder(here: Path, job: str, moment: datetime) -> Path:
    """The folder of a run that begins now, which is not made yet."""
    return here / RUNS / job / f"{moment:%Y%m%dT%H%M%S%f}"


def begin(here: Path, job: str, out: Path | None, now: datetime | None = None) -> Path:
    """Enter a new run of a job, and return the folder of its logs: `out` if the user named one.

    Logs of all but the newest runs and of those that live are removed; what lies in a folder of --out never is.
    """
    moment = datetime.now(UTC) if now is None else now
    entry = run_folder(here, job, moment)
    runs = entry.parent
    if out is not None and out.absolute().parent == runs.absolute():
        entry = out  # made by somebody who wants the report where the logs are
    try:
        runs.mkdir(parents=True, exist_ok=True)
        if entry == out:
            out.mkdir(exist_ok=True)
        elif out is None:
            entry.mkdir()
        else:
            entry.symlink_to(out.absolute(), target_is_directory=True)
    except OSError as error:
        if out is not None:
            logger.warning("`heterotrain logs` will not find this run, for %s: %s", runs, error.strerror)
            return out
        kept = Path(tempfile.mkdtemp(prefix="heterotrain-logs-"))
        logger.warning("logs cannot be kept in %s: %s; they are in %s", runs, error.strerror, kept)
        return kept
    _forget(old for old in _entries(runs)[:-KEPT] if not holder_of(old / MARKER))
    return entry if out is None else out


def _entries(runs: Path) -> list[Path]:
    """The entries that `begin` made; other files in the folder are left alone."""
    return sorted(entry for entry in runs.iterdir() if _MOMENT.fullmatch(entry.name)) if runs.is_dir() else []


def _forget(entries: Iterable[Path]) -> None:
    for entry in entries:
        shutil.rmtree(entry.with_name(f"{entry.name}{SUBMITTED}"), ignore_errors=True)
        if entry.is_symlink():
            entry.unlink(missing_ok=True)
        else:
            shutil.rmtree(entry, ignore_errors=True)


def entries(here: Path, job: str) -> list[Path]:
    """The folders of a job's runs, newest last, including those of which nothing is left."""
    return _entries(here / RUNS / job)


def with_something(here: Path, job: str) -> list[Path]:
    """The folders of a job's runs of which something is left, newest last."""
    return [entry for entry in _entries(here / RUNS / job) if (entry / TRIALS).is_dir()]


def began(entry: Path) -> datetime:
    """When the run of one of these entries began."""
    return datetime.strptime(entry.name, "%Y%m%dT%H%M%S%f").replace(tzinfo=UTC)


def find(here: Path, word: str) -> Path | None:
    """The folder of the run that is meant: the newest of a job of that name, or a run by its own folder."""
    own = with_something(here, word) if os.sep not in word else []
    if own:
        return own[-1]
    folder = here / word
    return folder if (folder / TRIALS).is_dir() else None


def jobs(here: Path) -> list[str]:
    """The jobs that were run here."""
    runs = here / RUNS
    return sorted(entry.name for entry in runs.iterdir()) if runs.is_dir() else []


@dataclass(frozen=True, slots=True)
class TrialLogs:
    """The logs of one trial, by worker, in the order of their groups' names and indices."""

    slug: str
    workers: dict[str, Path]
    newest: float


def trials(run: Path) -> list[TrialLogs]:
    """The trials of a run that have logs, the one written to last at the end."""
    found = []
    for folder in sorted((run / TRIALS).iterdir()):
        logs = {log.parent.name: log for log in sorted((folder / _WORKERS).glob(f"*/{_LOG}"), key=_by_index)}
        if logs:
            found.append(TrialLogs(folder.name, logs, max(log.stat().st_mtime for log in logs.values())))
    return sorted(found, key=lambda trial: trial.newest)


def _by_index(log: Path) -> tuple[str, int]:
    group, _, index = log.parent.name.rpartition("-")
    return (group, int(index)) if index.isdecimal() else (log.parent.name, 0)


def hindrance_of(folder: Path) -> str:
    """Why a folder cannot be written to or made, empty if it can."""
    there = folder.absolute()
    try:
        while not there.exists():
            there = there.parent
        usable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    except OSError as error:
        return f"{there}: {error.strerror}"
    return "" if usable else str(there)


def out_problems(out: Path, *, fresh: bool) -> Iterator[Problem]:
    """Why a run may not write into a folder; with `fresh` it may replace an earlier one."""
    hindrance = hindrance_of(out)
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
    elif holder := holder_of(out / MARKER):
        yield Problem("--out", f"{out} belongs to {holder}; name another folder")
    elif not fresh:
        yield Problem("--out", f"{out} holds an earlier run; name another folder, or replace it with --fresh")
