"""The tables at the end of a run, for the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from heterotrain_operator.cli import wording
from heterotrain_operator.cli.summary import Summary


def arms_table(summary: Summary) -> Table:
    """One row per arm."""
    with_ceiling = any(arm.ceiling_fraction is not None for arm in summary.arms)
    with_target = any(arm.target_seconds is not None for arm in summary.arms)
    table = Table(title=summary.job, title_justify="left")
    table.add_column("policy")
    for heading in ("steps", "time", "samples/s", "iteration", "adjustments", "final loss"):
        table.add_column(heading, justify="right")
    if with_target:
        table.add_column("to target", justify="right")
    if with_ceiling:
        table.add_column("of ceiling", justify="right")
    rounds = wording.rounds_of(summary.arms)
    for arm in summary.arms:
        name = wording.title(arm, rounds)
        row = [
            name if arm.phase == "Succeeded" else f"[red]{name}: {arm.phase}[/red]",
            str(arm.steps),
            wording.seconds(arm.seconds),
            wording.rate(arm.samples_per_second),
            wording.seconds(arm.iteration_seconds),
            str(arm.adjustments),
            wording.loss(arm.final_loss),
        ]
        if with_target:
            row.append(wording.seconds(arm.target_seconds))
        if with_ceiling:
            row.append(wording.percent(arm.ceiling_fraction))
        table.add_row(*row)
    return table


def workers_table(summary: Summary) -> Table:
    """One row per worker, for every arm its batch, own time and share of waiting after the last adjustment."""
    table = Table()
    table.add_column("worker")
    rounds = wording.rounds_of(summary.arms)
    for arm in summary.arms:
        table.add_column(f"{wording.title(arm, rounds)}\nbatch", justify="right", vertical="bottom")
        table.add_column("own time", justify="right", vertical="bottom")
        table.add_column("waiting", justify="right", vertical="bottom")
    for workers in zip(*(arm.worker for arm in summary.arms), strict=True):
        cells = [(str(w.batch), wording.seconds(w.settled_own_seconds), wording.percent(w.wait_share)) for w in workers]
        table.add_row(workers[0].name, *(cell for group in cells for cell in group))
    return table


def phases_table(summary: Summary) -> Table:
    """One row per arm and phase between changes of CPU limits."""
    table = Table()
    table.add_column("policy")
    table.add_column("CPU limits")
    for heading in wording.PHASE_FIGURES:
        table.add_column(heading, justify="right")
    rounds = wording.rounds_of(summary.arms)
    for arm in summary.arms:
        for phase in arm.phases:
            table.add_row(wording.title(arm, rounds), phase.label, *wording.phase_figures(phase))
    return table


def print_summary(console: Console, summary: Summary) -> None:
    """The tables, what they mean in words, and what is doubtful about it."""
    if any(arm.steps for arm in summary.arms):
        console.print(arms_table(summary))
        console.print(workers_table(summary))
    if any(arm.phases for arm in summary.arms):
        console.print(phases_table(summary))
    for found in summary.speedup:
        console.print(wording.speedup(found), style="bold", highlight=False, soft_wrap=True)
    for line in wording.ceilings(summary):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for warning in summary.warnings:
        console.print(f"Doubtful: {warning}", style="yellow", markup=False, highlight=False, soft_wrap=True)
