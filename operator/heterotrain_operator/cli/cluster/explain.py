"""`heterotrain explain`: why a job's batches are as they are, from what the operator stored, said and would do next.

Nothing is estimated here: the operator's own core looks at the operator's own memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from heterotrain.contract import Plan
from heterotrain_operator.api import ManifestError, parse_stored, to_core
from heterotrain_operator.cli.cluster.job_state import JobState, moment, read_job
from heterotrain_operator.cli.cluster.job_tables import UNSEEN, columns, remarks, show, since, state
from heterotrain_operator.cli.fitting import Cell, Column, FittedTable
from heterotrain_operator.core.model import Job
from heterotrain_operator.core.outlook import Outlook, WorkerOutlook, outlook
from heterotrain_operator.core.prediction.least_batch import why_no_fewer
from heterotrain_operator.core.prediction.memory_limit import why_no_more
from heterotrain_operator.core.split.waterfill import Line
from heterotrain_operator.core.state import Memory
from heterotrain_operator.experiments import wording

if TYPE_CHECKING:
    from heterotrain_operator.clusters.kube.reading import Reader

BALANCING = ("PlanPublished", "PlanRestored", "BatchRebalanced", "MemoryBoundFound", "DryRun")
"""Reasons of the events that say how the batches came about."""

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReportedEvent:
    """One event: when it last happened, how often, its reason and its message."""

    moment: datetime | None
    count: int
    kind: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that an explanation rests on. `core` is the job as decisions see it, None if it is invalid (`faults`)."""

    job: JobState
    core: Job | None
    faults: tuple[str, ...]
    plan: Plan | None
    memory: Memory | None
    problems: tuple[str, ...]
    events: tuple[ReportedEvent, ...]


def explain(reader: Reader, name: str, console: Console, now: datetime) -> int:
    """Print why the batches of a job are as they are, and return the exit code. Raises ReadingError in its kinds."""
    document = reader.job(name)
    job = read_job(document)
    stored = reader.plan(name)
    core, faults = _resolved(document)
    evidence = Evidence(
        job=job,
        core=core,
        faults=faults,
        plan=stored.plan,
        memory=stored.memory,
        problems=tuple(filter(None, (stored.plan_problem, stored.memory_problem))),
        events=tuple(_reported(event) for event in reader.events(name, job.uid)),
    )
    show(console, explanation(evidence, now))
    return 0


def explanation(evidence: Evidence, now: datetime) -> RenderableType:
    """The explanation as it is printed: what is, why, what is known of each worker, what comes, and how it came."""
    job = evidence.job
    parts: list[RenderableType] = [_heading(evidence)]
    parts += [Text(remark, style="yellow") for remark in remarks(job)]
    if evidence.faults:
        parts += _section("The job is invalid; the operator does not act on it", evidence.faults, "red")
    if evidence.problems:
        parts += _section("The stored plan cannot be read", evidence.problems, "red")
    parts += _section("Why the batches are as they are", _why(evidence, now))
    if job.reason:
        parts += _section("The operator's latest decision", [job.reason])
    parts += _outlook(evidence, now)
    waiting = [f"{worker.name}: {state(worker)}" for worker in job.workers if worker.message]
    if waiting:
        parts += _section("What workers say", waiting, "yellow")
    history = _folded(event for event in evidence.events if event.reason in BALANCING or event.kind == "Warning")
    if history:
        parts += [Text(), Text("History", style="bold"), _history(history, now)]
    return Group(*parts)


def _resolved(document: Document) -> tuple[Job | None, tuple[str, ...]]:
    """The job as decisions see it, or what is wrong with it."""
    metadata = document["metadata"]
    known = {key: metadata[key] for key in ("name", "namespace") if key in metadata}
    manifest = {key: document.get(key) for key in ("apiVersion", "kind", "spec")}
    try:
        job, _ = parse_stored({**manifest, "metadata": known})
    except ManifestError as error:
        return None, tuple(str(problem) for problem in error.problems)
    return to_core(job), ()


def _reported(event: Mapping[str, Any]) -> ReportedEvent:
    series = event.get("series") or {}
    last = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return ReportedEvent(
        moment=moment(last or event["metadata"].get("creationTimestamp")),
        count=series.get("count") or event.get("count") or 1,
        kind=event.get("type", ""),
        reason=event.get("reason", ""),
        message=event.get("message", ""),
    )


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


def _section(title: str, lines: Sequence[str], style: str = "") -> list[RenderableType]:
    return [Text(), Text(title, style="bold"), *(Text(f"  {line}", style=style) for line in lines)]


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


