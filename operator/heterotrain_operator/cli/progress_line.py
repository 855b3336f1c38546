"""How far something has come, in one line with a bar."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from heterotrain_operator.experiments import wording

BAR_WIDTH = 40


LEAST_BAR_WIDTH = 8


@dataclass(frozen=True, slots=True)
class Progress:
    """Committed steps, those of the whole job (0: unknown or endless), and the seconds left."""

    steps: int
    total: int
    seconds_left: float | None

    def __str__(self) -> str:
        return f"step {self.steps}/{self.total}" if self.total else f"step {self.steps}"


def progress_line(title: str, reached: Progress, width: int) -> Table:
    """The title, a bar and how far it is, in one line of `width` columns: the bar gives way, then the title."""
    left = "" if reached.seconds_left is None else f"{wording.clock(reached.seconds_left)} left"
    figures = "  ".join(filter(None, [str(reached), left]))
    bar = min(width - cell_len(title) - cell_len(figures) - 2, BAR_WIDTH)
    line = Table.grid(padding=(0, 1, 0, 0))
    name = Text(title, style="bold", overflow="ellipsis", no_wrap=True)
    for _ in range(3 if bar >= LEAST_BAR_WIDTH else 2):
        line.add_column(no_wrap=True)
    if bar >= LEAST_BAR_WIDTH:
        done = reached.steps if reached.total else 0
        line.add_row(name, ProgressBar(total=reached.total or 1, completed=done, width=bar), figures)
    else:
        name.truncate(max(width - cell_len(figures) - 1, 1), overflow="ellipsis")
        line.add_row(name, figures)
    return line
