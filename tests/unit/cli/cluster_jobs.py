"""Jobs as a cluster holds them: objects, plans, memories and events as the operator itself writes them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from heterotrain_operator.api import HeteroTrainingJob, parse_manifest, to_core
from heterotrain_operator.clusters.kube.act.report import build_event
from heterotrain_operator.clusters.kube.objects.names import plan_name
from heterotrain_operator.clusters.kube.objects.plan_map import build_plan_map
from heterotrain_operator.clusters.kube.status.job_status import next_status
from heterotrain_operator.clusters.kube.status.schema import checked
from heterotrain_operator.core.model import Decision, Event
from kube_server.api_server import ApiServer
from unit.core.traces import World

Document = dict[str, Any]

SPEEDS = (1, 2, 4)
"""Seconds factors of the three workers of a job."""


def job_document(name: str = "digits", namespace: str = "team", **batching: Any) -> Document:
    """A job of three groups with one worker each, as the cluster shows it before the operator has seen it."""
    container = {"name": "t", "image": "trainer", "resources": {"limits": {"cpu": "1"}}}
    groups = [
        {"name": f"g{rank}", "replicas": 1, "template": {"spec": {"containers": [container]}}}
        for rank, _ in enumerate(SPEEDS)
    ]
    return {
        "apiVersion": "heterotrain.dev/v1alpha1",
        "kind": "HeteroTrainingJob",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-of-{name}",
            "resourceVersion": "50",
            "generation": 1,
            "creationTimestamp": "2023-11-14T22:10:00Z",
            "managedFields": [{"manager": "kubectl"}],
        },
        "spec": {
            "workerGroups": groups,
            "training": {"globalBatchSize": 192, "steps": 1000},
            "batching": {"policy": "Optimal", **batching},
        },
    }


@dataclass
class Trained:
    """A job that has trained for a while, and all that the operator has left of it in the cluster."""

    document: Document
    plan_map: dict[str, str]
    events: list[Document]
    world: World

    @property
    def now(self) -> datetime:
        """A moment after the last decision."""
        return datetime.fromtimestamp(self.world.now + 5, UTC)

    def put(self, api: ApiServer) -> None:
        """Lay it all into a cluster."""
        api.restore("heterotrainingjobs", self.document)
        job = self.document["metadata"]
        metadata = {"name": plan_name(job["name"]), "namespace": job["namespace"], "resourceVersion": "7"}
        api.restore("configmaps", {"metadata": metadata, "data": self.plan_map})
        for event in self.events:
            api.restore("events", event)


def trained(intervals: int = 6, name: str = "digits", **batching: Any) -> Trained:
    """A job after so many control intervals; the memory is stored with every plan, as the operator does."""
    document = job_document(name, **batching)
    job = parse_manifest(document)
    scales = {f"{name}-g{rank}-0": float(speed) for rank, speed in enumerate(SPEEDS)}
    world = World(to_core(job), scales).start()
    numbers = itertools.count()
    stored, events = (
        world.memory,
        [event for decision in world.decisions for event in _events(document, decision, world, numbers)],
    )
    for _ in range(intervals):
        decision = world.run(1)[0]
        events += _events(document, decision, world, numbers)
        if decision.plan is not None:
            stored = world.memory
    document["status"] = with_status(job, world, world.decisions[-1])
    assert world.plan is not None
    plan_map = build_plan_map(job, document["metadata"]["uid"], world.plan.to_json(), stored.to_json())["data"]
    return Trained(document, plan_map, events, world)


def with_status(job: HeteroTrainingJob, world: World, decision: Decision, **changes: Any) -> Document:
    """The status that the operator writes after a decision."""
    seen = world.seen()
    workers = tuple(
        replace(
            worker,
            cpu_limit=1.0,
            node=f"node-{worker.group}",
            metrics=worker.metrics and replace(worker.metrics, wait_seconds=worker.metrics.own_seconds / 4),
        )
        for worker in seen.workers
    )
    draft = next_status(None, job, replace(seen, workers=workers), decision, world.memory, world.now)
    return {**checked(draft), **changes}


def _events(document: Document, decision: Decision, world: World, numbers: Iterator[int]) -> list[Document]:
    return [recorded(document, event, world.now, next(numbers)) for event in decision.events]


def recorded(document: Document, event: Event, now: float, number: int = 0) -> Document:
    """An event as the cluster keeps it."""
    body = build_event(document, event, now)
    metadata = {**body["metadata"], "name": f"{document['metadata']['name']}.{number}", "resourceVersion": str(number)}
    return {**body, "metadata": metadata}
