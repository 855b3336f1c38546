"""The tables at the end of a run."""

from __future__ import annotations

import io

from rich.console import Console

from heterotrain_operator.cli.local.tables import trials_table
from heterotrain_operator.experiments.figures.summary import summarize
from unit.experiments.test_summary import BOUNDS, NAMES, evaluated_trial, uniform_trial


def test_table_has_what_was_evaluated_last():
    found = summarize("j", (evaluated_trial(), uniform_trial()), NAMES, bounds=BOUNDS)
    console = Console(file=io.StringIO(), width=120)
    console.print(trials_table(found, 120))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    heading = [cell.strip() for cell in next(line for line in lines if "accuracy" in line).strip("┃").split("┃")]
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    accuracy, f1 = heading.index("accuracy"), heading.index("f1")
    assert [(row[accuracy], row[f1]) for row in rows] == [("0.9753", "nan"), ("-", "-")]
