"""The throughput that was measured, by size: whole steps under one plan, whose batches the policy lets be.

Source: Elasticity, section 3, which has a distribution of throughputs for each size; here each has one point, the mean
over the steps of a plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from heterotrain.contract import Plan
from heterotrain_operator.core.model import Job, WorkerMetrics
from heterotrain_operator.core.prediction.whole_steps import counted_by
from heterotrain_operator.core.remembered.sizes import MOST_POINTS, Point

Size = tuple[int, ...]
"""Workers by group, in the order of the groups' names."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Whole measured steps under a plan, and the seconds that they took together."""

    steps: float
    seconds: float


def names_of(job: Job) -> tuple[str, ...]:
    """The groups in the order of a size."""
    return tuple(sorted(group.name for group in job.groups))


def wanted_size(job: Job) -> Size:
    """The size that the job wants now."""
    replicas = {group.name: group.replicas for group in job.groups}
    return tuple(replicas[name] for name in names_of(job))


def size_of(job: Job, plan: Plan) -> Size:
    """The size of a plan's members."""
    there = Counter(member.group for member in plan.members)
    return tuple(there[name] for name in names_of(job))


def counted(plan: Plan, metrics: Sequence[WorkerMetrics | None]) -> Counted | None:
    """The whole steps that members have measured under the plan, of the median member; None if nobody tells any."""
    found = counted_by(each for each in metrics if each is not None and each.plan_version == plan.version)
    return None if found is None else Counted(*found)


def point_of(job: Job, plan: Plan, found: Counted) -> Point:
    """What these steps tell of the plan's size."""
    samples: Counter[str] = Counter()
    for member in plan.members:
        samples[member.group] += member.batch_size
    by_group = tuple(samples[name] for name in names_of(job))
    return Point(size_of(job, plan), by_group, found.seconds / found.steps, int(found.steps))


def curve_of(job: Job, points: Sequence[Point]) -> dict[Size, Point]:
    """The points by size, as far as they are of the job's groups."""
    groups = len(job.groups)
    return {each.workers: each for each in points if len(each.workers) == len(each.samples) == groups}


def with_point(points: Sequence[Point], point: Point) -> tuple[Point, ...]:
    """With one more, or another one in place of that of its size. Of too many the oldest from which the search has gone
    on are forgotten first.
    """
    kept = [each for each in points if each.workers != point.workers]
    while len(kept) >= MOST_POINTS:
        kept.remove(next((each for each in kept if each.left), kept[0]))
    return (*kept, point)
