"""The tables at the end of a run, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from heterotrain_operator.cli.fitting import Cell, Column, fits, fitted
from heterotrain_operator.experiments import sentences, wording
from heterotrain_operator.experiments.figures.summary import Summary
from heterotrain_operator.experiments.figures.trial_summary import TrialSummary

METRICS = 4
"""Metrics of a script's evaluations that the table shows; `--json` and the report have all."""
TRIAL_COLUMNS = (
    Column("policy", name=True),
    Column("steps", rank=5),
    Column("time", rank=1),
    Column("samples/s", rank=2),
    Column("iteration", rank=3),
    Column("adjustments", rank=7),
    Column("final loss", rank=6),
    Column("to target", rank=4),
    Column("of ceiling", rank=2),
)
PHASE_COLUMNS = (
    Column("policy", name=True),
    Column("CPU limits", left=True),
    *(Column(heading, rank=rank) for heading, rank in zip(sentences.PHASE_FIGURES, (4, 5, 2, 1, 6, 0, 3), strict=True)),
)
"""The column with the share of the ceiling is never left out."""


def trials_table(summary: Summary, width: int) -> Table:
    """One row per trial; what its script evaluated last is in it, too."""
    with_ceiling = any(trial.ceiling_fraction is not None for trial in summary.trials)
    with_target = any(trial.target_seconds is not None for trial in summary.trials)
    absent = {heading for heading, known in (("to target", with_target), ("of ceiling", with_ceiling)) if not known}
    rounds = sentences.rounds_of(summary.trials)
    measured = sentences.metrics_of(summary.trials)[:METRICS]
    rows: list[dict[str, Cell]] = []
    for trial in summary.trials:
        name = sentences.title(trial, rounds)
        row: dict[str, Cell] = {
            "policy": name if trial.phase == "Succeeded" else Text(f"{name}: {trial.phase}", style="red"),
            "steps": str(trial.steps),
            "time": wording.seconds(trial.seconds),
            "samples/s": wording.rate(trial.samples_per_second),
            "iteration": wording.seconds(trial.iteration_seconds),
            "adjustments": str(trial.adjustments),
            "final loss": wording.loss(trial.final_loss),
            "to target": wording.seconds(trial.target_seconds),
            "of ceiling": wording.percent(trial.ceiling_fraction),
        }
        row |= {f"evaluated {name}": wording.loss(trial.measured.get(name)) for name in measured}
        rows.append(row)
    shown = [column for column in TRIAL_COLUMNS if column.heading not in absent]
    shown += [Column(name, rank=2, least=6, key=f"evaluated {name}") for name in measured]
    return fitted(shown, rows, width, title=summary.job)


def workers_tables(summary: Summary, width: int) -> list[Table]:
    """One row per worker, for every trial its batch, own time and share of waiting after the last adjustment; as many
    trials side by side as there is room for, the others below.
    """
    rounds = sentences.rounds_of(summary.trials)
    tables: list[Table] = []
    trials = list(summary.trials)
    while trials:
        beside = next((number for number in range(len(trials), 1, -1) if _fits(trials[:number], rounds, width)), 1)
        tables.append(fitted(*_of_workers(trials[:beside], rounds), width))
        trials = trials[beside:]
    return tables


def _fits(trials: Sequence[TrialSummary], rounds: int, width: int) -> bool:
    return fits(*_of_workers(trials, rounds), width)


def _of_workers(trials: Sequence[TrialSummary], rounds: int) -> tuple[list[Column], list[dict[str, Cell]]]:
    columns = [Column("worker", name=True)]
    for number, trial in enumerate(trials):
        columns += [
            Column(f"{sentences.title(trial, rounds)}\nbatch", key=f"batch {number}"),
            Column("own time", rank=1, key=f"own {number}"),
            Column("waiting", rank=2, key=f"waiting {number}"),
        ]
    rows: list[dict[str, Cell]] = []
    for workers in zip(*(trial.worker for trial in trials), strict=True):
        row: dict[str, Cell] = {"worker": workers[0].name}
        for number, worker in enumerate(workers):
            row[f"batch {number}"] = str(worker.batch)
            row[f"own {number}"] = wording.seconds(worker.settled_own_seconds)
            row[f"waiting {number}"] = wording.percent(worker.wait_share)
        rows.append(row)
    return columns, rows


def phases_table(summary: Summary, width: int) -> Table:
    """One row per trial and phase between changes of CPU limits."""
    rounds = sentences.rounds_of(summary.trials)
    rows: list[dict[str, Cell]] = [
        {
            "policy": sentences.title(trial, rounds),
            "CPU limits": phase.label,
            **dict(zip(sentences.PHASE_FIGURES, sentences.phase_figures(phase), strict=True)),
        }
        for trial in summary.trials
        for phase in trial.phases
    ]
    return fitted(PHASE_COLUMNS, rows, width)


def print_summary(console: Console, summary: Summary) -> None:
    """The tables, what they mean in words, and what is doubtful about it."""
    if any(trial.steps for trial in summary.trials):
        console.print(trials_table(summary, console.width))
        for table in workers_tables(summary, console.width):
            console.print(table)
    if any(trial.phases for trial in summary.trials):
        console.print(phases_table(summary, console.width))
    for found in summary.speedup:
        console.print(sentences.speedup(found), style="bold", highlight=False, soft_wrap=True)
    for line in sentences.ceilings(summary):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for warning in summary.warnings:
        console.print(f"Doubtful: {warning}", style="yellow", markup=False, highlight=False, soft_wrap=True)
