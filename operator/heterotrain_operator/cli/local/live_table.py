"""How a job is doing now: a row for each worker, or all in one plain line."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from heterotrain_operator.cli.fitting import Column, fitted
from heterotrain_operator.cli.progress_line import Progress
from heterotrain_operator.core.facts import survey
from heterotrain_operator.core.model import Job, Seen, WorkerMetrics, WorkerSeen
from heterotrain_operator.experiments import wording
from heterotrain_operator.experiments.progress import Pace, reached_steps

WORKER_COLUMNS = (
    Column("worker", name=True),
    Column("device", rank=9, left=True),
    Column("CPU limit", rank=4),
    Column("batch"),
    Column("fits", rank=6),
    Column("memory", rank=7, least=16),
    Column("own time", rank=1),
    Column("waiting", rank=2),
    Column("samples/s", rank=5),
    Column("plan", rank=8),
    Column("phase", rank=3, least=13, left=True),
)


ALWAYS = tuple(column.heading for column in WORKER_COLUMNS if column.heading not in ("fits", "memory"))


def own_and_wait(metrics: WorkerMetrics) -> tuple[float | None, float | None]:
    """Mean own seconds, and the share of waiting, since the active plan began."""
    if metrics.steps <= 0:
        return None, None
    total = metrics.own_seconds + metrics.wait_seconds
    return metrics.own_seconds / metrics.steps, metrics.wait_seconds / total if total > 0 else None


def progress(seen: Seen, pace: Pace, *, endless: bool = False) -> Progress:
    """How far a job has come."""
    steps = reached_steps(seen)
    total = max((w.metrics.total_steps for w in seen.workers if w.metrics is not None), default=0)
    if endless:
        total = 0
    rate = pace.steps_per_second
    return Progress(steps, total, (total - steps) / rate if rate and total >= steps > 0 else None)


def by_rank(job: Job, seen: Seen) -> tuple[WorkerSeen, ...]:
    """The job's workers in the order of its groups."""
    return survey(job, seen).workers


def workers_table(
    job: Job, seen: Seen, pace: Pace, memory_limits: Mapping[str, int], *, width: int, most: int | None = None
) -> Table:
    """One row per worker, by group and index; `memory_limits` are the greatest batches that memory is
    thought to hold.

    Columns about memory are shown if they are known of any worker, of all columns those that fit into `width`, and of
    all workers the first `most`.
    """
    workers = by_rank(job, seen)[:most]
    devices = {group.name: group.device for group in job.groups}
    cells = [_row(worker, devices.get(worker.group, ""), pace.steps_per_second) for worker in workers]
    limited = any(w.metrics is not None and w.metrics.memory_limit_bytes is not None for w in workers)
    for worker, row in zip(workers, cells, strict=True):
        if memory_limits:
            row["fits"] = str(memory_limits.get(worker.name, wording.UNKNOWN))
        if limited:
            row["memory"] = _memory(worker)
    known = [column for column in WORKER_COLUMNS if all(column.heading in row for row in cells)]
    return fitted(known, cells, width)


def _memory(worker: WorkerSeen) -> str:
    metrics = worker.metrics
    return wording.memory(metrics.memory_peak_bytes, metrics.memory_limit_bytes) if metrics else wording.UNKNOWN


def _row(worker: WorkerSeen, device: str, rate: float | None) -> dict[str, str]:
    """Cells by heading."""
    row = dict.fromkeys(ALWAYS, wording.UNKNOWN) | {
        "worker": worker.name,
        "device": device,
        "CPU limit": "none" if worker.cpu_limit is None else f"{worker.cpu_limit:g}",
        "phase": worker.phase.lower(),
    }
    metrics = worker.metrics
    if metrics is None:
        return row
    own, waiting = own_and_wait(metrics)
    return row | {
        "batch": str(metrics.batch_size),
        "own time": wording.seconds(own),
        "waiting": wording.percent(waiting),
        "samples/s": wording.rate(rate * metrics.batch_size if rate else None),
        "plan": str(metrics.plan_version),
        "phase": metrics.phase or worker.phase.lower(),
    }


def plain_line(title: str, job: Job, seen: Seen, pace: Pace, *, reason: str, endless: bool = False) -> str:
    """The state of a job in one line; `reason` stands where there is no step yet, or no longer."""
    reached = progress(seen, pace, endless=endless)
    metrics = [worker.metrics for worker in by_rank(job, seen) if worker.metrics is not None]
    parts = [f"{title}: {reached}" if reached.steps else f"{title}: {reason}"]
    if reached.steps:
        rate = pace.steps_per_second
        samples = rate * sum(m.batch_size for m in metrics) if rate else None
        parts.append(f"{wording.rate(samples)} samples/s")
        parts.append(f"batches {wording.batches(m.batch_size for m in metrics)}")
        parts.append("own time " + wording.listed(wording.seconds(own_and_wait(m)[0]) for m in metrics))
        if reached.seconds_left is not None:
            parts.append(f"{wording.clock(reached.seconds_left)} left")
    return ", ".join(parts)
