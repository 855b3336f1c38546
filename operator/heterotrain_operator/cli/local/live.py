"""Show a job while it runs: a live table on a terminal, plain lines elsewhere; always on standard error.

Plain lines come at every decision and now and then between, so that a log stays readable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from heterotrain_operator.cli.local.script_output import LEADER, ScriptOutput
from heterotrain_operator.cli.terminal import LiveView, ProgressLine, fitted, progress_line, sparkline
from heterotrain_operator.core.facts import survey
from heterotrain_operator.core.model import Decision, Job, Seen, WorkerMetrics, WorkerSeen
from heterotrain_operator.experiments import wording
from heterotrain_operator.experiments.progress import TREND, Pace, Trends, reached_steps
from heterotrain_operator.experiments.report.value import Column, Table
from heterotrain_operator.experiments.trials.observer import Entry, Observer
from heterotrain_operator.experiments.trials.trial import server_name, worker_names


def own_and_wait(metrics: WorkerMetrics) -> tuple[float | None, float | None]:
    """Mean own seconds, and the share of waiting, since the active plan began."""
    if metrics.steps <= 0:
        return None, None
    total = metrics.own_seconds + metrics.wait_seconds
    return metrics.own_seconds / metrics.steps, metrics.wait_seconds / total if total > 0 else None


def samples_per_second(job: Job, workers: Sequence[WorkerMetrics], pace: Pace) -> float | None:
    """Of these workers, which all take part in each step, or, against a parameter server, each take their own."""
    if job.server is None:
        rate = pace.steps_per_second
        return rate * sum(each.batch_size for each in workers) if rate else None
    cycles = [(each.batch_size * each.steps, each.own_seconds + each.wait_seconds) for each in workers]
    return sum(samples / seconds for samples, seconds in cycles if seconds > 0) or None


def progress(seen: Seen, pace: Pace, *, endless: bool = False) -> ProgressLine:
    """How far a job has come."""
    steps = reached_steps(seen)
    total = max((w.metrics.total_steps for w in seen.workers if w.metrics is not None), default=0)
    if endless:
        total = 0
    rate = pace.steps_per_second
    return ProgressLine(steps, total, (total - steps) / rate if rate and total >= steps > 0 else None)


def by_rank(job: Job, seen: Seen) -> tuple[WorkerSeen, ...]:
    """The job's workers in the order of its groups."""
    return survey(job, seen).workers


def workers_table(
    job: Job,
    seen: Seen,
    pace: Pace,
    memory_limits: Mapping[str, int],
    *,
    width: int,
    most: int | None = None,
    trends: Trends | None = None,
) -> RichTable:
    """One row per worker, by group and index; `memory_limits` are the greatest batches that memory is
    thought to hold, `trends` how waiting went.

    Columns about memory are shown if they are known of any worker, of all columns those that fit into `width`, and of
    all workers the first `most`.
    """
    workers = by_rank(job, seen)[:most]
    devices = {group.name: group.device for group in job.groups}
    limited = any(w.metrics is not None and w.metrics.memory_limit_bytes is not None for w in workers)
    waiting = {} if trends is None else trends.waiting

    def memory(metrics: WorkerMetrics) -> str | None:
        return wording.memory(metrics.memory_peak_bytes, metrics.memory_limit_bytes) if limited else None

    def samples(metrics: WorkerMetrics) -> float | None:
        return samples_per_second(job, [metrics], pace)

    columns = (
        Column("worker", lambda worker: worker.name, name=True),
        Column("device", lambda worker: devices.get(worker.group, ""), rank=9, left=True),
        Column("CPU limit", lambda worker: "none" if worker.cpu_limit is None else f"{worker.cpu_limit:g}", rank=4),
        Column("batch", _reported(lambda metrics: metrics.batch_size)),
        Column("fits", lambda worker: memory_limits.get(worker.name), rank=6, optional=True),
        Column("memory", _reported(memory), rank=7, least=16, optional=True),
        Column("own time", _reported(lambda metrics: own_and_wait(metrics)[0]), wording.seconds, rank=1),
        Column("waiting", _reported(lambda metrics: own_and_wait(metrics)[1]), wording.percent, rank=2),
        Column(
            "of late",
            lambda worker: sparkline(past, 1.0) if (past := waiting.get(worker.name)) else None,
            rank=4,
            least=TREND,
            left=True,
            optional=True,
        ),
        Column("samples/s", _reported(samples), wording.rate, rank=5),
        Column("plan", _reported(lambda metrics: metrics.plan_version), rank=8),
        Column("phase", _phase, rank=3, least=13, left=True),
    )
    return fitted(Table(columns, workers).shown(details=False), workers, width)


def _reported(figure: Callable[[WorkerMetrics], Any]) -> Callable[[WorkerSeen], Any]:
    """A figure of a worker's metrics, None while there are none."""
    return lambda worker: None if worker.metrics is None else figure(worker.metrics)


