"""Show a job while it runs: a live table on a terminal, plain lines elsewhere; always on standard error.

Plain lines come at every decision and now and then between, so that a log stays readable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from heterotrain_operator.cli.local.live_table import by_rank, plain_line, progress, workers_table
from heterotrain_operator.cli.progress_line import progress_line
from heterotrain_operator.core.model import Decision, Job, Seen, WorkerMetrics
from heterotrain_operator.experiments import wording
from heterotrain_operator.experiments.progress import Pace, reached_steps
from heterotrain_operator.experiments.trials.journal import Entry

PLAIN_EVERY_SECONDS = 10.0


LEAST_ROWS = 3


LINES_AROUND = 8
"""Lines of the live view besides the workers' rows: the table's lines and heading, progress, reason, and some room."""


class View:
    """What the user sees of a run. Use it as a context manager; `now` is a monotonic clock in seconds."""

    def __init__(self, console: Console, now: Callable[[], float]) -> None:
        self._console = console
        self._now = now
        self._live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None
        self._job: Job | None = None
        self._title = ""
        self._endless = False
        self._pace = Pace()
        self._said_at = float("-inf")
        self._known: dict[str, WorkerMetrics] = {}

    def __enter__(self) -> View:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clear()
        if self._live is not None:
            self._live.stop()

    def say(self, text: str, style: str = "") -> None:
        """One line that stays."""
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def script_says(self, worker: str, lines: Sequence[str]) -> None:
        """Lines that a worker's script has printed; colours stay, other control sequences would tear the table."""
        printed = [Text.assemble((f"{worker} | ", "dim"), Text.from_ansi(line)) for line in lines]
        self._console.print(Text("\n").join(printed), soft_wrap=True)

    def begin(self, title: str, job: Job, *, position: str = "", endless: bool = False) -> None:
        """A new trial starts, in a `position` among several; an endless one shows no end."""
        self._title, self._job, self._endless, self._pace = title, job, endless, Pace()
        self._said_at = self._now()
        self._known = {}
        place = f" ({position})" if position else ""
        self.say(f"{title}{place}", style="bold")

    def clear(self) -> None:
        """Remove the live view: nothing runs now."""
        if self._live is not None:
            self._live.update(Text(""), refresh=True)

    def show(self, seen: Seen, decision: Decision, entry: Entry | None) -> None:
        """One round of the loop: what was seen and decided; `entry` if it is worth a line that stays."""
        moment = self._now()
        seen = self._with_last_figures(seen)
        self._pace.note(moment, reached_steps(seen))
        if entry is not None:
            self._print(entry)
        if self._live is not None:
            self._live.update(self._render(seen, decision), refresh=True)
        elif self._job is not None and moment - self._said_at >= PLAIN_EVERY_SECONDS:
            self._said_at = moment
            self.say(
                plain_line(self._title, self._job, seen, self._pace, reason=decision.reason, endless=self._endless)
            )

    def _with_last_figures(self, seen: Seen) -> Seen:
        """Workers that have ended report nothing any more; what they reported last still shows how the job went."""
        self._known |= {w.uid: replace(w.metrics, phase="") for w in seen.workers if w.metrics is not None}
        workers = (w if w.metrics is not None else replace(w, metrics=self._known.get(w.uid)) for w in seen.workers)
        return replace(seen, workers=tuple(workers))

    def _print(self, entry: Entry) -> None:
        where = f"{self._title}, step {entry.step}"
        for event in entry.events:
            style = "yellow" if event.kind == "Warning" else "cyan"
            self.say(f"{where}: {event.reason}: {event.message}", style=style)
        if entry.version is not None and not entry.events:
            batches = wording.batches(entry.batches)
            self.say(f"{where}: plan {entry.version}, batches {batches}: {entry.reason}", style="cyan")

    def _render(self, seen: Seen, decision: Decision) -> RenderableType:
        if self._job is None:
            return Text("")
        reached = progress(seen, self._pace, endless=self._endless)
        width, most = self._console.width, max(self._console.height - LINES_AROUND, LEAST_ROWS)
        reason = Text(decision.reason, style="dim", overflow="ellipsis", no_wrap=True)
        table = workers_table(self._job, seen, self._pace, dict(decision.batch_limits), width=width, most=most)
        hidden = len(by_rank(self._job, seen)) - most
        more = [Text(f"and {hidden} more workers", style="dim")] if hidden > 0 else []
        return Group(table, *more, progress_line(self._title, reached, width), reason)
