"""Show a job while it runs: a live table on a terminal, plain lines elsewhere; always on standard error.

Plain lines come at every decision and now and then between, so that a log stays readable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from heterotrain_operator.cli.fitting import Column, fitted
from heterotrain_operator.core.facts import survey
from heterotrain_operator.core.model import Decision, Job, Seen, WorkerMetrics, WorkerSeen
from heterotrain_operator.experiments import wording
from heterotrain_operator.experiments.progress import Pace, reached_steps
from heterotrain_operator.experiments.trials.journal import Entry

PLAIN_EVERY_SECONDS = 10.0

WORKER_COLUMNS = (
    Column("worker", name=True),
    Column("device", rank=9, left=True),
    Column("CPU limit", rank=4),
    Column("batch"),
    Column("fits", rank=6),
    Column("memory", rank=7, least=16),
    Column("own time", rank=1),
    Column("waiting", rank=2),
    Column("samples/s", rank=5),
    Column("plan", rank=8),
    Column("phase", rank=3, least=13, left=True),
)
ALWAYS = tuple(column.heading for column in WORKER_COLUMNS if column.heading not in ("fits", "memory"))

BAR_WIDTH = 40
LEAST_BAR_WIDTH = 8
LEAST_ROWS = 3
LINES_AROUND = 8
"""Of the live view besides a row for each worker: the table's lines and heading, progress, reason, and some room."""


def own_and_wait(metrics: WorkerMetrics) -> tuple[float | None, float | None]:
    """Mean own seconds, and the share of waiting, since the plan in force began."""
    if metrics.steps <= 0:
        return None, None
    total = metrics.own_seconds + metrics.wait_seconds
    return metrics.own_seconds / metrics.steps, metrics.wait_seconds / total if total > 0 else None


@dataclass(frozen=True, slots=True)
class Progress:
    """Committed steps, those of the whole job (0: unknown or endless), and the seconds left."""

    steps: int
    total: int
    seconds_left: float | None

    def __str__(self) -> str:
        return f"step {self.steps}/{self.total}" if self.total else f"step {self.steps}"


def progress(seen: Seen, pace: Pace, *, endless: bool = False) -> Progress:
    """How far a job has come."""
    steps = reached_steps(seen)
    total = max((w.metrics.total_steps for w in seen.workers if w.metrics is not None), default=0)
    if endless:
        total = 0
    rate = pace.steps_per_second
    return Progress(steps, total, (total - steps) / rate if rate and total >= steps > 0 else None)


def by_rank(job: Job, seen: Seen) -> tuple[WorkerSeen, ...]:
    """The job's workers in the order of its groups."""
    return survey(job, seen).workers


def workers_table(
    job: Job, seen: Seen, pace: Pace, safe: Mapping[str, int], *, width: int, most: int | None = None
) -> Table:
    """One row per worker, by group and index; `safe` are the greatest batches that memory is thought to hold.

    Of memory only what is known of anybody is shown, and of all that only what fits into `width` columns, and
    the first `most` workers.
    """
    workers = by_rank(job, seen)[:most]
    devices = {group.name: group.device for group in job.groups}
    cells = [_row(worker, devices.get(worker.group, ""), pace.steps_per_second) for worker in workers]
    limited = any(w.metrics is not None and w.metrics.memory_limit_bytes is not None for w in workers)
    for worker, row in zip(workers, cells, strict=True):
        if safe:
            row["fits"] = str(safe.get(worker.name, wording.UNKNOWN))
        if limited:
            row["memory"] = _memory(worker)
    known = [column for column in WORKER_COLUMNS if all(column.heading in row for row in cells)]
    return fitted(known, cells, width)


def progress_line(title: str, reached: Progress, width: int) -> Table:
    """The title, a bar and how far it is, in one line of `width` columns: the bar gives way, then the title."""
    left = "" if reached.seconds_left is None else f"{wording.clock(reached.seconds_left)} left"
    told = "  ".join(filter(None, [str(reached), left]))
    bar = min(width - cell_len(title) - cell_len(told) - 2, BAR_WIDTH)
    line = Table.grid(padding=(0, 1, 0, 0))
    name = Text(title, style="bold", overflow="ellipsis", no_wrap=True)
    for _ in range(3 if bar >= LEAST_BAR_WIDTH else 2):
        line.add_column(no_wrap=True)
    if bar >= LEAST_BAR_WIDTH:
        done = reached.steps if reached.total else 0
        line.add_row(name, ProgressBar(total=reached.total or 1, completed=done, width=bar), told)
    else:
        name.truncate(max(width - cell_len(told) - 1, 1), overflow="ellipsis")
        line.add_row(name, told)
    return line


