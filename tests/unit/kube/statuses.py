"""A job of three workers that trains, as seen and as its status shows it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from heterotrain.contract import Member, Plan
from heterotrain_operator.clusters.kube.status.job_status import next_status
from heterotrain_operator.clusters.kube.status.schema import checked
from heterotrain_operator.core.model import Condition, Decision, JobPhase, Seen, WorkerMetrics, WorkerSeen
from heterotrain_operator.core.remembered.job import RestartBudget, Start
from heterotrain_operator.core.state import Remembered
from heterotrain_operator.core.stragglers.verdict import Budget, Grounds, Remedy, Verdict
from kube_server.api_server import Document
from unit.kube.documents import job

NOW = 1769860800.0  # 2026-01-31T12:00:00Z
BATCHES = {"digits-small-0": 48, "digits-small-1": 48, "digits-large-0": 96}
MEMORY = Remembered(plan_version=7, generation=2, budget=RestartBudget(restarts=1), start=Start(started_at=NOW - 60))

VERDICT = Verdict(
    worker="digits-small-0",
    group="small",
    grounds=Grounds.ITSELF,
    slowdown=2.04,
    since_step=180,
    cause="",
    throttled=None,
    waiting=None,
    remedy=Remedy.REPLACE,
    outlooks=None,
    budget=Budget(3, 60.0),
)


def plan(version: int = 7, batches: dict[str, int] | None = None) -> Plan:
    members = tuple(
        Member(name, f"uid-{name}", "10.0.0.7:29500", name.split("-")[1], batch)
        for name, batch in (batches or BATCHES).items()
    )
    return Plan(version, 2, "step", members)


def metrics(own_seconds: float = 1.0, **changes: Any) -> WorkerMetrics:
    """Ten steps that took so long altogether, and as long again in waiting."""
    found = WorkerMetrics(
        plan_version=7,
        generation=2,
        step=120,
        total_steps=150,
        epoch=4,
        phase="training",
        steps=10.0,
        own_seconds=own_seconds,
        wait_seconds=own_seconds,
    )
    return replace(found, **changes)


def worker(name: str, found: WorkerMetrics | None = None, **changes: Any) -> WorkerSeen:
    seen = WorkerSeen(
        name=name,
        uid=f"uid-{name}",
        group=name.split("-")[1],
        index=int(name.split("-")[2]),
        phase="Running",
        cpu_limit=0.25,
        node="node-1",
        metrics=found,
    )
    return replace(seen, **changes)


def training(*own_seconds: float, **changes: Any) -> Seen:
    """All three workers, each with these own times of ten steps."""
    workers = tuple(
        worker(name, metrics(own, **changes)) for name, own in zip(BATCHES, own_seconds or (1.0, 1.0, 1.0), strict=True)
    )
    return Seen(tuple(reversed(workers)), plan())


def decision(phase: JobPhase = "Running", reason: str = "batches stay", **changes: Any) -> Decision:
    conditions = (
        Condition("Running", phase == "Running", "Training", reason),
        Condition("Balanced", True, "WithinTolerance", "the slowest takes 100 ms"),
    )
    return replace(Decision(phase, reason, conditions=conditions), **changes)


def status(
    previous: Document | None = None,
    seen: Seen | None = None,
    decided: Decision | None = None,
    *,
    spec: Document | None = None,
    memory: Remembered = MEMORY,
    now: float = NOW,
) -> Document:
    wanted = job({"checkpoint": {"path": "/c", "persistentVolumeClaim": "c"}, **(spec or {})})
    found = training() if seen is None else seen
    return checked(next_status(previous, wanted, found, decided or decision(), memory, now))


def condition(document: Document, kind: str) -> Document:
    (found,) = [entry for entry in document["conditions"] if entry["type"] == kind]
    result: Document = found
    return result
