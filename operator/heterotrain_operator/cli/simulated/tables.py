"""The end of a simulation on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from heterotrain_operator.cli.fitting import Cell, Column, fitted
from heterotrain_operator.experiments import wording
from heterotrain_operator.experiments.simulations.comparison import Comparison
from heterotrain_operator.experiments.simulations.words import HEADINGS, MEANING, SIMULATED, figures, standstill

COLUMNS = (
    Column("policy", name=True),
    *(Column(heading, rank=rank) for heading, rank in zip(HEADINGS, (0, 3, 1, 2, 4, 5), strict=True)),
)


def comparison_table(found: Comparison, width: int) -> Table:
    """One row per policy."""
    failed = {run.policy for run in found.failed}
    rows: list[dict[str, Cell]] = []
    for each in found.policies:
        name = Text(each.policy, style="red") if each.policy in failed else each.policy
        rows.append({"policy": name, **dict(zip(HEADINGS, figures(each), strict=True))})
    return fitted(COLUMNS, rows, width, title=f"{found.scenario} (simulated)")


def print_comparison(console: Console, found: Comparison) -> None:
    """The table, the batches in the end, and what the figures mean."""
    console.print(comparison_table(found, console.width))
    for each in found.policies:
        if each.batches:
            line = f"{each.policy} ended with batches {wording.batches(each.batches)}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    for each in found.policies:
        if cost := standstill(each):
            console.print(f"{each.policy}: {cost}", markup=False, highlight=False, soft_wrap=True)
    console.print(MEANING, style="dim", markup=False, highlight=False)
    console.print(SIMULATED, style="yellow", markup=False, highlight=False)
