"""What the user sees of a watched job."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from heterotrain_operator.cli.cluster.job_state import JobState
from heterotrain_operator.cli.cluster.job_tables import UNSEEN, job_view, remarks, shown, steps
from heterotrain_operator.experiments import wording


class Display:
    """What the user sees of a watched job. Use it as a context manager; the last table stays."""

    def __init__(self, console: Console, now: Callable[[], datetime]) -> None:
        self._console = console
        self._now = now
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._line = ""
        self._reason = ""

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """One line that stays, above the table where there is one."""
        self._console.print(Text(text, style="yellow"), soft_wrap=True)

    def show(self, job: JobState) -> None:
        """The job as it is now."""
        now = self._now()
        if self._live is not None:
            self._live.update(job_view(job, now, width=self._console.width), refresh=True)
            return
        line = "; ".join([one_line(job), *remarks(job)])
        reason = job.reason if job.reason != self._reason else ""
        if line != self._line or reason:
            why = f": {reason}" if reason else ""
            self._console.print(Text(f"{now:%H:%M:%S} {line}{why}"), soft_wrap=True)
            self._line, self._reason = line, job.reason


def one_line(job: JobState) -> str:
    """The state of a job in one line, without its reason."""
    parts = [f"{job.name}: {job.phase or UNSEEN}"]
    if job.ready:
        parts.append(f"{job.ready} workers")
    if job.step is not None:
        parts.append(f"step {steps(job)}")
    if job.evaluated is not None:
        parts.append(wording.evaluated(job.evaluated))
    if job.plan_version is not None:
        parts.append(f"plan {job.plan_version}")
    if any(worker.batch is not None for worker in job.workers):
        parts.append("batches " + wording.listed(shown(worker.batch) for worker in job.workers))
    if any(worker.own_seconds is not None for worker in job.workers):
        parts.append("own time " + wording.listed(wording.seconds(worker.own_seconds) for worker in job.workers))
    return ", ".join(parts)
