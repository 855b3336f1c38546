"""What the operator writes into a job's status, for people and for other controllers, and reads from it; it holds no
heartbeat.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from heterotrain.contract import PHASE_FINISHED, PHASE_REFORMING, Plan
from heterotrain_operator.api import HeteroTrainingJob, Problem, WorkerGroup
from heterotrain_operator.api.base import MAX_BATCH, MAX_COUNT, MAX_NAME, MAX_STEPS, MAX_TEXT
from heterotrain_operator.api.status import MAX_CONDITIONS, MAX_COST, MAX_DEPARTURES, MAX_SIZES, MAX_WORKERS_SHOWN
from heterotrain_operator.clusters.kube.moments import timestamp, unix_seconds
from heterotrain_operator.clusters.kube.objects.names import worker_selector
from heterotrain_operator.clusters.kube.status.schema import checked, tolerated
from heterotrain_operator.clusters.kube.status.worker_status import (
    TRAINING_PHASES,
    Entry,
    server_entry,
    two_digits,
    updates_per_second,
    worker_entries,
)
from heterotrain_operator.core.facts import newest_evaluation
from heterotrain_operator.core.model import (
    FINAL_PHASES,
    SERVER_GROUP,
    Condition,
    Decision,
    Seen,
    WorkerSeen,
    WorkerState,
)
from heterotrain_operator.core.remembered.job import Outcome
from heterotrain_operator.core.remembered.members import Passage
from heterotrain_operator.core.state import Remembered

LONGEST_MESSAGE = 32768


def rendered_conditions(
    previous: Iterable[Mapping[str, Any]], wanted: Iterable[Condition], generation: int | None, now: float
) -> list[dict[str, Any]]:
    """The conditions of a status; of several of one type the last. `now` in Unix seconds.

    A condition that is not wanted any more is removed. `generation` is that of the spec that all of them are about.
    """
    before = {condition.get("type"): condition for condition in previous}
    by_type = {condition.type: condition for condition in wanted}
    entries = []
    for condition in by_type.values():
        status = {True: "True", False: "False", None: "Unknown"}[condition.status]
        old = before.get(condition.type, {})
        since = old.get("lastTransitionTime") if old.get("status") == status else None
        entry = {
            "type": condition.type,
            "status": status,
            "reason": condition.reason[:MAX_TEXT],
            "message": condition.message[:LONGEST_MESSAGE],
            "lastTransitionTime": since or timestamp(now),
        }
        if generation is not None:
            entry["observedGeneration"] = generation
        entries.append(entry)
    return entries[:MAX_CONDITIONS]


CHECKPOINT_NOT_DURABLE = "CheckpointNotDurable"

_GOES_WITH_THE_POD = frozenset({"emptyDir", "ephemeral", "configMap", "secret", "downwardAPI", "projected", "image"})
"""Sources of volumes that end with their pod, or cannot be written to."""


def checkpoint_condition(job: HeteroTrainingJob) -> Condition | None:
    """The warning that restarts are allowed but nothing to restart from is kept; None if all is well."""
    limit = job.spec.run_policy.backoff_limit
    if limit == 0:
        return None
    checkpoint = job.spec.checkpoint
    if checkpoint.path is None:
        why, reason = "spec.checkpoint.path is not set", "NoCheckpointPath"
    elif checkpoint.persistent_volume_claim is not None:
        return None
    else:
        server = job.spec.server_group  # which alone writes and reads checkpoints, where there is one
        groups = job.spec.worker_groups if server is None else (server,)
        lost = [group.name for group in groups if not _on_durable_volume(group, checkpoint.path)]
        if not lost:
            return None
        pods = f"group {', '.join(lost)}" if server is None else "the parameter server"
        why, reason = f"{checkpoint.path} is on no volume that outlives the pods of {pods}", "NoDurableVolume"
    advice = "name a spec.checkpoint.persistentVolumeClaim"
    message = f"after a restart (backoffLimit is {limit}) training begins at step 0, because {why}; {advice}"
    return Condition(CHECKPOINT_NOT_DURABLE, True, reason, message)


def _on_durable_volume(group: WorkerGroup, path: str) -> bool:
    """Whether the first container of the group's template sees `path` on a volume that outlives the pod."""
    spec: Mapping[str, Any] = group.template["spec"]
    mounts = {
        PurePosixPath(mount["mountPath"]): mount["name"] for mount in spec["containers"][0].get("volumeMounts") or ()
    }
    volumes = {volume["name"]: volume for volume in spec.get("volumes") or ()}
    folder = PurePosixPath(path)
    for above in (folder, *folder.parents):
        if above in mounts:
            volume = volumes.get(mounts[above], {})
            return not _GOES_WITH_THE_POD & volume.keys()
    return False


_STEPPING = frozenset({*TRAINING_PHASES, PHASE_REFORMING, PHASE_FINISHED})
"""Phases of a worker that knows how far the job has come; in earlier ones it has not read the checkpoint."""


