"""Runs on this machine that are over: list them, and explain or draw one from what it has left."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path

from heterotrain_operator.api.problems import did_you_mean
from heterotrain_operator.cli import BAD_INPUT, FAILED, SUCCEEDED
from heterotrain_operator.cli.terminal import output, print_json, print_report
from heterotrain_operator.experiments import runs, wording
from heterotrain_operator.experiments.control import is_running
from heterotrain_operator.experiments.figures.summary import Summary
from heterotrain_operator.experiments.report import kept, trace
from heterotrain_operator.experiments.report.trials import report_of
from heterotrain_operator.experiments.report.value import Column, Report, Section, Sentence, Table, Tone
from heterotrain_operator.experiments.trials.observer import Entry

MOST_DECISIONS = 200
"""Decisions of a trial that are shown, the last ones."""


def explain_run(folder: Path, *, trial: str | None, program: str, as_json: bool = False) -> int:
    """Print what came of a run and why its batches were what they were. Returns the exit code."""
    try:
        summary, decisions = kept.read(folder)
    except (OSError, ValueError) as error:
        return _left_nothing(folder, error, f"{program} explain", program)
    if trial is not None and trial not in decisions:
        sys.stderr.write(
            f"{program} explain: the run in {folder} has no trial {trial!r}; it has {', '.join(decisions)}"
            f"{did_you_mean(trial, decisions)}\n"
        )
        return BAD_INPUT
    sys.stderr.write(f"From the run in {folder}\n")
    shown = {slug: entries for slug, entries in decisions.items() if trial in (None, slug)}
    if as_json:
        courses = {slug: [asdict(entry) for entry in entries] for slug, entries in shown.items()}
        print_json({**summary.to_json(), "decisions": courses})
        return SUCCEEDED
    print_report(output(), explanation(summary, shown))
    if summary.message:
        sys.stdout.write(f"{summary.job} {summary.phase.lower()}: {summary.message}\n")
    return SUCCEEDED


def _left_nothing(folder: Path, error: Exception, who: str, program: str) -> int:
    unknown = not isinstance(error, FileNotFoundError)
    why = "is not over yet" if is_running(folder) else f"has left no figures{f' ({error})' if unknown else ''}"
    sys.stderr.write(f"{who}: the run in {folder} {why}; `{program} logs` has what it printed\n")
    return FAILED


def write_report(here: Path, word: str, program: str, *, as_json: bool) -> int:
    """Write the page and the trace of a run into its folder, and print where they are. Returns the exit code."""
    folder = runs.find(here, word)
    if folder is None:
        return _no_run(here, word, f"{program} report")
    try:
        page = kept.draw(folder, *kept.read_course(folder))
    except (OSError, ValueError) as error:
        return _left_nothing(folder, error, f"{program} report", program)
    if as_json:
        print_json({"report": str(page), "trace": str(folder / trace.NAME)})
    else:
        sys.stdout.write(f"{page}\n")
    return SUCCEEDED


def _no_run(here: Path, word: str, who: str) -> int:
    known = runs.jobs(here)
    near = did_you_mean(word, known) or f"; there are runs of {', '.join(known) or 'none'}"
    sys.stderr.write(f"{who}: no run of job {word!r} in this folder{near}\n")
    return BAD_INPUT


def explanation(summary: Summary, decisions: dict[str, tuple[Entry, ...]]) -> Report:
    """The report of a run with the course of its decisions."""
    report = report_of(summary)
    courses = [Section(slug, _course(slug, entries)) for slug, entries in decisions.items()]
    return replace(report, sections=(*report.sections, *courses))


def _course(slug: str, entries: Sequence[Entry]) -> tuple[Sentence, ...]:
    hidden = len(entries) - MOST_DECISIONS
    title = f"What happened in {slug}{f', without the first {hidden} decisions' if hidden > 0 else ''}:"
    return (Sentence(title, Tone.LEAD), *(Sentence(_told(entry)) for entry in entries[-MOST_DECISIONS:]))


def _told(entry: Entry) -> str:
    why = "; ".join(f"{event.reason}: {event.message}" for event in entry.events) or entry.reason
    plan = "" if entry.version is None else f"plan {entry.version}, batches {wording.batches(entry.batches)}: "
    return f"step {entry.step}, after {wording.clock(entry.seconds)}: {plan}{why}"


@dataclass(frozen=True, slots=True)
class Listed:
    """A run in the list: its job, when it began, how it ended, its policies, its steps and its folder."""

    job: str
    began: datetime
    ended: str
    policies: str
    steps: int | None
    folder: str


COLUMNS = (
    Column("job", lambda run: run.job, name=True),
    Column("began", lambda run: run.began, lambda began: f"{began.astimezone():%Y-%m-%d %H:%M}", left=True),
    Column("ended", lambda run: run.ended, left=True),
    Column("policies", lambda run: run.policies or None, left=True, rank=2),
    Column("steps", lambda run: run.steps, rank=1),
    Column("folder", lambda run: run.folder, left=True),
)


def list_runs(here: Path, job: str | None, program: str, *, as_json: bool = False) -> int:
    """Print the runs in a folder, those of one job if it is named. Returns the exit code."""
    known = runs.jobs(here)
    if job is not None and job not in known:
        return _no_run(here, job, f"{program} runs")
    names = known if job is None else [job]
    listed = tuple(_listed(here, name, entry) for name in names for entry in runs.with_something(here, name))
    if as_json:
        print_json([asdict(run) for run in listed])
        return SUCCEEDED
    if not listed:
        sys.stderr.write(f"There are no runs in this folder; `{program} run SCRIPT.py` makes one\n")
        return SUCCEEDED
    print_report(output(), Report("Runs", "runs", (), (Section("Runs", (Table(COLUMNS, listed),)),)))
    return SUCCEEDED


def _listed(here: Path, job: str, entry: Path) -> Listed:
    began = runs.began(entry)
    folder = entry.resolve() if entry.is_symlink() else entry
    place = str(folder.relative_to(here)) if folder.is_relative_to(here) else str(folder)
    try:
        summary, _ = kept.read(folder)
    except (OSError, ValueError):
        return Listed(job, began, "running" if is_running(folder) else "unknown", "", None, place)
    own = summary.trials[0] if summary.trials else None
    policies = _once(trial.policy for trial in summary.trials)
    return Listed(job, began, summary.phase, policies, own.steps if own else None, place)


def _once(words: Iterable[str]) -> str:
    return ",".join(dict.fromkeys(words))
