"""What the operator writes into a job's status, and when it is worth a write.

A status is for people and for other controllers: it changes at once with what matters to them, and now and then with
figures that are never still. It holds no heartbeat.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from heterotrain.contract import PHASE_FINISHED, PHASE_REFORMING, PHASE_TRAINING
from heterotrain_operator.api import HeteroTrainingJob
from heterotrain_operator.api.base import MAX_BATCH, MAX_COUNT, MAX_NAME, MAX_STEPS, MAX_TEXT
from heterotrain_operator.api.status import MAX_WORKERS_SHOWN, JobStatus
from heterotrain_operator.clusters.kube.moments import timestamp
from heterotrain_operator.clusters.kube.status import conditions
from heterotrain_operator.clusters.kube.status.durability import checkpoint_condition
from heterotrain_operator.clusters.kube.status.worker_status import (
    PAUSE_PHASES,
    TRAINING_PHASES,
    Entry,
    two_digits,
    worker_entries,
)
from heterotrain_operator.core.lifecycle.evaluations import newest_evaluation
from heterotrain_operator.core.model import FINAL_PHASES, Decision, Seen
from heterotrain_operator.core.state import Memory

FIGURES_SECONDS = 30.0
"""Shortest time between two writes that carry nothing but new figures."""

_ATTEMPTS = 4
"""To make something of a status that somebody else wrote, before nothing of it is taken."""

_STEPPING = frozenset({*TRAINING_PHASES, PHASE_REFORMING, PHASE_FINISHED})
"""Phases of a worker that knows how far the job has come; before, it has not read the checkpoint."""

_QUIET = frozenset({"step", "epoch", "evaluation", "imbalancePercent"})
_QUIET_OF_WORKER = frozenset({"ownMilliseconds", "waitingPercent", "maxBatchSize"})
_FIGURE = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")


def next_status(  # noqa: PLR0917 - each is a thing of its own kind, as `decide` takes and gives them
    previous: Mapping[str, Any] | None,
    job: HeteroTrainingJob,
    seen: Seen,
    decision: Decision,
    memory: Memory,
    now: float,
) -> dict[str, Any]:
    """The status of a job after a decision, in the API's names; `now` in Unix seconds.

    `previous` is the one found before, written or not: moments of transition, and what cannot be seen this time, are
    taken over from it. What is not known is absent.
    """
    previous = previous or {}
    plan = decision.plan or seen.plan
    over = decision.phase in FINAL_PHASES
    groups = [group.name for group in job.spec.worker_groups]
    safe = dict(decision.safe_batches)
    workers = worker_entries(previous.get("workers") or (), groups, seen, plan, safe=safe, over=over)
    durable = checkpoint_condition(job)
    wanted = (*decision.conditions, *([] if durable is None else [durable]))
    completed = previous.get("completionTime") if previous.get("phase") in FINAL_PHASES else None
    status = {
        "observedGeneration": job.metadata.generation,
        "phase": decision.phase,
        "ready": f"{sum(_trains(entry) for entry in workers)}/{job.spec.replicas}",
        "replicas": job.spec.replicas,
        **_progress(previous, job, seen),
        "evaluation": _evaluation(seen) or previous.get("evaluation"),
        "imbalancePercent": _percent(decision.imbalance),
        "planVersion": _within(plan.version if plan else None, MAX_STEPS),
        "planGeneration": _within(plan.generation if plan else None, MAX_STEPS),
        "globalBatchSize": _within(plan.global_batch_size if plan else None, MAX_BATCH),
        "resumedFrom": _resumed_from(memory),
        "restarts": _within(memory.restarts, MAX_COUNT),
        "reason": decision.reason[:MAX_TEXT],
        "startTime": _moment(memory.started_at),
        "completionTime": (completed or timestamp(memory.ended_at or now)) if over else None,
        "conditions": conditions.rendered(previous.get("conditions") or (), wanted, job.metadata.generation, now),
        "workers": workers[:MAX_WORKERS_SHOWN],
    }
    return checked(status)


def checked(status: Mapping[str, Any]) -> dict[str, Any]:
    """The status as the cluster will store it, with the schema's defaults: else the two would never be equal.

    Raises ValueError if the schema does not admit it.
    """
    model = JobStatus.model_validate_json(json.dumps(status))
    document: dict[str, Any] = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return document


def tolerated(status: Mapping[str, Any]) -> dict[str, Any]:
    """What is understood here of a status that is found in the cluster: one of a newer operator may have more fields,
    conditions and phases, and those stay only until it is written anew.
    """
    document = json.loads(json.dumps(status))  # what is compared below is read from JSON, too
    for _ in range(_ATTEMPTS):
        try:
            return checked(document)
        except ValidationError as error:
            document = _without_faults(document, error.errors(include_url=False))
        except ValueError:
            break
    return {}


def _without_faults(status: dict[str, Any], errors: Sequence[ErrorDetails]) -> dict[str, Any]:
    """The status without unknown fields, without fields of its own that are malformed, and without the entries of its
    lists that are.
    """
    entries: set[tuple[str | int, str | int]] = set()
    for error in reversed(errors):
        name, *below = error["loc"] or ("",)
        if error["type"] == "extra_forbidden" and len(below) == 2:
            del status[str(name)][below[0]][below[1]]
        elif below:
            entries.add((name, below[0]))
        else:
            status.pop(str(name), None)
    for name in {str(name) for name, _ in entries}:
        status[name] = [entry for place, entry in enumerate(status[name]) if (name, place) not in entries]
    return status


def worth_writing(
    previous: Mapping[str, Any] | None, new: Mapping[str, Any], seconds_since_last_write: float | None
) -> bool:
    """Whether a status is to be written: at once if more than figures changed, else every `FIGURES_SECONDS` at most.

    While the job runs, reasons and messages of its conditions count as figures, and so does whether it is balanced:
    they speak of each measurement. `seconds_since_last_write` None: it is not known, as after the operator's restart.
    """
    previous = previous or {}
    if previous == new:
        return False
    if _without_figures(previous) != _without_figures(new):
        return True
    return seconds_since_last_write is None or seconds_since_last_write >= FIGURES_SECONDS


def _trains(entry: Entry) -> bool:
    """Whether a worker takes part in the training, under any plan."""
    return entry["phase"] in TRAINING_PHASES and "planVersion" in entry


def _progress(previous: Mapping[str, Any], job: HeteroTrainingJob, seen: Seen) -> dict[str, Any]:
    """Step, steps of the whole training, and epoch: of the workers that know them, else as they were."""
    stepping = [w.metrics for w in seen.workers if w.metrics is not None and w.metrics.phase in _STEPPING]
    steps = [*(metrics.step for metrics in stepping), *(w.step for w in seen.workers if w.finished)]
    totals = [metrics.total_steps for metrics in stepping if metrics.total_steps > 0]
    epochs = [metrics.epoch for metrics in stepping]
    return {
        "step": _within(max(steps, default=previous.get("step")), MAX_STEPS),
        "totalSteps": job.spec.training.steps or _within(max(totals, default=previous.get("totalSteps")), MAX_STEPS),
        "epoch": _within(max(epochs, default=previous.get("epoch")), MAX_STEPS),
    }


def _percent(part: float | None) -> int | None:
    """In percent, of which two digits are told."""
    if part is None or not part >= 0:
        return None
    return int(min(two_digits(round(100 * min(part, MAX_COUNT))), MAX_COUNT))


def _resumed_from(memory: Memory) -> dict[str, Any] | None:
    """What an earlier job of this name has trained, where training went on from that."""
    if not 0 <= memory.resumed_step <= MAX_STEPS:
        return None
    return {"step": memory.resumed_step, "jobUid": memory.resumed_from[:MAX_NAME]}


def _evaluation(seen: Seen) -> Entry | None:
    """The newest evaluation with four digits of its values, which suffice people and keep the status still."""
    newest = newest_evaluation(seen.workers)
    if newest is None:
        return None
    metrics = [{"name": name, "value": float(f"{value:.4g}")} for name, value in newest.metrics]
    return {"step": newest.step, "metrics": metrics}


def _within(value: int | None, most: int) -> int | None:
    """The figure if the schema admits it: a plan or a memory may have been written by anybody."""
    return value if value is not None and 0 <= value <= most else None


def _moment(unix_seconds: float | None) -> str | None:
    if unix_seconds is None:
        return None
    try:
        return timestamp(unix_seconds)
    except ValueError:
        return None


def _without_figures(status: Mapping[str, Any]) -> dict[str, Any]:
    """What of a status is worth a write by itself."""
    running = status.get("phase") == "Running"
    rest = {name: value for name, value in status.items() if name not in _QUIET}
    rest["reason"] = "" if running else _worded(status.get("reason"))
    rest["workers"] = [_worker_without_figures(entry) for entry in _list(status, "workers")]
    rest["conditions"] = [_condition_without_figures(each, running) for each in _list(status, "conditions")]
    return rest


def _condition_without_figures(condition: Mapping[str, Any], running: bool) -> dict[str, Any]:
    if not running:
        return {**condition, "message": _worded(condition.get("message"))}
    rest = {**condition, "reason": "", "message": ""}
    if condition.get("type") == "Balanced" and condition.get("reason") != "NotMeasured":
        # A job at the edge of the tolerance crosses it with every measurement.
        rest |= {"status": "", "lastTransitionTime": ""}
    return rest


def _worker_without_figures(entry: Mapping[str, Any]) -> Entry:
    phase = entry.get("phase")
    return {
        **{name: value for name, value in entry.items() if name not in _QUIET_OF_WORKER},
        "message": _worded(entry.get("message")),
        "phase": PHASE_TRAINING if phase in PAUSE_PHASES else phase,
    }


def _list(status: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    return status.get(name) or ()


def _worded(text: str | None) -> str:
    """A text without its figures."""
    return _FIGURE.sub("#", text or "")