def _memory(worker: WorkerSeen) -> str:
    metrics = worker.metrics
    return wording.memory(metrics.memory_peak_bytes, metrics.memory_limit_bytes) if metrics else wording.UNKNOWN


def _row(worker: WorkerSeen, device: str, rate: float | None) -> dict[str, str]:
    """Cells by heading."""
    row = dict.fromkeys(ALWAYS, wording.UNKNOWN) | {
        "worker": worker.name,
        "device": device,
        "CPU limit": "none" if worker.cpu_limit is None else f"{worker.cpu_limit:g}",
        "phase": worker.phase.lower(),
    }
    metrics = worker.metrics
    if metrics is None:
        return row
    own, waiting = own_and_wait(metrics)
    return row | {
        "batch": str(metrics.batch_size),
        "own time": wording.seconds(own),
        "waiting": wording.percent(waiting),
        "samples/s": wording.rate(rate * metrics.batch_size if rate else None),
        "plan": str(metrics.plan_version),
        "phase": metrics.phase or worker.phase.lower(),
    }


def plain_line(title: str, job: Job, seen: Seen, pace: Pace, *, reason: str, endless: bool = False) -> str:
    """The state of a job in one line; `reason` stands where there is no step yet, or no longer."""
    reached = progress(seen, pace, endless=endless)
    metrics = [worker.metrics for worker in by_rank(job, seen) if worker.metrics is not None]
    parts = [f"{title}: {reached}" if reached.steps else f"{title}: {reason}"]
    if reached.steps:
        rate = pace.steps_per_second
        samples = rate * sum(m.batch_size for m in metrics) if rate else None
        parts.append(f"{wording.rate(samples)} samples/s")
        parts.append(f"batches {wording.batches(m.batch_size for m in metrics)}")
        parts.append("own time " + wording.listed(wording.seconds(own_and_wait(m)[0]) for m in metrics))
        if reached.seconds_left is not None:
            parts.append(f"{wording.clock(reached.seconds_left)} left")
    return ", ".join(parts)


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
        told = [Text.assemble((f"{worker} | ", "dim"), Text.from_ansi(line)) for line in lines]
        self._console.print(Text("\n").join(told), soft_wrap=True)

    def begin(self, title: str, job: Job, *, position: str = "", endless: bool = False) -> None:
        """A new trial starts, in a `position` among several; an endless one shows no end."""
        self._title, self._job, self._endless, self._pace = title, job, endless, Pace()
        self._said_at = self._now()
        self._known = {}
        place = f" ({position})" if position else ""
        self.say(f"{title}{place}", style="bold")

    def clear(self) -> None:
        """Nothing runs now."""
        if self._live is not None:
            self._live.update(Text(""), refresh=True)

    def show(self, seen: Seen, decision: Decision, entry: Entry | None) -> None:
        """One round of the loop: what was seen and decided; `entry` if it is worth a line that stays."""
        moment = self._now()
        seen = self._with_last_figures(seen)
        self._pace.note(moment, reached_steps(seen))
        if entry is not None:
            self._tell(entry)
        if self._live is not None:
            self._live.update(self._render(seen, decision), refresh=True)
        elif self._job is not None and moment - self._said_at >= PLAIN_EVERY_SECONDS:
            self._said_at = moment
            self.say(
                plain_line(self._title, self._job, seen, self._pace, reason=decision.reason, endless=self._endless)
            )

    def _with_last_figures(self, seen: Seen) -> Seen:
        """Workers that end say nothing any more; what they said last still tells how the job went."""
        self._known |= {w.uid: replace(w.metrics, phase="") for w in seen.workers if w.metrics is not None}
        workers = (w if w.metrics is not None else replace(w, metrics=self._known.get(w.uid)) for w in seen.workers)
        return replace(seen, workers=tuple(workers))

    def _tell(self, entry: Entry) -> None:
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
        table = workers_table(self._job, seen, self._pace, dict(decision.safe_batches), width=width, most=most)
        hidden = len(by_rank(self._job, seen)) - most
        more = [Text(f"and {hidden} more workers", style="dim")] if hidden > 0 else []
        return Group(table, *more, progress_line(self._title, reached, width), reason)
