"""A worker without samples is measured by nobody: it is given a few again now and then, for it may have recovered.

What it costs is known from what it took last: the step waits for it during one control interval. So a retry is due once
that is a small share of the time that has passed, and each one that fails doubles the time until the next. A CPU limit
that rose and another node are reasons to try at once, since what it took last says little then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from heterotrain.contract import Plan
from heterotrain_operator.core.batching.policy import Seat
from heterotrain_operator.core.model import Job, WorkerMetrics
from heterotrain_operator.core.remembered_worker import RememberedWorker
from heterotrain_operator.core.split.allocation import Line
from heterotrain_operator.core.split.multiples import next_multiple
from heterotrain_operator.core.state import Remembered

COST_SHARE = 0.1
"""Of the time since a worker lost its samples: what its first retry may cost. Tried on a worker that was slowed 10 to
200 times, and recovered or not, over 1,500 intervals: with 0.02 one that recovered stayed out for 100 intervals, at
1.75 times the best step, and with this for 30; where it stays 10 times slower, retries cost 1 % in all."""

LEAST_INTERVALS = 10
"""Decisions without samples before the first retry, however little it costs."""

MOST_INTERVALS = 100
"""And after so many it comes in any case: a worker that took a thousand times as long would never be tried else."""

MOST_DOUBLINGS = 8
"""Failed retries beyond which the time until the next no longer grows."""

DUE_AT_ONCE = 1_000_000
"""Decisions without samples, as they are counted where a retry is due in any case; no count goes beyond."""

PROBE_PART = 16
"""One part in so many of an equal share is what a retry gives, but one sample at least: few keep the step that waits
for it short, and with fewer the fixed part of a step would be all that is seen."""


def with_idle(plan: Plan, metrics: Sequence[WorkerMetrics | None], memory: Remembered) -> Remembered:
    """One decision more without samples, of the members that have none and are read."""
    if all(member.batch_size > 0 for member in plan.members):
        return memory
    workers = tuple(
        known if member.batch_size > 0 or counters is None else known._replace(idle=min(known.idle + 1, DUE_AT_ONCE))
        for member, counters, known in zip(plan.members, metrics, memory.workers, strict=True)
    )
    return replace(memory, workers=workers)


def due_at_once(known: RememberedWorker) -> RememberedWorker:
    """Of a worker whose circumstances are better or others now."""
    return known._replace(idle=DUE_AT_ONCE, retries=0)


def after_plan(known: RememberedWorker, old_batch: int, new_batch: int) -> RememberedWorker:
    """When a plan ends: a retry begins, or a worker has kept its samples, so that its retries are over."""
    if old_batch > 0:
        retries = 0 if new_batch > 0 else known.retries
        return known if (known.idle, known.retries) == (0, retries) else known._replace(idle=0, retries=retries)
    return known._replace(idle=0, retries=min(known.retries + 1, MOST_DOUBLINGS)) if new_batch > 0 else known


def due_retry(
    job: Job, seats: Sequence[Seat], lines: Sequence[Line | None], present_seconds: float
) -> tuple[int, int, str] | None:
    """Whose retry is due, by rank, with how many samples, and why, in words; None if nobody's is. `lines` are the own
    times, by rank, as far as they are known, and `present_seconds` those of the slowest.
    """
    due: list[tuple[float, int, int]] = []
    for rank, (seat, line) in enumerate(zip(seats, lines, strict=True)):
        low, high = seat.bounds
        if seat.batch > 0 or seat.held or high < 1:
            continue
        fewest = max(low, 1, seat.memory.least_batch, job.global_batch // len(seats) // PROBE_PART)
        samples = min(next_multiple(fewest, seat.group.multiple_of), high)
        longer = 0.0 if line is None else max(line.at(samples) / present_seconds - 1, 0.0)
        first = min(max(math.ceil(longer / COST_SHARE), LEAST_INTERVALS), MOST_INTERVALS)
        wait = first * 2 ** min(seat.memory.retries, MOST_DOUBLINGS)
        if seat.memory.idle >= wait:
            due.append((longer, rank, samples))
    if not due:
        return None
    longer, rank, samples = min(due)
    seat = seats[rank]
    since = "since its CPU limit or its place changed"
    if seat.memory.idle < DUE_AT_ONCE:
        since = f"after {seat.memory.idle} decisions without any"
    return rank, samples, f"{seat.name} is tried again with {samples} sample{'s' if samples > 1 else ''}, {since}"