def _phase(worker: WorkerSeen) -> str:
    return (worker.metrics.phase if worker.metrics is not None else "") or worker.phase.lower()


def plain_line(title: str, job: Job, seen: Seen, pace: Pace, *, reason: str, endless: bool = False) -> str:
    """The state of a job in one line; `reason` stands where there is no step yet, or no longer."""
    reached = progress(seen, pace, endless=endless)
    metrics = [worker.metrics for worker in by_rank(job, seen) if worker.metrics is not None]
    parts = [f"{title}: {reached}" if reached.steps else f"{title}: {reason}"]
    if reached.steps:
        parts.append(f"{wording.rate(samples_per_second(job, metrics, pace))} samples/s")
        if job.server is not None:
            parts.append(f"{wording.rate(pace.steps_per_second)} updates/s")
        parts.append(f"batches {wording.batches(m.batch_size for m in metrics)}")
        parts.append("own time " + wording.listed(wording.seconds(own_and_wait(m)[0]) for m in metrics))
        if reached.seconds_left is not None:
            parts.append(f"{wording.clock(reached.seconds_left)} left")
    return ", ".join(parts)


PLAIN_EVERY_SECONDS = 10.0

LEAST_ROWS = 3

LINES_AROUND = 9
"""Lines of the live view besides the workers' rows: those of the table, progress, pace, reason, and some room."""


class View(LiveView, Observer):
    """What the user sees of a run; `now` is a monotonic clock in seconds, `shown` one of `script_output.CHOICES`."""

    def __init__(self, console: Console, now: Callable[[], float], shown: str = LEADER) -> None:
        super().__init__(console)
        self._now = now
        self._shown = shown
        self._output: ScriptOutput | None = None
        self._job: Job | None = None
        self._title = ""
        self._endless = False
        self._pace, self._trends = Pace(), Trends()
        self._said_at = float("-inf")
        self._known: dict[str, WorkerMetrics] = {}

    def script_says(self, worker: str, lines: Sequence[str]) -> None:
        """Lines that a worker's script has printed; colours stay, other control sequences would tear the table."""
        printed = [Text.assemble((f"{worker} | ", "dim"), Text.from_ansi(line)) for line in lines]
        self.console.print(Text("\n").join(printed), soft_wrap=True)

    def begin(
        self, title: str, job: Job, log_file: Callable[[str], Path], *, position: str = "", endless: bool = False
    ) -> None:
        """A new trial starts, in a `position` among several; an endless one shows no end."""
        self._title, self._job, self._endless, self._pace, self._trends = title, job, endless, Pace(), Trends()
        self._said_at = self._now()
        self._known = {}
        names = [*filter(None, [server_name(job)]), *worker_names(job)]
        self._output = ScriptOutput(names, log_file, self.script_says, self._shown)
        place = f" ({position})" if position else ""
        self.say(f"{title}{place}", style="bold")

    def look(self) -> None:
        """Show what scripts have printed."""
        if self._output is not None:
            self._output.look()

    def show(self, seen: Seen, decision: Decision, entry: Entry | None) -> None:
        """One round of the loop: what was seen and decided; `entry` if it is worth a line that stays."""
        if self._output is not None and seen.plan is not None:
            leader = seen.plan.server or seen.plan.members[0]
            self._output.follow([worker.name for worker in seen.workers], leader.name)
        self.look()
        moment = self._now()
        seen = self._with_last_figures(seen)
        self._pace.note(moment, reached_steps(seen))
        if self._job is not None:
            metrics = [worker.metrics for worker in by_rank(self._job, seen) if worker.metrics is not None]
            self._trends.note(seen, samples_per_second(self._job, metrics, self._pace))
        if entry is not None:
            self._print(entry)
        if self.is_live:
            self.draw(self._render(seen, decision))
        elif self._job is not None and moment - self._said_at >= PLAIN_EVERY_SECONDS:
            self._said_at = moment
            self.say(
                plain_line(self._title, self._job, seen, self._pace, reason=decision.reason, endless=self._endless)
            )

    def end(self) -> None:
        """Show the rest of what scripts have printed, and remove the live view."""
        if self._output is not None:
            self._output.end()
        self.clear()

    def warn(self, text: str) -> None:
        """Print a line that stays."""
        self.say(text, style="yellow")

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
        width, most = self.console.width, max(self.console.height - LINES_AROUND, LEAST_ROWS)
        reason = Text(decision.reason, style="dim", overflow="ellipsis", no_wrap=True)
        limits = dict(decision.batch_limits)
        table = workers_table(self._job, seen, self._pace, limits, width=width, most=most, trends=self._trends)
        hidden = len(by_rank(self._job, seen)) - most
        more = [Text(f"and {hidden} more workers", style="dim")] if hidden > 0 else []
        rates = self._trends.rates
        pace = [Text(f"{sparkline(rates)} {wording.rate(rates[-1])} samples/s", style="dim")] if rates else []
        return Group(table, *more, progress_line(self._title, reached, width), *pace, reason)
