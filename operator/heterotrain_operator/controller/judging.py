"""The documents of jobs: read when a watch shows a new edition, judged once, and kept as models, never whole.

Whoever may write a job decides what that costs, and all share one interpreter. So what is judged is bounded
(`size_problem`); one thread judges, tenants take turns at it, and it rests after what was costly; a document that takes
long to read has its turn before it is read; and what is kept for one namespace is bounded.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from heterotrain_operator.api import HeteroTrainingJob, ManifestError, Problem, parse_stored, to_core
from heterotrain_operator.api.problems import size_problem, values_in
from heterotrain_operator.clusters.kube.api_server.gateway import JOB_API, JOB_KIND, Gateway, GatewayError, JobGoneError
from heterotrain_operator.clusters.kube.api_server.transport import TooLargeError
from heterotrain_operator.core.facts import listed
from heterotrain_operator.core.model import Job
from heterotrain_operator.metrics.shares import Shares

logger = logging.getLogger(__name__)

T = TypeVar("T")
Document = dict[str, Any]

MAX_JOB_BYTES = 2 * 2**20
"""Of a whole job with metadata and status; an API server stores 1.5 MiB."""

QUICK_BYTES = 2**16
"""Up to here a job is parsed when it was read; a larger one is read again once it is its tenant's turn."""

READS_EACH = 2
"""Documents of one namespace that are read at the same time."""

COSTLY_SECONDS = 0.02
"""CPU time after which the judging thread rests; a usual job takes a tenth of it."""

RESTS = 3.0
"""So many times as long as a judgement took its tenant waits for the next one, and after a costly one all do: judging
takes at most a quarter of the interpreter's time."""

KEPT_BYTES = 64 * 2**20
"""What the jobs of one namespace may take of the operator's memory: thousands of usual ones."""

BYTES_PER_VALUE = 120


class InThread(Protocol):
    """Runs what blocks."""

    async def __call__(self, blocking: Callable[..., T], /, *arguments: Any, many: bool = False) -> T:
        """What it returns; `many`: it is one of a job's many goes, which leave threads to what is done once a round."""
        ...


@dataclass(frozen=True, slots=True)
class Judged:
    """One edition (UID and generation) of a job in its models, which take `memory` bytes, or why it has none, `lasting`
    until another edition.
    """

    edition: tuple[str, int]
    job: HeteroTrainingJob | None = None
    core: Job | None = None
    problems: tuple[Problem, ...] = ()
    lasting: bool = True
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """A job as it was read: `body` has kind, the few metadata that are used, and the status."""

    body: Document
    judged: Judged


@dataclass(frozen=True, slots=True)
class _Read:
    """A document that is to be judged still; `memory` is what its models take, in bytes."""

    body: Document
    edition: tuple[str, int]
    spec: Any
    memory: int


