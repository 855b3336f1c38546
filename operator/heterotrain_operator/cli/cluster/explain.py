"""`heterotrain explain`: why a job's batches are as they are, from what the operator stored and would do next.

Nothing is estimated here: the operator's own core looks at the operator's own memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from heterotrain_operator.cli.cluster.evidence import Evidence, ReportedEvent, evidence_of, passages, replacements
from heterotrain_operator.cli.cluster.job_state import WorkerState
from heterotrain_operator.cli.cluster.outlook_view import look_ahead, outlook_of, section
from heterotrain_operator.cli.cluster.status import UNSEEN, columns, remarks, show, since, state
from heterotrain_operator.cli.terminal import print_json
from heterotrain_operator.core.model import Job
from heterotrain_operator.core.state import Remembered
from heterotrain_operator.experiments import wording

if TYPE_CHECKING:
    from heterotrain_operator.clusters.kube.reading import Reader

BALANCING = (
    "PlanPublished",
    "PlanRestored",
    "BatchRebalanced",
    "MemoryBoundFound",
    "StragglerRecovered",
    "DryRun",
    "GenerationChanged",
    "ReplacingStraggler",
    "ReplacementGivenUp",
    "WorkerReplaced",
    "WorkerJoined",
    "WorkerLeft",
    "Scaled",
    "ScalingStopped",
    "ServerLost",
)
"""Reasons of the events that say how the batches came about, and the workers that have them."""


def explain(reader: Reader, name: str, console: Console, now: datetime, *, as_json: bool = False) -> int:
    """Print why the batches of a job are as they are, and return the exit code. Raises ReadingError in its kinds."""
    evidence = evidence_of(reader, name)
    if as_json:
        print_json(document(evidence, now))
    else:
        show(console, explanation(evidence, now, console.width))
    return 0


def document(evidence: Evidence, now: datetime) -> dict[str, Any]:
    """What is known and what would be decided now, for programs."""
    plan, ahead, problem = evidence.plan, None, ""
    try:
        ahead = look_ahead(evidence, now)
    except ValueError as error:
        problem = str(error)
    return {
        "job": asdict(evidence.job),
        "plan": None if plan is None else json.loads(plan.to_json()),
        "why": _why(evidence, now),
        "problems": [*evidence.faults, *evidence.problems, *([problem] if problem else [])],
        "workers": [
            {
                "name": worker.seat.name,
                "batch": worker.seat.batch,
                "own_seconds": None if worker.seat.estimate is None else worker.seat.estimate.mean_seconds,
                "samples_per_second": worker.samples_per_second,
                "next": worker.proposed,
                "best": worker.best,
            }
            for worker in (() if ahead is None else ahead.workers)
        ],
        "decision": None if ahead is None else ahead.proposal.reason,
        "share_of_possible": None if ahead is None or ahead.ceiling is None else ahead.ceiling.share,
        "events": [asdict(event) for event in evidence.events],
    }


def explanation(evidence: Evidence, now: datetime, width: int) -> RenderableType:
    """The explanation as it is printed: what is, why, what is known of each worker, what comes, and how it came."""
    job = evidence.job
    parts: list[RenderableType] = [_heading(evidence)]
    parts += [Text(remark, style="yellow") for remark in remarks(job)]
    if evidence.faults:
        parts += section("The job is invalid; the operator does not act on it", evidence.faults, "red")
    if evidence.problems:
        parts += section("The stored plan cannot be read", evidence.problems, "red")
    parts += section("Why the batches are as they are", _why(evidence, now))
    if job.reason:
        parts += section("The operator's latest decision", [job.reason])
    parts += outlook_of(evidence, now, width)
    served = [f"{worker.name}: {_served(worker)}" for worker in job.workers if worker.updates is not None]
    if job.server or served:
        parts += section("The parameter server", [*filter(None, [job.server]), *served])
    if job.scaling:
        parts += section("How many workers pay", job.scaling)
    if evidence.memory is not None and evidence.memory.cost.spent:
        parts += section("What it has cost", [_cost(evidence.memory, evidence.core)])
    slowed = [f"{worker.name}: {_slowed(worker)}" for worker in job.workers if worker.slowed_by]
    if slowed:
        parts += section("What slows workers", slowed, "yellow")
    stragglers = job.condition("StragglersDetected")
    if stragglers is not None and stragglers.holds:
        parts += section("Stragglers", [stragglers.message], "yellow")
    coming = {worker.name: state(worker) for worker in job.workers if worker.replaces}
    replaced = [_replacement(worker, coming) for worker in job.workers if worker.replaced_by]
    if replaced:
        parts += section("Stragglers that are being replaced", replaced)
    for straggler, story in replacements(evidence.events, now).items():
        parts += section(f"How {straggler} was to be replaced", story)
    came_and_went = passages(evidence.memory)
    if came_and_went:
        parts += section("Who joined and left while others trained", came_and_went)
    waiting = [f"{worker.name}: {state(worker)}" for worker in job.workers if worker.message]
    if waiting:
        parts += section("What workers say", waiting, "yellow")
    history = _folded(event for event in evidence.events if event.reason in BALANCING or event.kind == "Warning")
    if history:
        parts += [Text(), Text("History", style="bold"), _history(history, now)]
    return Group(*parts)


def _cost(memory: Remembered, job: Job | None) -> str:
    total = None
    if job is not None:
        total = memory.cost.total(group.name for group in (*job.groups, job.server) if group is not None)
    return f"{wording.costs(dict(memory.cost.spent), total)}: each pod from its creation to its end, at its price"


def _replacement(worker: WorkerState, coming: Mapping[str, str]) -> str:
    """Who takes a straggler's place, and how far that is."""
    newcomer = worker.replaced_by
    if newcomer not in coming:
        return f"{newcomer} is to take the place of {worker.name}; its pod is not there yet"
    how_far = coming[newcomer]
    return f"{newcomer} ({how_far}) takes the place of {worker.name} once it can join and its warm-up shows a gain"


