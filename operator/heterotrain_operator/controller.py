"""Every job's loop, one task each: observe, decide, act, again when something happened or time has passed.

Only the replica that holds the Lease acts; the others keep their picture of the cluster fresh and take over
from what the cluster says.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from heterotrain_operator.clusters.kube.gateway import GatewayError
from heterotrain_operator.clusters.kube.lease import NotLeadingError
from heterotrain_operator.clusters.kube.observed import PodFacts
from heterotrain_operator.rounds import JobRounds

logger = logging.getLogger(__name__)

Key = tuple[str, str]
"""Namespace and name of a job."""

IDLE_SECONDS = 30.0
"""Between looks of a replica that does not lead; it is woken when it does."""

FAILURE_SECONDS = 2.0
GREATEST_FAILURE_SECONDS = 30.0
UNEXPECTED_SECONDS = 30.0
"""After a failure of the API server, doubling; after one of ours."""

MAX_THREADS = 32


@dataclass
class _Job:
    body: Mapping[str, Any]
    rounds: JobRounds
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    failures: int = 0


class Controller:
    """The jobs of this operator. All methods are for the event loop's thread."""

    def __init__(
        self,
        make_rounds: Callable[[], JobRounds],
        leading: Callable[[], bool],
        pods_of: Callable[[Key], Sequence[PodFacts]],
        plan_version_of: Callable[[Key], str],
        failed: Callable[[str], None],
    ) -> None:
        """`pods_of` and `plan_version_of` read the indices of watched objects; `failed` counts failures by kind."""
        self._make_rounds = make_rounds
        self._leading = leading
        self._pods_of = pods_of
        self._plan_version_of = plan_version_of
        self._failed = failed
        self._jobs: dict[Key, _Job] = {}
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="round")

    def saw(self, body: Mapping[str, Any], *, deleted: bool) -> None:
        """A job as a watch event shows it. One of the same name and another UID is another job."""
        metadata = body["metadata"]
        key = (metadata["namespace"], metadata["name"])
        known = self._jobs.get(key)
        gone = deleted or metadata.get("deletionTimestamp") is not None
        if known is not None and (gone or known.body["metadata"]["uid"] != metadata["uid"]):
            self._forget(key)
            known = None
        if gone:
            return
        if known is None:
            job = self._jobs[key] = _Job(body, self._make_rounds())
            self._start(key, job)
        else:
            known.body = body
            known.wake.set()

    def woke(self, key: Key) -> None:
        """Something of this job changed."""
        if key in self._jobs:
            self._jobs[key].wake.set()

    def lead(self) -> None:
        """This replica leads from now on: forget what an earlier leader may have changed since."""
        for job in self._jobs.values():
            job.rounds.forget()
            job.wake.set()

    async def close(self) -> None:
        """End all loops; rounds under way end first."""
        for key in list(self._jobs):
            self._forget(key)
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    # --- inside ---------------------------------------------------------------------------------------------

    def _start(self, key: Key, job: _Job) -> None:
        job.task = asyncio.get_running_loop().create_task(self._steer(key, job), name=f"job {key[0]}/{key[1]}")
        job.task.add_done_callback(lambda task: self._ended(key, job, task))

    def _ended(self, key: Key, job: _Job, task: asyncio.Task[None]) -> None:
        """A defect of ours in one job's loop must neither end the others nor this one for good."""
        if task.cancelled() or self._jobs.get(key) is not job:
            return
        self._failed("unexpected")
        logger.error("job %s/%s: its loop failed and starts again", *key, exc_info=task.exception())
        asyncio.get_running_loop().call_later(UNEXPECTED_SECONDS, self._restart, key, job)

    def _restart(self, key: Key, job: _Job) -> None:
        if self._jobs.get(key) is job:
            self._start(key, job)

    def _forget(self, key: Key) -> None:
        job = self._jobs.pop(key)
        if job.task is not None:
            job.task.cancel()
        job.rounds.close(*key)

    async def _steer(self, key: Key, job: _Job) -> None:
        while True:
            job.wake.clear()
            delay = IDLE_SECONDS
            if self._leading():
                delay = await self._round(key, job)
            await _first(job.wake.wait(), delay)

    async def _round(self, key: Key, job: _Job) -> float:
        """One round in a thread. Returns the seconds until the next."""
        uid = job.body["metadata"]["uid"]
        pods = [pod for pod in self._pods_of(key) if pod.owner_uid == uid]
        loop = asyncio.get_running_loop()
        try:
            delay = await loop.run_in_executor(
                self._threads, job.rounds.once, job.body, pods, self._plan_version_of(key)
            )
        except NotLeadingError as error:
            logger.warning("job %s/%s: %s", *key, error)
            return IDLE_SECONDS
        except GatewayError as error:
            job.failures += 1
            self._failed("api_server")
            logger.warning("job %s/%s: %s", *key, error)
            return min(FAILURE_SECONDS * 2.0 ** min(job.failures - 1, 8), GREATEST_FAILURE_SECONDS)
        job.failures = 0
        return delay


async def _first(news: Coroutine[Any, Any, Any], seconds: float) -> None:
    """Wait for news, but no longer than so many seconds."""
    try:
        await asyncio.wait_for(news, seconds)
    except TimeoutError:
        return
