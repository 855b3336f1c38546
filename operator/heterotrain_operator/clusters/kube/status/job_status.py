"""What the operator writes into a job's status, for people and for other controllers; it holds no heartbeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from heterotrain.contract import PHASE_FINISHED, PHASE_REFORMING, Plan
from heterotrain_operator.api import HeteroTrainingJob
from heterotrain_operator.api.base import MAX_BATCH, MAX_COUNT, MAX_NAME, MAX_STEPS, MAX_TEXT
from heterotrain_operator.api.status import MAX_DEPARTURES, MAX_WORKERS_SHOWN
from heterotrain_operator.clusters.kube.moments import timestamp
from heterotrain_operator.clusters.kube.objects.names import worker_selector
from heterotrain_operator.clusters.kube.status import conditions
from heterotrain_operator.clusters.kube.status.durability import checkpoint_condition
from heterotrain_operator.clusters.kube.status.worker_status import TRAINING_PHASES, Entry, two_digits, worker_entries
from heterotrain_operator.core.facts import newest_evaluation
from heterotrain_operator.core.memory.members import Passage
from heterotrain_operator.core.model import FINAL_PHASES, Decision, Seen, WorkerState
from heterotrain_operator.core.state import Memory

_STEPPING = frozenset({*TRAINING_PHASES, PHASE_REFORMING, PHASE_FINISHED})
"""Phases of a worker that knows how far the job has come; in earlier ones it has not read the checkpoint."""


def next_status(  # noqa: PLR0917 - each is a thing of its own kind, as `decide` takes and gives them
    previous: Mapping[str, Any] | None,
    job: HeteroTrainingJob,
    seen: Seen,
    decision: Decision,
    memory: Memory,
    now: float,
) -> dict[str, Any]:
    """A draft of the status of a job after a decision, in the API's names; `now` in Unix seconds.

    `previous` is the one found before, written or not: moments of transition, and what cannot be seen this time, are
    taken over from it. What is not known is None or absent. `schema.checked` makes of it what is written, which takes
    longer than the draft.
    """
    previous = previous or {}
    plan = decision.plan or seen.plan
    over = decision.phase in FINAL_PHASES
    groups = [group.name for group in job.spec.worker_groups]
    batch_limits, states = dict(decision.batch_limits), dict(decision.worker_states)
    workers = worker_entries(
        previous.get("workers") or (),
        groups,
        seen,
        plan,
        states=states,
        batch_limits=batch_limits,
        slowed=dict(decision.slowed_by),
        stragglers={verdict.worker: verdict for verdict in decision.stragglers},
        replacing=decision.replacing,
        arrivals=memory.passages.arrivals,
        over=over,
    )
    wanted_workers = _wanted(job, decision)
    durable = checkpoint_condition(job)
    wanted = (*decision.conditions, *([] if durable is None else [durable]))
    completed = previous.get("completionTime") if previous.get("phase") in FINAL_PHASES else None
    return {
        "observedGeneration": job.metadata.generation,
        "phase": decision.phase,
        "ready": f"{_ready(wanted_workers, workers)}/{sum(wanted_workers.values())}",
        "replicas": sum(wanted_workers.values()),
        "selector": worker_selector(job.metadata.name),
        **_progress(previous, job, seen),
        "evaluation": _evaluation(seen) or previous.get("evaluation"),
        "imbalancePercent": _percent(decision.imbalance),
        **_plan(plan),
        "resumedFrom": _resumed_from(memory),
        "restarts": _within(memory.budget.restarts, MAX_COUNT),
        "reason": decision.reason[:MAX_TEXT],
        "startTime": _moment(memory.start.started_at),
        "completionTime": (completed or timestamp(memory.outcome.ended_at or now)) if over else None,
        "conditions": conditions.rendered(previous.get("conditions") or (), wanted, job.metadata.generation, now),
        "departures": [_departure(each) for each in memory.passages.departures[-MAX_DEPARTURES:]] or None,
        "workers": workers[:MAX_WORKERS_SHOWN],
    }


def _wanted(job: HeteroTrainingJob, decision: Decision) -> dict[str, int]:
    """Workers that are wanted now, by group: the spec's replicas without stragglers that were removed."""
    removed = dict(decision.removed)
    return {group.name: max(group.replicas - removed.get(group.name, 0), 0) for group in job.spec.sized_groups}


def _ready(wanted: Mapping[str, int], workers: Sequence[Entry]) -> int:
    """How many of the workers that are wanted take part in the training, under any plan."""
    training = Counter(entry["group"] for entry in workers if _trains(entry))
    return sum(min(training[group], replicas) for group, replicas in wanted.items())


def _trains(entry: Entry) -> bool:
    stays = entry.get("state") != WorkerState.LEAVING.value
    return stays and entry["phase"] in TRAINING_PHASES and "planVersion" in entry


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


def _departure(passage: Passage) -> Entry:
    """A member that left, in the API's names."""
    return {
        "name": passage.name[:MAX_NAME],
        "step": min(passage.step, MAX_STEPS),
        "time": _moment(passage.at),
        "reason": passage.why[:MAX_TEXT],
        "replacedBy": passage.other[:MAX_NAME] or None,
    }


def _plan(plan: Plan | None) -> dict[str, Any]:
    if plan is None:
        return {}
    return {
        "planVersion": _within(plan.version, MAX_STEPS),
        "planGeneration": _within(plan.generation, MAX_STEPS),
        "globalBatchSize": _within(plan.global_batch_size, MAX_BATCH),
    }


def _percent(part: float | None) -> int | None:
    """In percent, rounded to two digits."""
    if part is None or not part >= 0:
        return None
    return int(min(two_digits(round(100 * min(part, MAX_COUNT))), MAX_COUNT))


def _resumed_from(memory: Memory) -> dict[str, Any] | None:
    """What an earlier job of this name has trained, where training went on from that."""
    if not 0 <= memory.resumed.resumed_step <= MAX_STEPS:
        return None
    return {"step": memory.resumed.resumed_step, "jobUid": memory.resumed.resumed_from[:MAX_NAME]}


def _evaluation(seen: Seen) -> Entry | None:
    """The newest evaluation with four digits of its values, which are enough for people and keep the status from
    changing all the time."""
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
