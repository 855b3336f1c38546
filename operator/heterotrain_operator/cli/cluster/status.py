"""`heterotrain status`: the jobs of a cluster in a table, or one of them in full.

Tables are in the manner of kubectl, so that they read alike side by side.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import yaml
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from heterotrain_operator.cli.cluster.job_state import ConditionState, JobState, WorkerState, read_job
from heterotrain_operator.cli.terminal import STYLES, fitted, sparkline
from heterotrain_operator.experiments import wording
from heterotrain_operator.experiments.progress import TREND
from heterotrain_operator.experiments.report.value import Column, Table, Tone, Toned

if TYPE_CHECKING:
    from heterotrain_operator.clusters.kube.reading import Reader


UNCUT_WIDTH = 4096
"""Columns where the output is no terminal: nothing is cut or folded there, so that it can be searched."""

TONES = {
    "Running": Tone.BUSY,
    "Succeeded": Tone.GOOD,
    "Failed": Tone.FAILURE,
    "Invalid": Tone.FAILURE,
    "Restarting": Tone.DOUBT,
    "Suspended": Tone.DOUBT,
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


def columns(*headings: str, right: Iterable[str] = ()) -> RichTable:
    """An empty table of these columns; the last one folds where it is too long."""
    table = RichTable(box=None, pad_edge=False, padding=(0, 3, 0, 0))
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


def phase(job: JobState) -> Toned:
    """The phase in its colour."""
    return Toned(job.phase or UNSEEN, TONES.get(job.phase, Tone.PLAIN))


def steps(job: JobState) -> str:
    """The committed steps, and of how many if that is known."""
    if job.step is None:
        return wording.UNKNOWN
    return f"{job.step}/{job.total_steps}" if job.total_steps else str(job.step)


def _hundredths(value: int) -> str:
    return wording.percent(value / 100)


JOB_COLUMNS = (
    Column("NAME", lambda job: job.name, name=True),
    Column("PHASE", phase, left=True),
    Column("WORKERS", lambda job: job.ready, shown, rank=2, left=True),
    Column("STEP", steps, rank=1),
    Column("IMBALANCE", lambda job: job.imbalance_percent, _hundredths, rank=3),
    Column("PLAN", lambda job: job.plan_version, rank=8),
)
WIDE_COLUMNS = (
    Column("POLICY", lambda job: f"{shown(job.policy)}{' (dry run)' if job.dry_run else ''}", rank=7, left=True),
    Column("GLOBAL BATCH", lambda job: job.global_batch, rank=9),
    Column("RESTARTS", lambda job: job.restarts, rank=4),
    Column("REASON", lambda job: job.reason, shown, rank=5, text=True, least=20),
)


def jobs_table(
    jobs: Sequence[JobState], now: datetime, *, everywhere: bool, wide: bool, width: int = UNCUT_WIDTH
) -> RichTable:
    """One line per job: the columns that kubectl prints, and in the wide form what explains them."""
    columns = [Column("NAMESPACE", lambda job: job.namespace, name=True)] if everywhere else []
    columns += [*JOB_COLUMNS, Column("AGE", lambda job: since(job.created, now), rank=6, left=True)]
    return fitted([*columns, *(WIDE_COLUMNS if wide else ())], jobs, width, box=None)


def workers_table(
    workers: Sequence[WorkerState],
    plan_version: int | None,
    width: int = UNCUT_WIDTH,
    trends: Mapping[str, Iterable[float]] | None = None,
) -> RichTable:
    """One line per worker; a plan other than the active one is marked. `trends` is how waiting went, by worker."""
    known = trends or {}

    def plan(worker: WorkerState) -> Toned:
        behind = worker.plan_version is not None and worker.plan_version != plan_version
        return Toned(worker.plan_version, Tone.DOUBT if behind else Tone.PLAIN)

    columns = (
        Column("WORKER", lambda worker: worker.name, name=True),
        Column("BATCH", lambda worker: worker.batch),
        Column("FITS", lambda worker: worker.most, rank=6, optional=True),
        Column("OWN TIME", lambda worker: worker.own_seconds, wording.seconds, rank=1),
        Column("WAITING", lambda worker: worker.waiting, wording.percent, rank=2),
        Column(
            "OF LATE",
            lambda worker: sparkline(known[worker.name], 1.0) if worker.name in known else None,
            rank=5,
            least=TREND,
            left=True,
            optional=True,
        ),
        Column("UPDATES", lambda worker: worker.updates, rank=3, optional=True),
        Column("STALENESS", lambda worker: worker.staleness, "{:g}".format, rank=3, optional=True),
        Column("DISCARDED", lambda worker: worker.discarded, rank=5, optional=True),
        Column("LET WAIT", lambda worker: worker.waited_seconds, wording.seconds, rank=5, optional=True),
        Column("SLOWED BY", _slowed_by, rank=2, left=True, optional=True),
        Column("CPU", lambda worker: worker.cpu_limit, lambda cores: f"{float(cores):g}", rank=3),
        Column("PLAN", plan, rank=5),
        Column("NODE", lambda worker: worker.node or None, rank=4, name=True, optional=True),
        Column("STATE", state, text=True, least=10),
    )
    return fitted(Table(columns, tuple(workers)).shown(details=False), workers, width, box=None)


def _slowed_by(worker: WorkerState) -> Toned:
    return Toned(worker.slowed_by or None, Tone.DOUBT)


def state(worker: WorkerState) -> str:
    """What a worker does, and why it waits or how it ended."""
    return ": ".join(filter(None, [worker.phase, worker.message])) or wording.UNKNOWN


def conditions_table(conditions: Sequence[ConditionState], now: datetime) -> RichTable:
    """One line per condition."""
    table = columns("condition", "status", "reason", "age", "message")
    for condition in conditions:
        row = (condition.type, condition.status, condition.reason)
        table.add_row(*(shown(cell) for cell in row), since(condition.since, now), shown(condition.message))
    return table


def job_view(
    job: JobState,
    now: datetime,
    *,
    wide: bool = False,
    width: int = UNCUT_WIDTH,
    trends: Mapping[str, Iterable[float]] | None = None,
) -> RenderableType:
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
        table = workers_table(job.workers, job.plan_version, width, trends)
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
    heading = Text(job.name, style="bold")
    heading.append(f" in {job.namespace}: " if job.namespace else ": ", style="none")
    heading.append(job.phase or UNSEEN, style=STYLES[TONES.get(job.phase, Tone.PLAIN)])
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
        "" if job.updates_per_second is None else f"{job.updates_per_second:g} updates/s",
        "" if job.evaluated is None else wording.evaluated(job.evaluated),
        f"{job.ready} workers" if job.ready else "",
        f"server {job.server}" if job.server else "",
        "" if job.imbalance_percent is None else f"imbalance {_hundredths(job.imbalance_percent)}",
        f"restarts {job.restarts}" if job.restarts else "",
        wording.costs(job.costs, job.cost) if job.costs else "",
    )
    line = ", ".join(filter(None, words))
    return [line] if line else []


def list_jobs(reader: Reader, console: Console, output: str | None, now: datetime, *, everywhere: bool) -> int:
    """Print the jobs of a namespace or of all; `output` is wide, json, yaml or None. Returns the exit code."""
    found = reader.jobs(everywhere=everywhere)
    if output in ("json", "yaml"):
        _write({"apiVersion": "v1", "kind": "List", "items": [without_bookkeeping(job) for job in found]}, output)
    elif found:
        jobs = [read_job(job) for job in found]
        show(console, jobs_table(jobs, now, everywhere=everywhere, wide=output == "wide", width=console.width))
    else:
        sys.stderr.write(
            f"There are no jobs {'' if everywhere else f'in namespace {reader.namespace}'}".rstrip() + ".\n"
        )
    return 0


def show_job(reader: Reader, name: str, console: Console, output: str | None, now: datetime) -> int:
    """Print one job in full; `output` as for `list_jobs`. Returns the exit code."""
    found = reader.job(name)
    if output in ("json", "yaml"):
        _write(without_bookkeeping(found), output)
    else:
        show(console, job_view(read_job(found), now, wide=output == "wide", width=console.width))
    return 0


def without_bookkeeping(job: dict[str, Any]) -> dict[str, Any]:
    """The object without the record of who manages which field, which kubectl hides, too."""
    metadata = {key: value for key, value in job["metadata"].items() if key != "managedFields"}
    return {**job, "metadata": metadata}


def _write(document: dict[str, Any], output: str) -> None:
    text = json.dumps(document, indent=4) + "\n" if output == "json" else yaml.safe_dump(document, sort_keys=False)
    sys.stdout.write(text)
