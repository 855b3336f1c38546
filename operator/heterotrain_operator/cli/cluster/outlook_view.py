"""Show what is known of the workers, what would be decided now, and how much of the possible is reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from heterotrain_operator.cli.cluster.evidence import Evidence
from heterotrain_operator.cli.terminal import fitted
from heterotrain_operator.core.batching.bounds import why_no_fewer
from heterotrain_operator.core.batching.quorum import why_left_out
from heterotrain_operator.core.outlook import Outlook, WorkerOutlook, outlook
from heterotrain_operator.core.prediction.memory_model import why_no_more
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.split.allocation import Line
from heterotrain_operator.core.state import Remembered
from heterotrain_operator.experiments import wording
from heterotrain_operator.experiments.report.value import Column


def look_ahead(evidence: Evidence, now: datetime) -> Outlook | None:
    """What would be decided now; None without a valid job and a plan. Raises ValueError where they do not fit."""
    job, plan = evidence.core, evidence.plan
    if job is None or plan is None:
        return None
    reported = {
        worker.name: worker.own_seconds
        for worker in evidence.job.workers
        if worker.own_seconds is not None and worker.plan_version == plan.version
    }
    return outlook(job, plan, evidence.memory or Remembered.initial(), reported, now.timestamp())


def outlook_of(evidence: Evidence, now: datetime, width: int) -> list[RenderableType]:
    """The sections on the workers, the next decision and the best split; empty without a valid job and a plan."""
    try:
        ahead = look_ahead(evidence, now)
    except ValueError as error:
        return section("What would be decided now", [str(error)])
    if ahead is None:
        return []
    limits = {worker.name: worker.cpu_limit for worker in evidence.job.workers}
    parts: list[RenderableType] = [Text(), Text("What is known of the workers", style="bold")]
    parts.append(_workers_table(ahead, limits, width))
    if any(worker.reported for worker in ahead.workers):
        note = "Own times are those of the status: of two digits, and with the noise that steps usually have."
        parts.append(Text(note, style="dim"))
    parts += _why_these_bounds(ahead)
    parts += section("What would be decided on these figures", [_proposal(evidence, ahead)])
    return [*parts, *section("How much of the possible is reached", [_ceiling(ahead)])]


def _why_these_bounds(ahead: Outlook) -> list[RenderableType]:
    parts: list[RenderableType] = []
    apart = [f"{w.seat.name} {why}" for w in ahead.workers if (why := why_left_out(w.seat.memory, w.seat.batch))]
    if apart:
        parts += section("Who takes no part in decisions", apart)
    memory = [f"{w.seat.name}: {why}" for w in ahead.workers if (why := why_no_more(w.seat.memory.memory_use))]
    if memory:
        parts += section("What their memory holds", memory)
    seats = [worker.seat for worker in ahead.workers]
    needed = [
        f"{seat.name}: {why}"
        for seat in seats
        if (why := why_no_fewer(seat.memory.least_batch, seat.group.batch_min, seat.bounds[0]))
    ]
    if needed:
        parts += section("What their models need", needed)
    return parts


def _own_time(estimate: Estimate) -> str:
    return f"{wording.seconds(estimate.mean_seconds)} ± {wording.percent(estimate.relative_error)}"


def _fitted(line: Line) -> str:
    fixed = "" if line.fixed_seconds == 0 else f"{wording.seconds(line.fixed_seconds)} + "
    return f"{fixed}{wording.seconds(line.seconds_per_sample)} a sample"


def _workers_table(ahead: Outlook, limits: Mapping[str, float | None], width: int) -> Table:
    def limit(worker: WorkerOutlook) -> float | None:
        seat = worker.seat
        return limits.get(seat.name) or seat.memory.step_time.cpu_limit or seat.group.cpu_limit

    columns = [
        Column("WORKER", lambda worker: worker.seat.name, name=True),
        Column("BATCH", lambda worker: worker.seat.batch),
        Column("BOUNDS", lambda worker: f"{worker.seat.bounds[0]}-{worker.seat.bounds[1]}", rank=5),
        Column("CPU", limit, "{:g}".format, rank=4),
        Column("OWN TIME", lambda worker: worker.seat.estimate, _own_time, rank=1),
        Column("SAMPLES/S", lambda worker: worker.samples_per_second, wording.rate, rank=3),
        Column("FITTED OWN TIME", lambda worker: worker.line, _fitted, rank=2, left=True),
    ]
    if ahead.proposal.batches is not None:
        columns.append(Column("NEXT", lambda worker: worker.proposed))
    return fitted([*columns, Column("BEST", lambda worker: worker.best)], ahead.workers, width, box=None)


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


def section(title: str, lines: Sequence[str], style: str = "") -> list[RenderableType]:
    """A heading with lines below it."""
    return [Text(), Text(title, style="bold"), *(Text(f"  {line}", style=style) for line in lines)]
