"""What a decision of a small job has seen, and what it decided."""

from __future__ import annotations

from dataclasses import replace

from heterotrain.contract import Member, Plan
from heterotrain_operator.core.model import Decision, Event, Group, Job, Seen, WorkerMetrics, WorkerSeen

JOB = Job("digits", (Group("large", 1, cpu_limit=1.0), Group("small", 1, cpu_limit=0.25)), global_batch=96)


PLAN = Plan(
    3, 1, "step", (Member("digits-large-0", "a", "h:1", "large", 80), Member("digits-small-0", "b", "h:2", "small", 16))
)


QUIET = Decision("Running", "within the dead-band")


MOVED = Decision(
    "Running", "moving 8 samples", plan=PLAN, events=(Event("Normal", "BatchRebalanced", "moving 8 samples to large"),)
)


def seen(step: int, total: int = 400) -> Seen:
    """Both workers trained to a step: the large one works 60 of 80 ms, the small one all of them."""
    metrics = WorkerMetrics(
        3, batch_size=80, step=step, total_steps=total, phase="training", steps=10, own_seconds=0.6, wait_seconds=0.2
    )
    large = WorkerSeen("digits-large-0", "a", "large", 0, "Running", cpu_limit=1.0, metrics=metrics)
    small = replace(
        large,
        name="digits-small-0",
        uid="b",
        group="small",
        cpu_limit=0.25,
        metrics=replace(
            metrics,
            batch_size=16,
            own_seconds=0.8,
            wait_seconds=0.0,
            memory_peak_bytes=700 * 2**20,
            memory_limit_bytes=2**30,
        ),
    )
    return Seen((small, large), PLAN)


def ended(step: int) -> Seen:
    """Both workers have ended, and their metrics with them."""
    now = seen(step)
    workers = tuple(
        replace(worker, metrics=None, phase="Succeeded", exit_code=0, finished=True, step=step)
        for worker in now.workers
    )
    return replace(now, workers=workers)
