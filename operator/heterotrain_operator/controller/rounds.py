"""One job's rounds on a cluster: read the object, observe, decide, act; with what lasts from round to round."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from heterotrain_operator.api import HeteroTrainingJob, Problem
from heterotrain_operator.clusters.kube.api_server.gateway import JOB_API, JOB_KIND, REFUSALS, Gateway, GatewayError
from heterotrain_operator.clusters.kube.cluster import KubeCluster
from heterotrain_operator.clusters.kube.objects.owned import NameTakenError
from heterotrain_operator.clusters.kube.objects.protection import Peers
from heterotrain_operator.clusters.kube.observe.nodes import Nodes
from heterotrain_operator.clusters.kube.observe.pod_facts import PodFacts
from heterotrain_operator.clusters.kube.observe.sources import Source
from heterotrain_operator.clusters.kube.observe.watched import Watched
from heterotrain_operator.controller.judging import Documents, InThread, Judged
from heterotrain_operator.core.model import Decision, Job, Seen
from heterotrain_operator.core.pacing import ANNOUNCED, Following, seconds_to_next_round
from heterotrain_operator.core.prediction.learned import Learned
from heterotrain_operator.core.state import Remembered
from heterotrain_operator.loop import Loop
from heterotrain_operator.metrics.own import OperatorMetrics

TAKEN_SECONDS = 10.0
"""Between looks at whether a name that the job needs is free at last."""

UNREADABLE_SECONDS = 1800.0
"""Between events about a job that cannot be read; the API server forgets one after an hour."""

MOST_FORMER = 1000
"""Jobs that are gone of which it is known what their predictors have learned."""

PACE = ANNOUNCED

Former = MutableMapping[tuple[str, str], tuple[Learned, ...]]
"""What predictors have learned of jobs that are gone, by namespace and name, the oldest first. A job takes its stored
memory with it, and an object without an owner would be litter that nobody removes, so this lasts as long as the
process.
"""

T = TypeVar("T")


class JobRounds:
    """The rounds of one job, one at a time. Metrics are awaited; only what speaks to the API server takes a thread."""

    def __init__(
        self,
        gateway: Gateway,
        nodes: Nodes,
        metrics: OperatorMetrics,
        source_of: Callable[[HeteroTrainingJob], Source],
        documents: Documents,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        metrics_from: Peers | None = None,
        former: Former | None = None,
    ) -> None:
        """`clock` gives Unix seconds, `monotonic` seconds that never jump; `metrics_from` is as for `Protection`, and
        `former` is shared by the rounds of all jobs.
        """
        self._gateway, self._nodes, self._metrics = gateway, nodes, metrics
        self._source_of, self._documents, self._clock, self._monotonic = source_of, documents, clock, monotonic
        self._metrics_from = metrics_from
        self._judged: Judged | None = None
        self._refused: Judged | None = None
        self._body: Mapping[str, Any] | None = None
        self._unreadable_at: float | None = None
        self._former: Former = {} if former is None else former
        self._learned: tuple[Learned, ...] = ()
        self._source: Source | None = None
        self.forget()

    def forget(self) -> None:
        """Start from what the cluster says: another replica may have acted meanwhile."""
        self._cluster = KubeCluster(self._gateway, self._nodes, self._clock, self._metrics_from)
        self._loop = Loop(self._cluster, clock=self._clock, monotonic=self._monotonic, learned=self._begins_with)
        self._following = Following()
        self._body = self._refused = None

    def close(self, namespace: str, name: str) -> None:
        """The job is gone, and no round is under way."""
        self._metrics.forget_job(namespace, name)
        if self._judged is not None:
            self._documents.forget(namespace, self._judged.edition[0])
        if self._learned:
            self._former.pop((namespace, name), None)
            self._former[namespace, name] = self._learned
            while len(self._former) > MOST_FORMER:
                del self._former[next(iter(self._former))]

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
        """One round about the job whose metadata the watch shows, with its pods and its plan's resource version.

        Returns the seconds until the next. Raises JobGoneError if the job is no more, GatewayError if the API server
        fails, NotLeadingError if another replica may act.
        """
        began = self._monotonic()
        judged, own = self._judged, self._body
        if judged is None or own is None or not _is_read(body["metadata"], judged):
            judged, own = await self._read(body["metadata"], in_thread)
        if judged.job is None:
            if judged is not self._refused:
                await in_thread(self._refuse, own, judged)
            return PACE.still_seconds
        if self._source is None:
            self._source = self._source_of(judged.job)
        cluster, watched = self._cluster, Watched(own, judged.job, pods, plan_versions)
        if cluster.may_lack_pods(watched):
            found = await in_thread(self._tried, watched, lambda: cluster.with_lacking_pods(watched))
            if not isinstance(found, Watched):
                return found
            watched = found
        namespace = body["metadata"]["namespace"]
        reading = await self._source.read(judged.job, namespace, cluster.readable(watched), self._clock())
        delay = await in_thread(self._act, replace(watched, reading=reading), began)
        while cluster.unfinished:  # each time in a thread that others may have had meanwhile
            await in_thread(self._tried, watched, cluster.go_on, many=True)
        return delay

    # --- inside ---------------------------------------------------------------------------------------------

    def _begins_with(self) -> tuple[Learned, ...]:
        job = None if self._judged is None else self._judged.job
        return () if job is None else self._former.get((str(job.metadata.namespace), job.metadata.name), ())

    async def _read(self, metadata: Mapping[str, Any], in_thread: InThread) -> tuple[Judged, Mapping[str, Any]]:
        """Keep the job in its models, which last as long as its spec; or the reasons why it has none."""
        try:
            found = await self._documents.read(metadata, in_thread, self._judged)
        except GatewayError as error:
            await in_thread(self._say_unreadable, metadata, error)
            raise
        self._unreadable_at = None
        before, now = None if self._judged is None else self._judged.job, found.judged.job
        if now is None or before is None or now.spec.metrics != before.spec.metrics:
            self._source = None
        self._judged, self._body = found.judged, found.body
        return found.judged, found.body

    def _say_unreadable(self, metadata: Mapping[str, Any], error: GatewayError) -> None:
        now, since = self._monotonic(), self._unreadable_at
        if error.status in REFUSALS and (since is None or now - since >= UNREADABLE_SECONDS):
            self._unreadable_at = now
            self._cluster.unreadable({"apiVersion": JOB_API, "kind": JOB_KIND, "metadata": metadata}, error)

    def _refuse(self, own: Mapping[str, Any], judged: Judged) -> None:
        """Say why nothing is done about the job, and keep nothing of its status, which nothing bounds."""
        self._cluster.refuse(own, judged.problems)
        self._cluster.forget_status()
        self._body, self._refused = _without_status(own), judged

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
                return PACE.quiet_seconds
            self._cluster.refuse(watched.body, [Problem("metadata.name", str(error))])
            return TAKEN_SECONDS
        except GatewayError as error:
            if error.status in REFUSALS:  # a quota, an admission controller or a missing right: the user's to know
                self._cluster.hinder(watched.body, error)
            raise

    def _round(self, watched: Watched) -> float:
        core = None if self._judged is None else self._judged.core
        assert core is not None, "an invalid job has no rounds"
        namespace = watched.namespace
        done = self._loop.round(core, watched, title=f"{namespace}/{core.name}")
        if done is None:
            return PACE.busy_seconds
        # From now on the status is as it was written, and is kept once.
        self._body = _without_status(watched.body)
        self._gateway.check()  # what another replica decides by now is not ours to export
        self._learned = done.memory.learned
        self._metrics.observe_job(namespace, core, done.seen, done.decision, done.memory)
        self._metrics.source_up(namespace, core.name, not done.seen.metrics_problem)
        return self._delay(core, done.seen, done.decision, done.memory)

    def _delay(self, job: Job, seen: Seen, decision: Decision, memory: Remembered) -> float:
        """Seconds until the next round; measures the time from a plan's write until all follow it."""
        now = self._monotonic()
        before, self._following = self._following, self._following.after(seen, decision, now)
        if before.written_at is not None and self._following.written_at is None:
            self._metrics.followed(now - before.written_at)
        removal = None
        if job.ttl_seconds is not None and memory.outcome.ended_at is not None:
            removal = memory.outcome.ended_at + job.ttl_seconds - self._clock()
        return seconds_to_next_round(PACE, seen, decision, following=self._following, now=now, removal_seconds=removal)


def _without_status(body: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: part for name, part in body.items() if name != "status"}


def _is_read(metadata: Mapping[str, Any], judged: Judged) -> bool:
    """Whether the watch, which may lag behind, shows no newer edition."""
    uid, generation = judged.edition
    return judged.lasting and metadata["uid"] == uid and metadata["generation"] <= generation
