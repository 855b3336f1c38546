"""A worker's last windows one by one, for policies that look back; others remember none.

What everything else remembers of own times are averages (`step_time.py`), which do not say what came after what.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from heterotrain_operator.core.columns import Column, cut_all, maker
from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.core.prediction.resource_use import ResourceUse, spent_in
from heterotrain_operator.core.prediction.step_time import Estimate

UNKNOWN = -1.0
"""Stands for a share that the worker's kernel or limits do not tell."""

DIGITS = 4
"""Kept of every number: below what any window is certain to."""


class Window(NamedTuple):
    """The mean own seconds of a step over one control interval, and its samples. `cpu_share` is CPU seconds per own
    second and core of the limit, `memory_share` the used part of the memory limit; `UNKNOWN` where nothing tells.
    """

    seconds: float
    batch: float
    cpu_share: float
    memory_share: float

    @property
    def speed(self) -> float:
        """Samples per own second."""
        return self.batch / self.seconds


WIDTH = len(Window._fields)
_window = maker(Window)


class Series(NamedTuple):
    """The last windows, oldest first, as one row of numbers."""

    numbers: Annotated[tuple[float, ...], Column(62)] = ()

    @property
    def windows(self) -> tuple[Window, ...]:
        """Oldest first; none of numbers that no windows have left."""
        rows = tuple(map(_window, zip(*[iter(self.numbers)] * WIDTH, strict=False)))
        return rows if all(seconds > 0 and batch > 0 for seconds, batch, _, _ in rows) else ()

    def followed_by(self, window: Window, keep: int) -> Series:
        """With one window more, and of them all the last `keep`."""
        return Series((*self.numbers, *cut_all(window, DIGITS))[-keep * WIDTH :]) if keep > 0 else Series()


def window_seen(
    use: ResourceUse, metrics: WorkerMetrics, window: Estimate, batch: int, cpu_limit: float | None
) -> Window:
    """The window as a series keeps it; `use` is what was remembered of the worker when it began."""
    spent = spent_in(use, metrics, window)
    cpu = UNKNOWN
    if spent is not None and spent.cpu is not None and cpu_limit is not None and cpu_limit > 0:
        cpu = _share(spent.cpu / (window.mean_seconds * cpu_limit))
    memory = UNKNOWN
    if metrics.memory_bytes is not None and metrics.memory_limit_bytes:
        memory = _share(metrics.memory_bytes / metrics.memory_limit_bytes)
    return Window(window.mean_seconds, batch, cpu, memory)


MOST_ABOVE = 1.05
"""A share above 1 by less than counters err by is 1; what is above that is none."""


def _share(value: float) -> float:
    return min(value, 1.0) if 0 <= value <= MOST_ABOVE else UNKNOWN
