"""One job's rounds on a cluster: read the object, observe, decide, act; with what lasts from round to round."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from heterotrain_operator.api import HeteroTrainingJob, ManifestError, parse_manifest, to_core
from heterotrain_operator.clusters.kube.cluster import KubeCluster
from heterotrain_operator.clusters.kube.gateway import Gateway
from heterotrain_operator.clusters.kube.invalid import invalid_status
from heterotrain_operator.clusters.kube.nodes import Nodes
from heterotrain_operator.clusters.kube.observed import PodFacts
from heterotrain_operator.clusters.kube.sources import Source, make_source
from heterotrain_operator.clusters.port import PlanConflictError
from heterotrain_operator.core.decide import decide
from heterotrain_operator.core.model import Decision, Seen
from heterotrain_operator.core.state import Memory
from heterotrain_operator.metrics.own import OperatorMetrics
from heterotrain_operator.metrics.pods import PodScraper
from heterotrain_operator.steer import FINAL_PHASES, period_seconds

logger = logging.getLogger(__name__)

QUIET_SECONDS = 2.0
"""Between looks at a job that trains."""

BUSY_SECONDS = 0.5
"""Between looks while workers start or end, or a plan is not followed yet; pods' own changes wake the loop."""

STILL_SECONDS = 30.0
"""Between looks at a job that is suspended, over or invalid."""


class JobRounds:
    """The rounds of one job, by one thread at a time."""

    def __init__(
        self,
        gateway: Gateway,
        nodes: Nodes,
        scraper: PodScraper,
        metrics: OperatorMetrics,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        """`clock` gives Unix seconds, `monotonic` seconds that never jump."""
        self._gateway, self._nodes, self._scraper, self._metrics = gateway, nodes, scraper, metrics
        self._clock, self._monotonic = clock, monotonic
        self._job: HeteroTrainingJob | None = None
        self._read_as: tuple[str, int] | None = None
        self._source: Source | None = None
        self._invalid: Mapping[str, Any] | None = None
        self._followed_since: tuple[int, float] | None = None
        self.forget()

    def forget(self) -> None:
        """Start from what the cluster says: another replica may have acted meanwhile."""
        self._cluster = KubeCluster(self._gateway, self._nodes, self._clock)

    def close(self, namespace: str, name: str) -> None:
        """The job is gone."""
        self._metrics.forget_job(namespace, name)

    def once(self, body: Mapping[str, Any], pods: Sequence[PodFacts], plan_version: str) -> float:
        """One round about the job as `body` shows it. Returns the seconds until the next.

        Raises GatewayError if the API server fails, NotLeadingError if another replica may act.
        """
        began = self._monotonic()
        job = self._read(body)
        if job is None:
            return STILL_SECONDS
        if self._source is None:
            self._source = make_source(job, self._gateway, self._scraper)
        cluster = self._cluster
        cluster.notice(body, job, pods, plan_version, self._source)
        seen, memory = cluster.observe()
        core = to_core(job)
        decision, memory = decide(core, seen, memory or Memory.initial(), self._clock())
        try:
            cluster.act(decision, memory)
        except PlanConflictError as error:
            logger.warning("job %s/%s: %s; observing again", body["metadata"]["namespace"], job.metadata.name, error)
            return BUSY_SECONDS
        namespace = body["metadata"]["namespace"]
        self._metrics.observe_job(namespace, core, seen, decision, memory)
        self._metrics.source_up(namespace, job.metadata.name, not seen.metrics_problem)
        self._await_followers(seen, decision)
        self._metrics.reconciled(self._monotonic() - began)
        return self._delay(seen, decision)

    # --- inside ---------------------------------------------------------------------------------------------

    def _read(self, body: Mapping[str, Any]) -> HeteroTrainingJob | None:
        """The job in its models; None, with the reason in its status, if it is invalid."""
        metadata = body["metadata"]
        key = (metadata["uid"], metadata["generation"])
        if key == self._read_as:
            return self._job
        document = {name: body[name] for name in ("apiVersion", "kind", "metadata", "spec") if name in body}
        try:
            job = parse_manifest(document)
        except ManifestError as error:
            self._job = None
            status = invalid_status(body.get("status"), metadata["generation"], error.problems, self._clock())
            if status != body.get("status"):
                self._gateway.write_status(metadata["namespace"], metadata["name"], metadata["uid"], status)
        else:
            if self._job is None or job.spec.metrics != self._job.spec.metrics:
                self._source = None
            self._job = job
        self._read_as = key
        return self._job

    def _await_followers(self, seen: Seen, decision: Decision) -> None:
        """Measure the time from a plan's write until all follow it."""
        now = self._monotonic()
        if decision.plan is not None:
            self._followed_since = (decision.plan.version, now)
        elif self._followed_since is not None and _all_follow(seen, self._followed_since[0]):
            self._metrics.followed(now - self._followed_since[1])
            self._followed_since = None

    def _delay(self, seen: Seen, decision: Decision) -> float:
        if decision.phase in (*FINAL_PHASES, "Suspended") and not seen.workers and decision.delete == ():
            return STILL_SECONDS
        if self._followed_since is not None:
            return BUSY_SECONDS
        return max(BUSY_SECONDS, QUIET_SECONDS * period_seconds(seen, decision))


def _all_follow(seen: Seen, version: int) -> bool:
    return bool(seen.workers) and all(
        worker.metrics is not None and worker.metrics.plan_version >= version for worker in seen.workers
    )