def _outlook(evidence: Evidence, now: datetime) -> list[RenderableType]:
    job, plan = evidence.core, evidence.plan
    if job is None or plan is None:
        return []
    reported = {
        worker.name: worker.own_seconds
        for worker in evidence.job.workers
        if worker.own_seconds is not None and worker.plan_version == plan.version
    }
    try:
        ahead = outlook(job, plan, evidence.memory or Memory.initial(), reported, now.timestamp())
    except ValueError as error:
        return _section("What would be decided now", [str(error)])
    limits = {worker.name: worker.cpu_limit for worker in evidence.job.workers}
    parts: list[RenderableType] = [Text(), Text("What is known of the workers", style="bold")]
    parts.append(_workers_table(ahead, limits))
    if any(worker.reported for worker in ahead.workers):
        note = "Own times are those of the status: of two digits, and with the noise that steps usually have."
        parts.append(Text(note, style="dim"))
    memory = [f"{w.seat.name}: {why}" for w in ahead.workers if (why := why_no_more(w.seat.memory.memory_use))]
    if memory:
        parts += _section("What their memory holds", memory)
    seats = [worker.seat for worker in ahead.workers]
    needed = [
        f"{seat.name}: {why}"
        for seat in seats
        if (why := why_no_fewer(seat.memory.least_batch, seat.group.batch_min, seat.bounds[0]))
    ]
    if needed:
        parts += _section("What their models need", needed)
    parts += _section("What would be decided on these figures", [_proposal(evidence, ahead)])
    return [*parts, *_section("How much of the possible is reached", [_ceiling(ahead)])]


WORKER_COLUMNS = (
    Column("WORKER", name=True),
    Column("BATCH"),
    Column("BOUNDS", rank=5),
    Column("CPU", rank=4),
    Column("OWN TIME", rank=1),
    Column("SAMPLES/S", rank=3),
    Column("FITTED OWN TIME", rank=2, left=True),
    Column("NEXT"),
    Column("BEST"),
)


def _workers_table(ahead: Outlook, limits: Mapping[str, float | None]) -> FittedTable:
    rows: list[dict[str, Cell]] = []
    for worker in ahead.workers:
        seat = worker.seat
        limit = limits.get(seat.name) or seat.memory.step_time.cpu_limit or seat.group.cpu_limit
        row: dict[str, Cell] = {
            "WORKER": seat.name,
            "BATCH": str(seat.batch),
            "BOUNDS": f"{seat.bounds[0]}-{seat.bounds[1]}",
            "CPU": wording.UNKNOWN if limit is None else f"{limit:g}",
            "OWN TIME": _own_time(worker),
            "SAMPLES/S": wording.rate(worker.samples_per_second),
            "FITTED OWN TIME": _fitted(worker.line),
            "NEXT": str(worker.proposed),
            "BEST": wording.UNKNOWN if worker.best is None else str(worker.best),
        }
        rows.append(row)
    changes = ahead.proposal.batches is not None
    return FittedTable([column for column in WORKER_COLUMNS if changes or column.cell != "NEXT"], rows)


def _own_time(worker: WorkerOutlook) -> str:
    estimate = worker.seat.estimate
    if estimate is None:
        return wording.UNKNOWN
    return f"{wording.seconds(estimate.mean_seconds)} ± {wording.percent(estimate.relative_error)}"


def _fitted(line: Line | None) -> str:
    if line is None:
        return wording.UNKNOWN
    fixed = "" if line.fixed_seconds == 0 else f"{wording.seconds(line.fixed_seconds)} + "
    return f"{fixed}{wording.seconds(line.seconds_per_sample)} a sample"


def _proposal(evidence: Evidence, ahead: Outlook) -> str:
    if evidence.job.ended:
        return "Nothing: the job is over."
    if evidence.core is not None and evidence.core.suspend:
        return "Nothing: the job is suspended."
    moves = ahead.proposal.batches is not None
    if evidence.job.dry_run and moves:
        return f"Nothing, this is a dry run; otherwise batches {_batches(ahead)}: {ahead.proposal.reason}"
    return f"Batches {_batches(ahead)}: {ahead.proposal.reason}" if moves else ahead.proposal.reason


def _batches(ahead: Outlook) -> str:
    return wording.batches(worker.proposed for worker in ahead.workers)


def _ceiling(ahead: Outlook) -> str:
    ceiling = ahead.ceiling
    if ceiling is None:
        return f"The best split is not known: {ahead.no_ceiling}."
    best = wording.batches(worker.best for worker in ahead.workers if worker.best is not None)
    about = "About " if any(worker.reported for worker in ahead.workers) else ""
    return (
        f"{about}{wording.percent(ceiling.share)}: by the fitted own times the slowest worker takes "
        f"{wording.seconds(ceiling.present_seconds)}; with the best split, {best}, it would take "
        f"{wording.seconds(ceiling.best_seconds)} (the exchange of gradients comes on top of both)."
    )


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
