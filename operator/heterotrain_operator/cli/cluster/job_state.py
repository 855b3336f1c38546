"""Read the object of a job in a cluster tolerantly.

The object may come from another version of the operator, or from one that has not looked at it yet: absent fields are
None, and unknown ones are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from heterotrain.contract import Evaluated
from heterotrain_operator.core.model import FINAL_PHASES


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One worker as the operator last saw it; times in seconds, `waiting` a share of the step, CPU limit in cores.

    `most` is the greatest batch that its memory is thought to hold. `throttled` and `cpu_wait` are shares of the active
    plan's time, in percent. `replaced_by` and `replaces` name the worker that takes its place, or whose place it takes;
    empty: nobody.
    """

    name: str
    group: str
    phase: str
    batch: int | None
    most: int | None
    own_seconds: float | None
    waiting: float | None
    throttled: int | None
    cpu_wait: int | None
    slowed_by: str
    cpu_limit: float | None
    plan_version: int | None
    node: str
    message: str
    replaced_by: str = ""
    replaces: str = ""


@dataclass(frozen=True, slots=True)
class ConditionState:
    """One condition of the status."""

    type: str
    status: str
    reason: str
    message: str
    since: datetime | None

    @property
    def holds(self) -> bool:
        """Whether its status is True."""
        return self.status == "True"


@dataclass(frozen=True, slots=True)
class JobState:
    """A job's metadata, the few fields of its spec that explain its status, and the status."""

    name: str
    namespace: str
    uid: str
    created: datetime | None
    policy: str
    dry_run: bool
    phase: str
    outdated: bool
    ready: str
    step: int | None
    total_steps: int | None
    imbalance_percent: int | None
    evaluated: Evaluated | None
    plan_version: int | None
    plan_generation: int | None
    global_batch: int | None
    restarts: int | None
    reason: str
    completed: datetime | None
    conditions: tuple[ConditionState, ...]
    workers: tuple[WorkerState, ...]

    @property
    def ended(self) -> bool:
        """Whether it has succeeded or failed."""
        return self.phase in FINAL_PHASES

    def condition(self, kind: str) -> ConditionState | None:
        """The condition of a type; None if it has none."""
        return next((condition for condition in self.conditions if condition.type == kind), None)


def read_job(document: Mapping[str, Any]) -> JobState:
    """The state of a job from its object as the API gives it; `phase` is empty until an operator has seen it."""
    metadata = document["metadata"]
    status = document.get("status") or {}
    batching = (document.get("spec") or {}).get("batching") or {}
    observed = status.get("observedGeneration")
    return JobState(
        name=metadata["name"],
        namespace=metadata.get("namespace", ""),
        uid=metadata.get("uid", ""),
        created=moment(metadata.get("creationTimestamp")),
        policy=batching.get("policy", ""),
        dry_run=batching.get("dryRun") is True,
        phase=status.get("phase", ""),
        outdated=observed is not None and observed < metadata.get("generation", observed),
        ready=status.get("ready", ""),
        step=status.get("step"),
        total_steps=status.get("totalSteps"),
        imbalance_percent=status.get("imbalancePercent"),
        evaluated=_evaluated(status.get("evaluation")),
        plan_version=status.get("planVersion"),
        plan_generation=status.get("planGeneration"),
        global_batch=status.get("globalBatchSize"),
        restarts=status.get("restarts"),
        reason=status.get("reason", ""),
        completed=moment(status.get("completionTime")),
        conditions=tuple(_condition(entry) for entry in status.get("conditions") or ()),
        workers=tuple(_worker(entry) for entry in status.get("workers") or ()),
    )


def moment(text: str | None) -> datetime | None:
    """A point in time as Kubernetes writes it (RFC 3339); None for none."""
    return datetime.fromisoformat(text) if text else None


def _evaluated(entry: Any) -> Evaluated | None:
    if not isinstance(entry, Mapping):
        return None
    metrics = entry.get("metrics") or ()
    return Evaluated.of(entry.get("step"), [(each.get("name"), each.get("value")) for each in metrics])


def _condition(entry: Mapping[str, Any]) -> ConditionState:
    return ConditionState(
        type=entry.get("type", ""),
        status=entry.get("status", "Unknown"),
        reason=entry.get("reason", ""),
        message=entry.get("message", ""),
        since=moment(entry.get("lastTransitionTime")),
    )


def _worker(entry: Mapping[str, Any]) -> WorkerState:
    own, waiting = entry.get("ownMilliseconds"), entry.get("waitingPercent")
    return WorkerState(
        name=entry.get("name", ""),
        group=entry.get("group", ""),
        phase=entry.get("phase", ""),
        batch=entry.get("batchSize"),
        most=entry.get("maxBatchSize"),
        own_seconds=None if own is None else own / 1000,
        waiting=None if waiting is None else waiting / 100,
        throttled=entry.get("cpuThrottledPercent"),
        cpu_wait=entry.get("cpuWaitPercent"),
        slowed_by=entry.get("slowedBy", ""),
        cpu_limit=entry.get("cpuLimit"),
        plan_version=entry.get("planVersion"),
        node=entry.get("node", ""),
        message=entry.get("message", ""),
        replaced_by=entry.get("replacedBy", ""),
        replaces=entry.get("replaces", ""),
    )
