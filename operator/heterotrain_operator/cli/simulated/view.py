"""Show simulations while they run: a line with a bar on a terminal, plain lines elsewhere; always on standard error."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from heterotrain_operator.cli.progress_line import Progress, progress_line
from heterotrain_operator.experiments.simulations.comparison import RunFigures

PLAIN_EVERY_SECONDS = 10.0
DRAWN_EVERY_SECONDS = 0.1


class SimulationView:
    """What the user sees meanwhile. Use it as a context manager; `now` is a monotonic clock in seconds."""

    def __init__(self, console: Console, now: Callable[[], float], runs: int, steps: int) -> None:
        """There will be so many runs, of so many steps each."""
        self._console, self._now = console, now
        self._live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None
        self._steps, self._runs = steps, runs
        self._title = ""
        self._done = 0
        self._began = now()
        self._printed_at = self._drawn_at = now()

    def __enter__(self) -> SimulationView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(Text(""), refresh=True)
            self._live.stop()

    def say(self, text: str, style: str = "") -> None:
        """One line that stays."""
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def begin(self, title: str) -> None:
        """A run begins."""
        self._title = title

    def progress(self, steps: int) -> None:
        """The run has executed so many steps. It is called after every round, and often does nothing."""
        moment = self._now()
        if self._live is not None:
            if moment - self._drawn_at >= DRAWN_EVERY_SECONDS:
                self._drawn_at = moment
                line = progress_line(self._title, self._reached(steps, moment), self._console.width)
                self._live.update(line, refresh=True)
        elif moment - self._printed_at >= PLAIN_EVERY_SECONDS:
            self._printed_at = moment
            self.say(f"{self._title}: {self._reached(steps, moment)}")

    def end(self, run: RunFigures) -> None:
        """The run is over."""
        self._done += 1
        if run.message:
            self.say(f"{self._title} {run.phase.lower()}: {run.message}", style="red")

    def _reached(self, steps: int, moment: float) -> Progress:
        """Of all runs, since each takes about as long as the others."""
        total = self._runs * self._steps
        done = self._done * self._steps + min(steps, self._steps)
        left = (moment - self._began) / done * (total - done) if done else None
        return Progress(done, total, left)
