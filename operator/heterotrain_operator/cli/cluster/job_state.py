"""Read the object of a job in a cluster tolerantly.

The object may come from another version of the operator, or from one that has not looked at it yet: absent fields are
None, unknown ones are ignored, and one of another type counts as absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from heterotrain.contract import Evaluated
from heterotrain.foreign import as_text, is_number, is_whole
from heterotrain_operator.core.model import FINAL_PHASES

LONGEST_TEXT = 32_768
"""Characters of a text; a condition's message may have as many."""


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One worker as the operator last saw it; times in seconds, `waiting` a share of the step, CPU limit in cores.

    `most` is the greatest batch that its memory is thought to hold. `throttled` and `cpu_wait` are shares of the active
    plan's time, in percent. `replaced_by` and `replaces` name the worker that takes its place, or whose place it takes;
    empty: nobody. Of an asynchronous job: `updates` that were applied, the mean `staleness` of these in updates, those
    that were `discarded`, and for how long it was let wait for slower workers.
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
    updates: int | None = None
    staleness: float | None = None
    discarded: int | None = None
    waited_seconds: float | None = None


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
    scaling: tuple[str, ...]
    cost: float | None
    costs: Mapping[str, float]
    reason: str
    completed: datetime | None
    conditions: tuple[ConditionState, ...]
    workers: tuple[WorkerState, ...]
    updates_per_second: float | None = None
    server: str = ""

    @property
    def ended(self) -> bool:
        """Whether it has succeeded or failed."""
        return self.phase in FINAL_PHASES

    def condition(self, kind: str) -> ConditionState | None:
        """The condition of a type; None if it has none."""
        return next((condition for condition in self.conditions if condition.type == kind), None)


def read_job(document: Mapping[str, Any]) -> JobState:
    """The state of a job from its object as the API gives it; `phase` is empty until an operator has seen it."""
    metadata, status = _Fields(document.get("metadata")), _Fields(document.get("status"))
    batching = _Fields(_Fields(document.get("spec")).get("batching"))
    observed, generation = status.whole("observedGeneration"), metadata.whole("generation")
    return JobState(
        name=metadata.text("name"),
        namespace=metadata.text("namespace"),
        uid=metadata.text("uid"),
        created=moment(metadata.get("creationTimestamp")),
        policy=batching.text("policy"),
        dry_run=batching.get("dryRun") is True,
        phase=status.text("phase"),
        outdated=observed is not None and generation is not None and observed < generation,
        ready=status.text("ready"),
        step=status.whole("step"),
        total_steps=status.whole("totalSteps"),
        imbalance_percent=status.whole("imbalancePercent"),
        evaluated=_evaluated(_Fields(status.get("evaluation"))),
        plan_version=status.whole("planVersion"),
        plan_generation=status.whole("planGeneration"),
        global_batch=status.whole("globalBatchSize"),
        restarts=status.whole("restarts"),
        scaling=_scaling(_Fields(status.get("scaling"))),
        cost=_Fields(status.get("cost")).number("total"),
        costs={
            each.text("group"): cost
            for each in _Fields(status.get("cost")).entries("groups")
            if (cost := each.number("cost")) is not None
        },
        reason=status.text("reason"),
        completed=moment(status.get("completionTime")),
        conditions=tuple(_condition(entry) for entry in status.entries("conditions")),
        workers=tuple(_worker(entry) for entry in status.entries("workers")),
        updates_per_second=status.number("updatesPerSecond"),
        server=_server(_Fields(status.get("server"))),
    )


def moment(text: object) -> datetime | None:
    """A point in time as Kubernetes writes it (RFC 3339); None for none."""
    try:
        found = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return None if found is None or found.tzinfo is None else found


class _Fields:
    """What is of the expected type among the fields of an object, which may be none at all."""

    def __init__(self, found: object) -> None:
        self._fields: Mapping[str, Any] = found if isinstance(found, Mapping) else {}

    def get(self, name: str) -> Any:
        return self._fields.get(name)

    def text(self, name: str, otherwise: str = "") -> str:
        found = self._fields.get(name)
        return as_text(found, LONGEST_TEXT) if isinstance(found, str) else otherwise

    def whole(self, name: str) -> int | None:
        found = self._fields.get(name)
        return found if is_whole(found) else None

    def number(self, name: str) -> float | None:
        found = self._fields.get(name)
        return found if is_number(found) else None

    def entries(self, name: str) -> list[_Fields]:
        found = self._fields.get(name)
        return [_Fields(entry) for entry in found] if isinstance(found, list) else []


def _evaluated(evaluation: _Fields) -> Evaluated | None:
    step = evaluation.whole("step")
    metrics = evaluation.entries("metrics")
    return Evaluated.of(step, [(each.get("name"), each.get("value")) for each in metrics])


def _scaling(scaling: _Fields) -> tuple[str, ...]:
    """How many workers were found to pay, and from what, in sentences."""
    sizes = [f"{each.text('group')} {each.whole('workers')}" for each in scaling.entries("sizes")]
    if not sizes:
        return ()
    over = scaling.get("atRest") is True
    said = [f"{', '.join(sizes)}: {'the search is over' if over else 'other sizes may still be tried'}"]
    said += [
        f"{each.text('size')}: {each.number('samplesPerSecond'):g} samples/s"
        for each in scaling.entries("points")
        if each.number("samplesPerSecond") is not None
    ]
    said += filter(None, [scaling.text("lastDecision")])
    blocked = scaling.text("blocked")
    return (*said, *([f"blocked: {blocked}"] if blocked else []))


def _server(server: _Fields) -> str:
    """The parameter server in words; empty if there is none."""
    if not server.text("name"):
        return ""
    said = ": ".join(filter(None, [server.text("phase"), server.text("message")]))
    ends = server.whole("ends")
    return f"{server.text('name')} ({said}{f'; {ends} before it ended' if ends else ''})"


def _condition(entry: _Fields) -> ConditionState:
    return ConditionState(
        type=entry.text("type"),
        status=entry.text("status", "Unknown"),
        reason=entry.text("reason"),
        message=entry.text("message"),
        since=moment(entry.get("lastTransitionTime")),
    )


def _worker(entry: _Fields) -> WorkerState:
    own, waiting = entry.number("ownMilliseconds"), entry.number("waitingPercent")
    return WorkerState(
        name=entry.text("name"),
        group=entry.text("group"),
        phase=entry.text("phase"),
        batch=entry.whole("batchSize"),
        most=entry.whole("maxBatchSize"),
        own_seconds=None if own is None else own / 1000,
        waiting=None if waiting is None else waiting / 100,
        throttled=entry.whole("cpuThrottledPercent"),
        cpu_wait=entry.whole("cpuWaitPercent"),
        slowed_by=entry.text("slowedBy"),
        cpu_limit=entry.number("cpuLimit"),
        plan_version=entry.whole("planVersion"),
        node=entry.text("node"),
        message=entry.text("message"),
        replaced_by=entry.text("replacedBy"),
        replaces=entry.text("replaces"),
        updates=entry.whole("updates"),
        staleness=entry.number("staleness"),
        discarded=entry.whole("discarded"),
        waited_seconds=entry.number("waitedSeconds"),
    )