def _served(worker: WorkerState) -> str:
    """What the parameter server says of a worker."""
    words = (
        f"{worker.updates} updates",
        "" if worker.staleness is None else f"behind {worker.staleness:g} updates of others in the mean",
        f"{worker.discarded} discarded" if worker.discarded else "",
        f"waited {wording.seconds(worker.waited_seconds)} for slower ones" if worker.waited_seconds else "",
    )
    return ", ".join(filter(None, words))


def _slowed(worker: WorkerState) -> str:
    """What slowed it when its own time last jumped; a cause that only a newer operator knows, as that names it."""
    since = f" of plan {worker.plan_version}'s time" if worker.plan_version is not None else " of the time"
    held = "" if worker.throttled is None else f" {worker.throttled} %{since}"
    waited = "" if worker.cpu_wait is None else f" {worker.cpu_wait} %{since}"
    words = {
        "CPULimit": f"its CPU limit, which is the same, holds it back{held}: a fault, or a neighbour under the same "
        "limit",
        "Neighbour": f"it waits{waited} for a CPU that others use",
        "Computation": "its steps take more CPU time: the script does more, or its CPU is slower",
        "Script": "it waits for something of its own (input, output, a lock), and not for a CPU",
    }
    return words.get(worker.slowed_by, worker.slowed_by)


def _heading(evidence: Evidence) -> Text:
    job, plan = evidence.job, evidence.plan
    heading = Text(job.name, style="bold")
    words = [f" in {job.namespace}: {job.phase or UNSEEN}"]
    if job.policy:
        words.append(f"policy {job.policy}")
    if plan is not None:
        words.append(f"plan {plan.version} of generation {plan.generation}")
        words.append(f"{plan.global_batch_size} samples per step, applied at the next {plan.apply_at}")
    heading.append(", ".join(words), style="none")
    return heading


def _why(evidence: Evidence, now: datetime) -> list[str]:
    """The reason for which the active plan was published."""
    plan = evidence.plan
    if plan is None:
        return ["There is no plan yet: the first one is published once every worker answers."]
    published = [
        event
        for event in evidence.events
        if event.message.startswith((f"plan {plan.version}:", f"plan {plan.version} "))
    ]
    if not published:
        return [
            f"Plan {plan.version} has batches {wording.batches(plan.batch_sizes)}; "
            "the cluster has forgotten the event with its reason."
        ]
    last = published[-1]
    return [f"{last.message} ({last.reason}, {since(last.moment, now)} ago)"]


def _folded(events: Iterable[ReportedEvent]) -> list[ReportedEvent]:
    """The events, with equal ones in succession folded into one at the time of the last."""
    folded: list[ReportedEvent] = []
    for event in events:
        if folded and (folded[-1].reason, folded[-1].message) == (event.reason, event.message):
            folded[-1] = replace(event, count=folded[-1].count + event.count)
        else:
            folded.append(event)
    return folded


def _history(events: Sequence[ReportedEvent], now: datetime) -> Table:
    table = columns("age", "times", "reason", "message", right=("times",))
    for event in events:
        style = "yellow" if event.kind == "Warning" else ""
        cells = (since(event.moment, now), str(event.count), event.reason, event.message)
        table.add_row(*(Text(cell, style=style) for cell in cells))
    return table
