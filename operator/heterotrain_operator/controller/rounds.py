"""One job's rounds on a cluster: read the object, observe, decide, act; with what lasts from round to round."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from heterotrain_operator.api import HeteroTrainingJob, ManifestError, Problem, parse_stored, to_core
from heterotrain_operator.clusters.kube.api_server.gateway import REFUSALS, Gateway, GatewayError
from heterotrain_operator.clusters.kube.cluster import KubeCluster
from heterotrain_operator.clusters.kube.objects.owned import NameTakenError
from heterotrain_operator.clusters.kube.objects.protection import Peers
from heterotrain_operator.clusters.kube.observe.nodes import Nodes
from heterotrain_operator.clusters.kube.observe.pod_facts import PodFacts
from heterotrain_operator.clusters.kube.observe.sources import Source
from heterotrain_operator.clusters.kube.observe.watched import Watched
from heterotrain_operator.core.facts import listed
from heterotrain_operator.core.model import FINAL_PHASES, Decision, Job, Seen
from heterotrain_operator.core.state import Memory
from heterotrain_operator.loop import Loop, first_steps_seconds
from heterotrain_operator.metrics.own import OperatorMetrics

logger = logging.getLogger(__name__)

QUIET_SECONDS = 2.0
"""Between looks at a job that trains, or waits for its pods, whose changes wake the loop."""

BUSY_SECONDS = 0.5
"""Between looks while metrics are waited for: workers start, or do not follow a new plan yet, or do and its first steps
may show that its batches are far off."""

FOLLOWING_SECONDS = 30.0
"""So long after a plan was written some worker may be expected to follow it at any moment, and so long after all did
its first steps may be looked for."""

TAKEN_SECONDS = 10.0
"""Between looks at whether a name that the job needs is free at last."""

STILL_SECONDS = 30.0
"""Between looks at a job that is suspended, over or invalid."""


T = TypeVar("T")


class InThread(Protocol):
    """Runs what blocks."""

    async def __call__(self, blocking: Callable[..., T], /, *arguments: Any) -> T:
        """What it returns."""
        ...


class JobRounds:
    """The rounds of one job, one at a time. Metrics are awaited; only what speaks to the API server takes a thread."""

    def __init__(
        self,
        gateway: Gateway,
        nodes: Nodes,
        metrics: OperatorMetrics,
        source_of: Callable[[HeteroTrainingJob], Source],
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        metrics_from: Peers | None = None,
    ) -> None:
        """`clock` gives Unix seconds, `monotonic` seconds that never jump; `metrics_from` is as for `Protection`."""
        self._gateway, self._nodes, self._metrics = gateway, nodes, metrics
        self._source_of, self._clock, self._monotonic = source_of, clock, monotonic
        self._metrics_from = metrics_from
        self._read_as: tuple[str, int] | None = None
        self._job: HeteroTrainingJob | None = None
        self._core: Job | None = None
        self._problems: Sequence[Problem] = ()
        self._source: Source | None = None
        self.forget()

    def forget(self) -> None:
        """Start from what the cluster says: another replica may have acted meanwhile."""
        self._cluster = KubeCluster(self._gateway, self._nodes, self._clock, self._metrics_from)
        self._loop = Loop(self._cluster, clock=self._clock, monotonic=self._monotonic)
        self._written: tuple[int, float] | None = None
        self._followed: float | None = None

    def close(self, namespace: str, name: str) -> None:
        """The job is gone, and no round is under way."""
        self._metrics.forget_job(namespace, name)

    def check(self, body: Mapping[str, Any]) -> None:
        """Ask whether the job is there still. Raises JobGoneError if not, GatewayError if the API server fails."""
        self._gateway.check_job(body)

    async def once(
        self,
        body: Mapping[str, Any],
        pods: Sequence[PodFacts],
        plan_versions: Collection[str],
        in_thread: InThread,
    ) -> float:
        """One round about the job as the watch shows it, with its pods and its plan's resource version.

        Returns the seconds until the next. Raises JobGoneError if the job is no more, GatewayError if the API server
        fails, NotLeadingError if another replica may act.
        """
        began = self._monotonic()
        if not self._is_read(body):
            await in_thread(self._read, body)
        if self._job is None:
            await in_thread(self._cluster.refuse, body, self._problems)
            return STILL_SECONDS
        if self._source is None:
            self._source = self._source_of(self._job)
        cluster, watched = self._cluster, Watched(body, self._job, pods, plan_versions)
        if cluster.may_lack_pods(watched):
            found = await in_thread(self._tried, watched, lambda: cluster.with_lacking_pods(watched))
            if not isinstance(found, Watched):
                return found
            watched = found
        namespace = body["metadata"]["namespace"]
        reading = await self._source.read(self._job, namespace, cluster.readable(watched), self._clock())
        return await in_thread(self._act, replace(watched, reading=reading), began)

    # --- inside ---------------------------------------------------------------------------------------------

    def _is_read(self, body: Mapping[str, Any]) -> bool:
        return _edition(body) == self._read_as

    def _read(self, body: Mapping[str, Any]) -> None:
        """Keep the job in its models, which last as long as its spec; None, and the reasons, if it is invalid."""
        document = {name: body[name] for name in ("apiVersion", "kind", "metadata", "spec") if name in body}
        before, self._job, self._core, self._problems = self._job, None, None, ()
        try:
            self._job, unknown = parse_stored(document)
        except ManifestError as error:
            self._problems = error.problems
        else:
            self._core = to_core(self._job)
            if unknown:
                where = (body["metadata"]["namespace"], body["metadata"]["name"], listed(unknown))
                logger.warning("job %s/%s: this operator knows nothing of %s, and does without", *where)
        if self._job is None or before is None or self._job.spec.metrics != before.spec.metrics:
            self._source = None
        self._read_as = _edition(body)

    def _act(self, watched: Watched, began: float) -> float:
        """What is left of a round once the metrics are read."""
        delay = self._tried(watched, lambda: self._round(watched))
        self._metrics.reconciled(self._monotonic() - began)
        return delay

    def _tried(self, watched: Watched, work: Callable[[], T]) -> T | float:
        """What the work returns; or after how many seconds the next round may try again, if something is in its way."""
        try:
            return work()
        except NameTakenError as error:
            if error.earlier:
                return QUIET_SECONDS
            self._cluster.refuse(watched.body, [Problem("metadata.name", str(error))])
            return TAKEN_SECONDS
        except GatewayError as error:
            if error.status in REFUSALS:  # a quota, an admission controller or a missing right: the user's to know
                self._cluster.refuse(watched.body, [Problem("", str(error))])
            raise

    def _round(self, watched: Watched) -> float:
        core, namespace = self._core, str(watched.job.metadata.namespace)
        assert core is not None, "an invalid job has no rounds"
        done = self._loop.round(core, watched, title=f"{namespace}/{core.name}")
        if done is None:
            return BUSY_SECONDS
        self._gateway.check()  # what another replica decides by now is not ours to export
        self._metrics.observe_job(namespace, core, done.seen, done.decision, done.memory)
        self._metrics.source_up(namespace, core.name, not done.seen.metrics_problem)
        self._await_followers(done.seen, done.decision)
        return self._delay(core, done.seen, done.decision, done.memory)

    def _await_followers(self, seen: Seen, decision: Decision) -> None:
        """Measure the time from a plan's write until all follow it."""
        now = self._monotonic()
        if decision.plan is not None:
            self._written = (decision.plan.version, now)
        elif self._written is not None and _all_follow(seen, self._written[0]):
            self._metrics.followed(now - self._written[1])
            self._written, self._followed = None, now

    def _delay(self, job: Job, seen: Seen, decision: Decision, memory: Memory) -> float:
        if decision.phase in (*FINAL_PHASES, "Suspended") and not (decision.delete or decision.force_delete):
            if job.ttl_seconds is None or memory.outcome.ended_at is None:
                return STILL_SECONDS
            until_removal = memory.outcome.ended_at + job.ttl_seconds - self._clock()
            return min(max(until_removal, BUSY_SECONDS), STILL_SECONDS)
        following = self._written is not None and self._monotonic() - self._written[1] < FOLLOWING_SECONDS
        starting = decision.phase != "Running" and any(
            worker.phase == "Running" and worker.deleting_since is None for worker in seen.workers
        )
        if following or starting:
            return BUSY_SECONDS
        if self._followed is not None and self._monotonic() - self._followed < FOLLOWING_SECONDS:
            return min(max(BUSY_SECONDS, first_steps_seconds(seen)), QUIET_SECONDS)
        return QUIET_SECONDS


def _edition(body: Mapping[str, Any]) -> tuple[str, int]:
    metadata = body["metadata"]
    return metadata["uid"], metadata["generation"]


def _all_follow(seen: Seen, version: int) -> bool:
    return bool(seen.workers) and all(
        worker.metrics is not None and worker.metrics.plan_version >= version for worker in seen.workers
    )
