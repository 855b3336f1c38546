"""`heterotrain watch`: a job on a cluster until it ends, a live table in a terminal and a line per change elsewhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console

from heterotrain_operator.cli import FAILED, SUCCEEDED
from heterotrain_operator.cli.cluster.job_state import JobState, read_job
from heterotrain_operator.cli.cluster.status import UNSEEN, job_view, remarks, shown, steps, without_bookkeeping
from heterotrain_operator.cli.terminal import LiveView
from heterotrain_operator.clusters.kube.reading_errors import ExpiredError, UnreachableError
from heterotrain_operator.experiments import wording
from heterotrain_operator.experiments.progress import Trends

if TYPE_CHECKING:
    from heterotrain_operator.clusters.kube.reading import Reader


class Display(LiveView):
    """What the user sees of a watched job; the last table stays."""

    def __init__(self, console: Console, now: Callable[[], datetime]) -> None:
        super().__init__(console, transient=False)
        self._now = now
        self._line = ""
        self._reason = ""
        self._trends = Trends()

    def show(self, job: JobState) -> None:
        """The job as it is now."""
        now = self._now()
        if self.is_live:
            for worker in job.workers:
                if worker.waiting is not None:
                    self._trends.note_waiting(worker.name, worker.waiting)
            self.draw(job_view(job, now, width=self.console.width, trends=self._trends.waiting))
            return
        line = "; ".join([one_line(job), *remarks(job)])
        reason = job.reason if job.reason != self._reason else ""
        if line != self._line or reason:
            why = f": {reason}" if reason else ""
            self.say(f"{now:%H:%M:%S} {line}{why}")
            self._line, self._reason = line, job.reason


def one_line(job: JobState) -> str:
    """The state of a job in one line, without its reason."""
    parts = [f"{job.name}: {job.phase or UNSEEN}"]
    if job.ready:
        parts.append(f"{job.ready} workers")
    if job.step is not None:
        parts.append(f"step {steps(job)}")
    if job.updates_per_second is not None:
        parts.append(f"{job.updates_per_second:g} updates/s")
    if job.evaluated is not None:
        parts.append(wording.evaluated(job.evaluated))
    if job.plan_version is not None:
        parts.append(f"plan {job.plan_version}")
    if any(worker.batch is not None for worker in job.workers):
        parts.append("batches " + wording.listed(shown(worker.batch) for worker in job.workers))
    if any(worker.own_seconds is not None for worker in job.workers):
        parts.append("own time " + wording.listed(wording.seconds(worker.own_seconds) for worker in job.workers))
    return ", ".join(parts)


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
        for document in follow(reader, name, clock=clock, pause=pause, say=lambda text: display.say(text, "yellow")):
            if document is None:
                break
            job = read_job(document)
            display.show(job)
            if job.ended:
                return SUCCEEDED if job.phase == "Succeeded" else FAILED
        display.say(f"{name} was deleted", "yellow")
    return FAILED


def watch_as_json(reader: Reader, name: str, *, clock: Callable[[], float], pause: Callable[[float], None]) -> int:
    """Print the job's object after every change, one in each line, until it ends or is deleted, as `watch` does."""

    def say(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    for document in follow(reader, name, clock=clock, pause=pause, say=say):
        if document is None:
            break
        sys.stdout.write(json.dumps(without_bookkeeping(document)) + "\n")
        sys.stdout.flush()
        job = read_job(document)
        if job.ended:
            return SUCCEEDED if job.phase == "Succeeded" else FAILED
    say(f"{name} was deleted")
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
    looked at again: what it is now matters, not how it came about. Raises JobNotFoundError if there is no such job.
    """
    look = reader.look(name)
    if look.job is None:
        raise reader.not_found(name)
    yield look.job
    watched = _Watched(reader, name, look.job["metadata"].get("uid"), look.version)
    while True:
        asked = clock()
        try:
            for document in watched.changes():
                yield document
                if document is None:
                    return
            watched.silent_since = None
            # A server that ends every watch at once must not be flooded with requests.
            if clock() - asked < RETRY_SECONDS:
                pause(RETRY_SECONDS)
        except ExpiredError:
            watched.version = None
        except UnreachableError as error:
            if watched.silent_since is None:
                watched.silent_since = asked
                say(f"{error}; trying again for {wording.age(GIVE_UP_SECONDS)}")
            elif asked - watched.silent_since >= GIVE_UP_SECONDS:
                raise
            pause(RETRY_SECONDS)


@dataclass(slots=True)
class _Watched:
    """One job on a cluster, the version up to which it was seen (None: the cluster has forgotten that), and since when
    the cluster has not answered.
    """

    reader: Reader
    name: str
    uid: str | None
    version: str | None
    silent_since: float | None = None

    def changes(self) -> Iterator[Document | None]:
        """The job after every change, until the server ends the watch; None, at last, once it was deleted. Begins with
        the job as it is then, if its version was forgotten.
        """
        if self.version is None:
            look = self.reader.look(self.name)
            if self._is_gone(look.job):
                yield None
                return
            self.version, self.silent_since = look.version, None
            yield look.job
        for change in self.reader.changes(self.name, self.version):
            self.version, self.silent_since = change.version, None
            if change.job is None:
                continue
            if change.deleted or self._is_gone(change.job):
                yield None
                return
            yield change.job

    def _is_gone(self, job: Document | None) -> bool:
        return job is None or job["metadata"].get("uid") != self.uid
