"""A worker as decisions see it: the facts of its pod, and what it exports."""

from __future__ import annotations

from heterotrain_operator.clusters.kube.observe.pod_facts import PodFacts
from heterotrain_operator.core.model import WorkerMetrics, WorkerSeen


def worker_seen(facts: PodFacts, metrics: WorkerMetrics | None, node_lost: bool) -> WorkerSeen:
    """The worker as the core sees it. Metrics of a pod that cannot serve any are old ones, and are left out."""
    return WorkerSeen(
        name=facts.name,
        uid=facts.uid,
        group=facts.group,
        index=facts.index,
        phase=facts.phase,
        address=facts.address,
        cpu_limit=facts.cpu_limit,
        exit_code=facts.exit_code,
        finished=facts.finished,
        step=facts.step,
        message=facts.message,
        disrupted=facts.disrupted or node_lost,
        out_of_memory=facts.out_of_memory,
        script_error=facts.script_error,
        evaluated=facts.evaluated,
        fatal=facts.fatal,
        asked_to_stop=facts.asked_to_stop,
        left=facts.left,
        deleting_since=facts.deleting_since,
        node=facts.node,
        node_lost=node_lost,
        gated=facts.gated,
        lingering=facts.lingering,
        metrics=metrics if facts.ready_to_scrape else None,
    )
