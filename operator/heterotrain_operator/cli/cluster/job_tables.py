"""Jobs, workers and conditions as tables, in the manner of kubectl, so that they read alike side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from heterotrain_operator.cli.cluster.job_state import ConditionState, JobState, WorkerState
from heterotrain_operator.cli.fitting import Cell, Column, fitted
from heterotrain_operator.experiments import wording

UNCUT_WIDTH = 4096
"""Columns where the output is no terminal: nothing is cut or folded there, so that it can be searched."""

STYLES = {
    "Running": "cyan",
    "Succeeded": "green",
    "Failed": "red",
    "Invalid": "red",
    "Restarting": "yellow",
    "Suspended": "yellow",
}

MESSAGES = 5
"""Messages of workers that are repeated in full below their table."""

UNSEEN = "Unseen"
"""Shown as the phase of a job that no operator has observed yet."""


def console() -> Console:
    """Standard output, where texts of a cluster are printed as they are."""
    out = Console(markup=False, highlight=False, emoji=False)
    if out.is_terminal:
        return out
    return Console(markup=False, highlight=False, emoji=False, width=UNCUT_WIDTH)


def show(out: Console, view: RenderableType) -> None:
    """Print a view; elsewhere than in a terminal without the blanks that fill its columns."""
    if out.is_terminal:
        out.print(view)
        return
    with out.capture() as captured:
        out.print(view)
    out.file.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def columns(*headings: str, right: Iterable[str] = ()) -> Table:
    """An empty table of these columns; the last one folds where it is too long."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    numbers = set(right)
    for heading in headings:
        last = heading == headings[-1]
        table.add_column(
            heading.upper(),
            justify="right" if heading in numbers else "left",
            overflow="fold" if last else "ellipsis",
            no_wrap=not last,
        )
    return table


def since(moment: datetime | None, now: datetime) -> str:
    """How long ago a moment was."""
    return wording.age(None if moment is None else (now - moment).total_seconds())


def shown(value: object) -> str:
    """A value in a cell; nothing is a dash."""
    return wording.UNKNOWN if value is None or value == "" else str(value)


def phase(job: JobState) -> Text:
    """The phase in its colour."""
    return Text(job.phase or UNSEEN, style=STYLES.get(job.phase, ""))


def steps(job: JobState) -> str:
    """The committed steps, and of how many if that is known."""
    if job.step is None:
        return wording.UNKNOWN
    return f"{job.step}/{job.total_steps}" if job.total_steps else str(job.step)


JOB_COLUMNS = (
    Column("NAMESPACE", name=True),
    Column("NAME", name=True),
    Column("PHASE", left=True),
    Column("WORKERS", rank=2, left=True),
    Column("STEP", rank=1),
    Column("IMBALANCE", rank=3),
    Column("PLAN", rank=8),
    Column("AGE", rank=6, left=True),
    Column("POLICY", rank=7, left=True),
    Column("GLOBAL BATCH", rank=9),
    Column("RESTARTS", rank=4),
    Column("REASON", rank=5, text=True, least=20),
)
WORKER_COLUMNS = (
    Column("WORKER", name=True),
    Column("BATCH"),
    Column("FITS", rank=6),
    Column("OWN TIME", rank=1),
    Column("WAITING", rank=2),
    Column("SLOWED BY", rank=2, left=True),
    Column("CPU", rank=3),
    Column("PLAN", rank=5),
    Column("NODE", rank=4, name=True),
    Column("STATE", text=True, least=10),
)


def jobs_table(
    jobs: Sequence[JobState], now: datetime, *, everywhere: bool, wide: bool, width: int = UNCUT_WIDTH
) -> Table:
    """One line per job: the columns that kubectl prints, and in the wide form what explains them."""
    rows = []
    for job in jobs:
        row: dict[str, Cell] = {"NAMESPACE": job.namespace} if everywhere else {}
        row |= {
            "NAME": job.name,
            "PHASE": phase(job),
            "WORKERS": shown(job.ready),
            "STEP": steps(job),
            "IMBALANCE": _percent(job.imbalance_percent),
            "PLAN": shown(job.plan_version),
            "AGE": since(job.created, now),
        }
        if wide:
            row |= {
                "POLICY": f"{shown(job.policy)}{' (dry run)' if job.dry_run else ''}",
                "GLOBAL BATCH": shown(job.global_batch),
                "RESTARTS": shown(job.restarts),
                "REASON": shown(job.reason),
            }
        rows.append(row)
    return fitted([column for column in JOB_COLUMNS if column.cell in rows[0]], rows, width, box=None)


