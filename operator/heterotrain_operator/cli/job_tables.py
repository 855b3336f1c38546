"""Jobs, workers and conditions as tables, in the manner of kubectl, so that they read alike side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from heterotrain_operator.cli import wording
from heterotrain_operator.cli.job_state import ConditionState, JobState, WorkerState

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

UNSEEN = "Unseen"
"""Stands for the phase of a job that no operator has looked at."""


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


def jobs_table(jobs: Sequence[JobState], now: datetime, *, everywhere: bool, wide: bool) -> Table:
    """One line per job: the columns that kubectl prints, and in the wide form what explains them."""
    more = ("policy", "global batch", "restarts", "reason") if wide else ()
    table = columns(
        *(("namespace",) if everywhere else ()),
        *("name", "phase", "workers", "step", "imbalance", "plan", "age"),
        *more,
        right=("step", "imbalance", "plan", "global batch", "restarts"),
    )
    for job in jobs:
        row: list[str | Text] = [job.namespace] if everywhere else []
        row += [job.name, phase(job), shown(job.ready), steps(job), _percent(job.imbalance_percent)]
        row += [shown(job.plan_version), since(job.created, now)]
        if wide:
            policy = f"{shown(job.policy)}{' (dry run)' if job.dry_run else ''}"
            row += [policy, shown(job.global_batch), shown(job.restarts), shown(job.reason)]
        table.add_row(*row)
    return table


def workers_table(workers: Sequence[WorkerState], plan_version: int | None) -> Table:
    """One line per worker; a plan that is not the one in force is marked."""
    fits = any(worker.most is not None for worker in workers)
    table = columns(
        *("worker", "batch"),
        *(("fits",) if fits else ()),
        *("own time", "waiting", "cpu", "plan", "node", "state"),
        right=("batch", "fits", "own time", "waiting", "cpu", "plan"),
    )
    for worker in workers:
        behind = worker.plan_version is not None and worker.plan_version != plan_version
        table.add_row(
            worker.name,
            shown(worker.batch),
            *((shown(worker.most),) if fits else ()),
            wording.seconds(worker.own_seconds),
            wording.percent(worker.waiting),
            wording.UNKNOWN if worker.cpu_limit is None else f"{float(worker.cpu_limit):g}",
            Text(shown(worker.plan_version), style="yellow" if behind else ""),
            shown(worker.node),
            state(worker),
        )
    return table


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


def job_view(job: JobState, now: datetime, *, wide: bool = False) -> RenderableType:
    """One job in full. Conditions that do not hold say little and are left out, except in the wide form."""
    parts: list[RenderableType] = [_heading(job, now), *(Text(line, style="dim") for line in _facts(job))]
    if job.reason:
        parts.append(Text(job.reason))
    for remark in remarks(job):
        parts.append(Text(remark, style="yellow"))
    told = [condition for condition in job.conditions if wide or condition.holds or condition.type == "Balanced"]
    if told:
        parts += [Text(), conditions_table(told, now)]
    if job.workers:
        parts += [Text(), workers_table(job.workers, job.plan_version)]
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
        f"{job.ready} workers" if job.ready else "",
        "" if job.imbalance_percent is None else f"imbalance {_percent(job.imbalance_percent)}",
        f"restarts {job.restarts}" if job.restarts else "",
    )
    line = ", ".join(filter(None, words))
    return [line] if line else []


def _percent(value: int | None) -> str:
    return wording.percent(None if value is None else value / 100)
