"""`heterotrain watch`: a job on a cluster until it ends, a live table in a terminal and a line per change elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from heterotrain_operator.cli.cluster.job_state import JobState, read_job
from heterotrain_operator.cli.cluster.job_tables import UNSEEN, job_view, remarks, shown, steps
from heterotrain_operator.cli.exit_codes import FAILED, SUCCEEDED
from heterotrain_operator.clusters.kube.reading_errors import ExpiredError, UnreachableError
from heterotrain_operator.experiments import wording

if TYPE_CHECKING:
    from heterotrain_operator.clusters.kube.reading import Reader


RETRY_SECONDS = 2.0
GIVE_UP_SECONDS = 300.0
"""An API server may be unreachable for a while, in which the job goes on training."""

Document = dict[str, Any]


def watch(
    reader: Reader,
    name: str,
    console: Console,
    *,
    now: Callable[[], datetime],
    clock: Callable[[], float],
    pause: Callable[[float], None],
) -> int:
    """Show a job until it ends or is deleted, and return the exit code.

    `clock` is monotonic, in seconds. Raises JobNotFoundError if there is no such job at the start, and
    UnreachableError once the cluster was silent for GIVE_UP_SECONDS.
    """
    job: JobState | None = None
    with Display(console, now) as display:
        for document in follow(reader, name, clock=clock, pause=pause, say=display.say):
            if document is None:
                break
            job = read_job(document)
            display.show(job)
            if job.ended:
                return SUCCEEDED if job.phase == "Succeeded" else FAILED
        display.say(f"{name} was deleted")
    return FAILED


def follow(
    reader: Reader,
    name: str,
    *,
    clock: Callable[[], float],
    pause: Callable[[float], None],
    say: Callable[[str], None],
) -> Iterator[Document | None]:
    """The job as it is now and after every change of it; None, at last, once it was deleted.

    A watch that ends or breaks is taken up where it was. Where the cluster has forgotten that moment, the job is
    looked at again: what it is now matters, not how it came about.
    """
    look = reader.look(name)
    if look.job is None:
        raise reader.not_found(name)
    uid = look.job["metadata"].get("uid")
    yield look.job
    version: str | None = look.version
    silent_since: float | None = None
    while True:
        began = clock()
        try:
            if version is None:
                look = reader.look(name)
                if look.job is None or look.job["metadata"].get("uid") != uid:
                    yield None
                    return
                version, silent_since = look.version, None
                yield look.job
            for change in reader.changes(name, version):
                version, silent_since = change.version, None
                if change.job is None:
                    continue
                if change.deleted or change.job["metadata"].get("uid") != uid:
                    yield None
                    return
                yield change.job
            silent_since = None
            # A server that ends every watch at once must not be flooded with requests.
            if clock() - began < RETRY_SECONDS:
                pause(RETRY_SECONDS)
        except ExpiredError:
            version = None
        except UnreachableError as error:
            if silent_since is None:
                silent_since = began
                say(f"{error}; trying again for {wording.age(GIVE_UP_SECONDS)}")
            elif began - silent_since >= GIVE_UP_SECONDS:
                raise
            pause(RETRY_SECONDS)


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