def next_status(  # noqa: PLR0917 - each is a thing of its own kind, as `decide` takes and gives them
    previous: Mapping[str, Any] | None,
    job: HeteroTrainingJob,
    seen: Seen,
    decision: Decision,
    memory: Remembered,
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
    server = next((each for each in seen.workers if _is_server(job, each)), None)
    alone = replace(seen, workers=tuple(each for each in seen.workers if each is not server))
    batch_limits, states = dict(decision.batch_limits), dict(decision.worker_states)
    workers = worker_entries(
        previous.get("workers") or (),
        groups,
        alone,
        plan,
        states=states,
        batch_limits=batch_limits,
        slowed=dict(decision.slowed_by),
        stragglers={verdict.worker: verdict for verdict in decision.stragglers},
        replacing=decision.replacing,
        arrivals=memory.passages.arrivals,
        peers=server.metrics.peers if server is not None and server.metrics is not None else (),
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
        "updatesPerSecond": updates_per_second(alone.workers) if job.spec.parameter_server is not None else None,
        "server": server_entry(server, memory.serving.server_ends),
        "evaluation": _evaluation(seen) or previous.get("evaluation"),
        "imbalancePercent": _percent(decision.imbalance),
        **_plan(plan),
        "resumedFrom": _resumed_from(memory),
        "restarts": _within(memory.budget.restarts, MAX_COUNT),
        "scaling": _scaling(decision, wanted_workers),
        "cost": _cost(job, memory, over=over) or previous.get("cost"),
        "reason": decision.reason[:MAX_TEXT],
        "startTime": _moment(memory.start.started_at),
        "completionTime": (completed or timestamp(memory.outcome.ended_at or now)) if over else None,
        "conditions": rendered_conditions(previous.get("conditions") or (), wanted, job.metadata.generation, now),
        "departures": [_departure(each) for each in memory.passages.departures[-MAX_DEPARTURES:]] or None,
        "workers": workers[:MAX_WORKERS_SHOWN],
    }


def _is_server(job: HeteroTrainingJob, worker: WorkerSeen) -> bool:
    return job.spec.parameter_server is not None and worker.group == SERVER_GROUP


def _wanted(job: HeteroTrainingJob, decision: Decision) -> dict[str, int]:
    """Workers that are wanted now, by group: the spec's replicas, and by how much the job's size differs from them."""
    more = dict(decision.resized)
    return {group.name: max(group.replicas + more.get(group.name, 0), 0) for group in job.spec.sized_groups}


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


def _resumed_from(memory: Remembered) -> dict[str, Any] | None:
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


def _scaling(decision: Decision, wanted: Mapping[str, int]) -> dict[str, Any] | None:
    """The sizes that were found and measured, in the API's names; None where none is to be found."""
    seen = decision.scaling
    if seen is None:
        return None
    return {
        "sizes": [{"group": group, "workers": workers} for group, workers in wanted.items()],
        "atRest": seen.at_rest,
        "points": [
            {
                "size": each.words[:MAX_TEXT],
                "samplesPerSecond": float(f"{each.throughput:.3g}"),
                "stepMilliseconds": float(f"{1e3 * each.step_seconds:.3g}"),
            }
            for each in seen.points[:MAX_SIZES]
        ],
        "lastDecision": seen.said[:MAX_TEXT],
        "blocked": seen.blocked[:MAX_TEXT],
    }


def _cost(job: HeteroTrainingJob, memory: Remembered, *, over: bool) -> dict[str, Any] | None:
    """What each group has cost, and all together. A figure that grows all the time is rounded, or each look would
    write the status."""
    spent = memory.cost.spent
    if not spent:
        return None
    total = memory.cost.total(group.name for group in job.spec.pod_groups)

    def short(cost: float) -> float:
        return min(float(f"{cost:.4g}") if over else float(two_digits(cost)), MAX_COST)

    return {
        "total": None if total is None else short(total),
        "groups": [{"group": group, "cost": short(cost)} for group, cost in spent],
    }


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


INVALID = "Invalid"
_NEVER_STARTED = frozenset({None, "Created", INVALID})


def invalid(problems: Sequence[Problem]) -> Condition:
    """The condition that names every field at fault."""
    return Condition(INVALID, True, "ManifestInvalid", "; ".join(str(problem) for problem in problems))


def refused_status(
    previous: Mapping[str, Any] | None, generation: int | None, why: Condition, now: float
) -> dict[str, Any]:
    """The status with a condition that says why nothing is done about the job; `now` in Unix seconds.

    All else stays as it is in `previous`. `generation` is that of the spec.
    """
    previous = tolerated(previous or {})
    status = dict(previous)
    if status.get("phase") in _NEVER_STARTED:
        status["phase"] = INVALID if why.type == INVALID else "Created"
    if generation is not None:
        status["observedGeneration"] = generation
    status["reason"] = why.message[:MAX_TEXT]
    others = [entry for entry in previous.get("conditions") or () if entry.get("type") not in (INVALID, why.type)]
    own = rendered_conditions(previous.get("conditions") or (), [why], generation, now)
    status["conditions"] = [*own, *others][:MAX_CONDITIONS]
    return checked(status)


def outcome_in(status: Mapping[str, Any]) -> Remembered | None:
    """The memory of a job that ended as this status says; None if it has not. A job that is over never runs again."""
    phase = status.get("phase")
    if phase not in FINAL_PHASES:
        return None
    final: Mapping[str, Any] = next(
        (entry for entry in status.get("conditions") or () if entry.get("type") == phase), {}
    )
    return Remembered(
        outcome=Outcome(
            outcome=phase,
            ended_at=_seconds_of(status.get("completionTime")),
            reason=final.get("reason") or "",
            message=final.get("message") or status.get("reason") or "",
        ),
    )


def _seconds_of(text: str | None) -> float | None:
    try:
        return unix_seconds(text) if text else None
    except (ValueError, OverflowError):
        return None