def workers_table(workers: Sequence[WorkerState], plan_version: int | None, width: int = UNCUT_WIDTH) -> Table:
    """One line per worker; a plan other than the active one is marked."""
    absent = set() if any(worker.most is not None for worker in workers) else {"FITS"}
    absent |= set() if any(worker.slowed_by for worker in workers) else {"SLOWED BY"}
    rows: list[dict[str, Cell]] = []
    for worker in workers:
        behind = worker.plan_version is not None and worker.plan_version != plan_version
        row: dict[str, Cell] = {
            "WORKER": worker.name,
            "BATCH": shown(worker.batch),
            "FITS": shown(worker.most),
            "OWN TIME": wording.seconds(worker.own_seconds),
            "WAITING": wording.percent(worker.waiting),
            "SLOWED BY": Text(shown(worker.slowed_by), style="yellow"),
            "CPU": wording.UNKNOWN if worker.cpu_limit is None else f"{float(worker.cpu_limit):g}",
            "PLAN": Text(shown(worker.plan_version), style="yellow" if behind else ""),
            "NODE": shown(worker.node),
            "STATE": state(worker),
        }
        rows.append(row)
    return fitted([column for column in WORKER_COLUMNS if column.cell not in absent], rows, width, box=None)


def state(worker: WorkerState) -> str:
    """What a worker does, and why it waits or how it ended."""
    return ": ".join(filter(None, [worker.phase, worker.message])) or wording.UNKNOWN


def conditions_table(conditions: Sequence[ConditionState], now: datetime) -> Table:
    """One line per condition."""
    table = columns("condition", "status", "reason", "age", "message")
    for condition in conditions:
        row = (condition.type, condition.status, condition.reason)
        table.add_row(*(shown(cell) for cell in row), since(condition.since, now), shown(condition.message))
    return table


def job_view(job: JobState, now: datetime, *, wide: bool = False, width: int = UNCUT_WIDTH) -> RenderableType:
    """One job in full, in a terminal of `width` columns. Conditions that do not hold say little and are left out,
    except in the wide form. What workers say is repeated below their table where it has no room in it.
    """
    parts: list[RenderableType] = [_heading(job, now), *(Text(line, style="dim") for line in _facts(job))]
    if job.reason:
        parts.append(Text(job.reason))
    for remark in remarks(job):
        parts.append(Text(remark, style="yellow"))
    shown = [condition for condition in job.conditions if wide or condition.holds or condition.type == "Balanced"]
    if shown:
        parts += [Text(), conditions_table(shown, now)]
    if job.workers:
        table = workers_table(job.workers, job.plan_version, width)
        room = next(column.width or 0 for column in table.columns if column.header == "STATE")
        parts += [Text(), table]
        parts += [Text(f"{w.name}: {state(w)}") for w in job.workers if cell_len(state(w)) > room][:MESSAGES]
    return Group(*parts)


def remarks(job: JobState) -> list[str]:
    """What makes the status doubtful."""
    if not job.phase:
        return ["No operator has looked at this job yet; does one run that watches its namespace?"]
    return ["The job was changed since the operator last looked at it."] if job.outdated else []


def _heading(job: JobState, now: datetime) -> Text:
    heading = Text(f"{job.name} ", style="bold")
    heading.append(f"in {job.namespace}: ", style="none")
    heading.append(phase(job))
    ended = f", ended {since(job.completed, now)} ago" if job.completed is not None else ""
    heading.append(f", {since(job.created, now)} old{ended}", style="none")
    return heading


def _facts(job: JobState) -> list[str]:
    policy = f"policy {job.policy}{' (dry run: it only observes)' if job.dry_run else ''}" if job.policy else ""
    generation = "" if job.plan_generation is None else f" of generation {job.plan_generation}"
    words = (
        policy,
        "" if job.plan_version is None else f"plan {job.plan_version}{generation}",
        "" if job.global_batch is None else f"{job.global_batch} samples per step",
        "" if job.step is None else f"step {steps(job)}",
        "" if job.evaluated is None else wording.evaluated(job.evaluated),
        f"{job.ready} workers" if job.ready else "",
        "" if job.imbalance_percent is None else f"imbalance {_percent(job.imbalance_percent)}",
        f"restarts {job.restarts}" if job.restarts else "",
    )
    line = ", ".join(filter(None, words))
    return [line] if line else []


def _percent(value: int | None) -> str:
    return wording.percent(None if value is None else value / 100)