class Documents:
    """Reads and judges for one event loop."""

    def __init__(self, gateway: Gateway, cpu_seconds: Callable[[], float] = time.thread_time) -> None:
        """`cpu_seconds` is the CPU time that the calling thread has used."""
        self._gateway, self._cpu_seconds = gateway, cpu_seconds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="judging")
        self._parsing = threading.Lock()
        self._reads, self._turns, self._judging = Shares(READS_EACH), Shares(1), asyncio.Semaphore(1)
        self._kept: dict[str, dict[str, int]] = {}

    async def read(self, metadata: Mapping[str, Any], in_thread: InThread, known: Judged | None) -> Found:
        """The job of these metadata as it is now; `known` is what was judged last of it, if anything was.

        Raises JobGoneError if it is no more, GatewayError if the API server fails.
        """
        # Of a job that is deleted meanwhile the judgement and the rest go on, or deleting would be a way around both.
        finding = asyncio.ensure_future(self._found(metadata, in_thread, known))
        finding.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may wait for it any more
        found = await asyncio.shield(finding)
        if found.judged.memory:
            self._kept.setdefault(metadata["namespace"], {})[metadata["uid"]] = found.judged.memory
        else:
            self.forget(metadata["namespace"], metadata["uid"])
        return found

    def forget(self, namespace: str, uid: str) -> None:
        """The job is gone."""
        kept = self._kept.get(namespace, {})
        kept.pop(uid, None)
        if not kept:
            self._kept.pop(namespace, None)

    def close(self) -> None:
        """Judge nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    # --- inside ---------------------------------------------------------------------------------------------

    async def _found(self, metadata: Mapping[str, Any], in_thread: InThread, known: Judged | None) -> Found:
        """As `read`. What waits for its turn is in memory, and counts as read until it was judged."""
        owner = metadata["namespace"]
        async with self._reads.of(owner):
            found = await in_thread(self._look, metadata, known, QUICK_BYTES)
            if isinstance(found, Found):
                return found
            async with self._turns.of(owner):
                async with self._judging:
                    judged, spent = await self._timed(metadata, known, found)
                    if spent > COSTLY_SECONDS:
                        await asyncio.sleep(RESTS * spent)
                await asyncio.sleep(RESTS * spent)
            return judged

    def _timed(
        self, metadata: Mapping[str, Any], known: Judged | None, read: _Read | None
    ) -> Awaitable[tuple[Found, float]]:
        """Judge what was read, or read it first, in the thread for that; with the CPU seconds that it took."""

        def work() -> tuple[Found, float]:
            began = self._cpu_seconds()
            found = read or self._look(metadata, known, MAX_JOB_BYTES)
            assert found is not None
            judged = found if isinstance(found, Found) else Found(found.body, self._judge(found))
            return judged, self._cpu_seconds() - began

        return asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _look(self, metadata: Mapping[str, Any], known: Judged | None, most: int) -> Found | _Read | None:
        """Read a job; None if it has more than `most` bytes, and is not to be parsed yet."""
        namespace, uid = metadata["namespace"], metadata["uid"]
        try:
            text = self._gateway.job_text(metadata, most=MAX_JOB_BYTES)
            if len(text) > most:
                return None
            with self._parsing:
                whole = json.loads(text)
                there, problem = whole["metadata"], size_problem(whole.get("spec"))
        except (TooLargeError, RecursionError) as error:
            why = f"has more than {MAX_JOB_BYTES} bytes" if isinstance(error, TooLargeError) else "is nested too deeply"
            edition = (uid, metadata.get("generation", 0))
            return Found(_body({"metadata": metadata}), Judged(edition, problems=(Problem("", why),)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # a proxy answers in the API server's place
            raise GatewayError(f"get {JOB_KIND} {metadata['name']}: the answer is no job") from error
        if there["uid"] != uid:
            raise JobGoneError(f"job {namespace}/{metadata['name']} of UID {uid} is gone")
        body, edition = _body(whole), (uid, there.get("generation", 0))
        if known is not None and known.edition == edition and known.lasting:
            return Found(body, known)
        spec, memory, lasting = whole.get("spec"), 0, problem is not None
        if problem is None:
            # Of the spec alone: no model holds the rest, and a job must not be refused since its status has grown.
            memory = len(json.dumps(spec)) + BYTES_PER_VALUE * values_in(spec)
            problem = self._no_room(namespace, uid, memory)
        if problem is not None:
            return Found(body, Judged(edition, problems=(problem,), lasting=lasting))
        return _Read(body, edition, spec, memory)

    def _no_room(self, namespace: str, uid: str, memory: int) -> Problem | None:
        kept = self._kept.get(namespace, {})
        if sum(dict(kept).values()) - kept.get(uid, 0) + memory <= KEPT_BYTES:
            return None
        size = f"{KEPT_BYTES >> 20} MiB of the operator's memory"
        advice = "delete some, or make them smaller"
        return Problem("spec", f"the jobs of namespace {namespace} would take more than {size}; {advice}")

    def _judge(self, read: _Read) -> Judged:
        metadata = read.body["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        try:
            own = {name: part for name, part in read.body.items() if name != "status"}
            job, unknown = parse_stored({**own, "spec": read.spec})
        except ManifestError as error:
            return Judged(read.edition, problems=error.problems)
        if unknown:
            where = (namespace, name, listed(unknown))
            logger.warning("job %s/%s: this operator knows nothing of %s, and does without", *where)
        return Judged(read.edition, job, to_core(job), memory=read.memory)


def _body(whole: Mapping[str, Any]) -> Document:
    """What is used of a job beside its spec: no more of its metadata, which may be of any size."""
    metadata = {name: whole["metadata"].get(name) for name in ("namespace", "name", "uid", "generation")}
    status = {"status": whole["status"]} if whole.get("status") else {}
    return {"apiVersion": JOB_API, "kind": JOB_KIND, "metadata": metadata, **status}
