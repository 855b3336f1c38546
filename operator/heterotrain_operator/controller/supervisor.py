"""The loops of all jobs, one task each: another round when something happened or time has passed.

Only the replica that holds the Lease acts; the others keep their picture of the cluster fresh and take over
from what the cluster says.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

from heterotrain_operator.clusters.kube.api_server.gateway import GatewayError, JobGoneError
from heterotrain_operator.clusters.kube.api_server.lease import NotLeadingError
from heterotrain_operator.clusters.kube.observe.pod_facts import PodFacts
from heterotrain_operator.clusters.kube.observe.watched import Key
from heterotrain_operator.controller.rounds import JobRounds
from heterotrain_operator.metrics.shares import Shares
from heterotrain_operator.metrics.table import FAILURE_API_SERVER, FAILURE_UNEXPECTED

logger = logging.getLogger(__name__)

T = TypeVar("T")

COSTLY_SECONDS = 0.02
"""CPU time of one go in a thread, ten times that of a usual job."""

IDLE_SECONDS = 30.0
"""Between looks of a replica that does not lead; it wakes at once when it does."""

FAILURE_SECONDS = 2.0
GREATEST_FAILURE_SECONDS = 30.0
UNEXPECTED_SECONDS = 30.0
"""After a failure of the API server, doubling; after one of ours."""

SETTLING_SECONDS = 0.1
SETTLING_SECONDS_EACH = 0.0005
"""From news to the look at them, in all and for each pod of the job: pods come and go in numbers, and one look is
enough for all that happens meanwhile."""

DOUBT_SECONDS = 10.0
"""From the answer to a list until everything in it was handed on; a job that was not in it may be gone, and is asked
for."""

MAX_THREADS = 32

THREADS_EACH = MAX_THREADS // 4
"""Of one namespace at once, so that one with many jobs, or jobs that take long, does not keep the others waiting."""

MANY_THREADS = MAX_THREADS // 2
"""For what needs many requests, as the creation of a job's pods does: the other half is for rounds, whatever anybody's
jobs have to create and to delete."""

MANY_EACH = MAX_THREADS // 8
"""Of one namespace at once, and as many goes of it wait in line with those of others."""


@dataclass(eq=False)
class _Job:
    """A job's loop. `before` is the loop of an earlier job of its name, which ends first. `term` is the term of the
    Lease of its last round, and `departed` are pods that are gone since. `acting`: a thread is at work for it. Since
    `doubted_at`, of the event loop's clock, the job may be gone.
    """

    body: Mapping[str, Any]
    rounds: JobRounds
    term: int
    before: asyncio.Task[None] | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    departed: list[PodFacts] = field(default_factory=list)
    gone: bool = False
    acting: bool = False
    failures: int = 0
    doubted_at: float | None = None


class Controller:
    """The jobs of this operator. All methods are for the event loop's thread."""

    def __init__(
        self,
        make_rounds: Callable[[], JobRounds],
        *,
        leading: Callable[[], bool],
        pods_of: Callable[[Key], Sequence[PodFacts]],
        plan_versions_of: Callable[[Key], Collection[str]],
        failed: Callable[[str], None],
        over: Callable[[Key, str], None],
    ) -> None:
        """`pods_of` and `plan_versions_of` read the indices of watched objects; `failed` counts failures by kind, and
        `over` is called with the UID of a job that is gone.
        """
        self._make_rounds = make_rounds
        self._leading = leading
        self._pods_of = pods_of
        self._plan_versions_of = plan_versions_of
        self._failed = failed
        self._over = over
        self._jobs: dict[Key, _Job] = {}
        self._term = 0
        self._closed = False
        self._shares = Shares(THREADS_EACH)
        self._resting: dict[str, float] = {}
        """Until when, of the event loop's clock, by namespace."""
        self._many, self._many_shares = asyncio.Semaphore(MANY_THREADS), Shares(MANY_EACH)
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="round")

    def saw(self, body: Mapping[str, Any], *, deleted: bool) -> None:
        """A job's metadata as a watch event shows them. One of the same name and another UID is another job, whose end
        may be shown after the other's beginning.
        """
        metadata = body["metadata"]
        key = (metadata["namespace"], metadata["name"])
        known = self._jobs.get(key)
        gone = deleted or metadata.get("deletionTimestamp") is not None
        same = known is not None and known.body["metadata"]["uid"] == metadata["uid"]
        if gone and not same:
            return
        if known is not None and same and not gone:
            news = metadata.get("generation") != known.body["metadata"].get("generation")
            known.body, known.doubted_at = body, None
            if news:
                known.wake.set()
            return
        before = self._forget(key) if known is not None else None
        if not gone and not self._closed:
            job = self._jobs[key] = _Job(body, self._make_rounds(), self._term, before)
            self._start(key, job)

    def doubt(self, namespace: str) -> None:
        """The jobs of a namespace, or of all if it is empty, are listed again: one that is not in the list is gone, and
        no event says so.
        """
        now = asyncio.get_running_loop().time()
        for key, job in self._jobs.items():
            if namespace in ("", key[0]):
                job.doubted_at = now

    def woke(self, key: Key, departed: PodFacts | None = None) -> None:
        """Something of this job changed; `departed` is a pod that is gone."""
        job = self._jobs.get(key)
        if job is None:
            return
        if departed is not None and self._leading():
            job.departed.append(departed)
        job.wake.set()

    def lead(self) -> None:
        """This replica leads from now on; what an earlier leader has changed since is read again."""
        self._term += 1
        for job in self._jobs.values():
            job.wake.set()

    async def close(self) -> None:
        """End all loops; what rounds under way write is written first."""
        self._closed = True
        tasks = [self._forget(key) for key in list(self._jobs)]
        await asyncio.gather(*(task for task in tasks if task is not None), return_exceptions=True)
        self._threads.shutdown()

    # --- inside ---------------------------------------------------------------------------------------------

    def _rest(self, namespace: str, seconds: float) -> None:
        """After work that was costly a namespace rests as long as it took: all its jobs take half of the interpreter's
        time at most, whatever somebody makes them read.
        """
        now = asyncio.get_running_loop().time()
        self._resting = {each: until for each, until in self._resting.items() if until > now}
        if seconds > COSTLY_SECONDS or namespace in self._resting:
            self._resting[namespace] = self._resting.get(namespace, now) + seconds

    def _start(self, key: Key, job: _Job) -> None:
        job.task = asyncio.get_running_loop().create_task(self._run(key, job), name=f"job {key[0]}/{key[1]}")
        job.task.add_done_callback(lambda task: self._ended(key, job, task))

    def _ended(self, key: Key, job: _Job, task: asyncio.Task[None]) -> None:
        """A defect of ours in one job's loop must neither end the others nor this one for good."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed(FAILURE_UNEXPECTED)
            logger.error("job %s/%s: its loop failed", *key, exc_info=error)
        if error is None or job.gone:
            self._close(key, job)
        else:
            asyncio.get_running_loop().call_later(UNEXPECTED_SECONDS, self._restart, key, job)

    def _close(self, key: Key, job: _Job) -> None:
        job.rounds.close(*key)
        self._over(key, job.body["metadata"]["uid"])

    def _restart(self, key: Key, job: _Job) -> None:
        if not job.gone:
            self._start(key, job)

    def _forget(self, key: Key) -> asyncio.Task[None] | None:
        """Let a job's loop end, once what is written is written; metrics are not waited for. Returns the loop."""
        job = self._jobs.pop(key)
        job.gone = True
        job.wake.set()
        if job.task is not None and job.task.done():
            self._close(key, job)
        elif job.task is not None and _only_waits(job):
            job.task.cancel()
        return job.task

    async def _run(self, key: Key, job: _Job) -> None:
        if job.before is not None:
            await asyncio.wait([job.before])
        while not job.gone:
            job.wake.clear()
            delay = IDLE_SECONDS
            if self._leading():
                delay = await self._round(key, job)
            if await _first(job.wake.wait(), delay):
                await asyncio.sleep(SETTLING_SECONDS + SETTLING_SECONDS_EACH * len(self._pods_of(key)))

    async def _round(self, key: Key, job: _Job) -> float:
        """One round. Returns the seconds until the next."""
        if job.term != self._term:
            job.term = self._term
            job.rounds.forget()
        uid = job.body["metadata"]["uid"]
        pods = [pod for pod in (*self._pods_of(key), *job.departed) if pod.owner_uid == uid]
        job.departed.clear()
        versions = self._plan_versions_of(key)

        async def in_thread(blocking: Callable[..., T], /, *arguments: Any, many: bool = False) -> T:
            loop, spent = asyncio.get_running_loop(), list[float]()
            async with (self._many_shares if many else self._shares).of(key[0]):
                while (left := self._resting.get(key[0], 0.0) - loop.time()) > 0:
                    await asyncio.sleep(left)  # and meanwhile hold nothing that other namespaces wait for
                async with self._many if many else nullcontext():
                    if job.gone:
                        raise asyncio.CancelledError
                    job.acting = True
                    try:
                        return await loop.run_in_executor(self._threads, _timed, spent, blocking, *arguments)
                    finally:
                        job.acting = False
                        self._rest(key[0], sum(spent))

        try:
            since = job.doubted_at
            if since is not None and asyncio.get_running_loop().time() - since >= DOUBT_SECONDS:
                await in_thread(job.rounds.check, job.body)
                job.doubted_at = None
            delay = await job.rounds.once(job.body, pods, versions, in_thread)
        except NotLeadingError as error:
            logger.warning("job %s/%s: %s", *key, error)
            return IDLE_SECONDS
        except JobGoneError as error:
            # Its deletion was missed: a watch that has to start again does not show it.
            logger.info("%s", error)
            if self._jobs.get(key) is job:
                self._forget(key)
            return 0.0
        except GatewayError as error:
            job.failures += 1
            self._failed(FAILURE_API_SERVER)
            logger.warning("job %s/%s: %s", *key, error)
            return min(FAILURE_SECONDS * 2.0 ** min(job.failures - 1, 8), GREATEST_FAILURE_SECONDS)
        job.failures = 0
        return delay


def _timed(spent: list[float], work: Callable[..., T], *arguments: Any) -> T:
    """What the work returns; the CPU seconds that it took are added to `spent`."""
    began = time.thread_time()
    try:
        return work(*arguments)
    finally:
        spent.append(time.thread_time() - began)


def _only_waits(job: _Job) -> bool:
    """Whether a loop can be cancelled: nothing is being written, and it is not the wait for an earlier job's end."""
    may_begin = job.before is None or job.before.done()
    return may_begin and not job.acting and job.task is not asyncio.current_task()


async def _first(news: Coroutine[Any, Any, Any], seconds: float) -> bool:
    """Wait for news, but no longer than so many seconds. Returns whether there are any."""
    try:
        async with asyncio.timeout(seconds):  # `wait_for` would take a task of its own
            await news
    except TimeoutError:
        return False
    return True
