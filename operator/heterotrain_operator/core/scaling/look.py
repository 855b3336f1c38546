"""One look at how many workers pay: the size that was measured, the one to have next, and why.

It comes once an interval has ended in which the policy let the batches be: a newcomer whose batch is not balanced yet
must not condemn its size. Nothing is decided while members change, and nothing at all where they cannot.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from heterotrain.contract import MEMBERS_MAY_END, Plan
from heterotrain_operator.core.batching.growth import at_size
from heterotrain_operator.core.batching.policy import Seat
from heterotrain_operator.core.model import Condition, Event, Job, ScalingSeen, SizePoint, WorkerMetrics, WorkerSeen
from heterotrain_operator.core.remembered.sizes import LONGEST_WHY, Point, Sizes
from heterotrain_operator.core.scaling import choice
from heterotrain_operator.core.scaling.conditions import CONDITIONS, JUDGE_ANY, Outlook, rate
from heterotrain_operator.core.scaling.curve import (
    Counted,
    Size,
    counted,
    curve_of,
    names_of,
    point_of,
    size_of,
    wanted_size,
    with_point,
)
from heterotrain_operator.core.scaling.schedule import MOST_TRIED, Range, next_size
from heterotrain_operator.core.scaling.sizes import as_in_spec, bounds_of_size, scales, with_replicas
from heterotrain_operator.core.state import Remembered
from heterotrain_operator.core.stragglers.remedies import ENOUGH_INTERVALS

OFF = 0.1
"""By which part the throughput at rest differs from what it was first, for the search to begin again."""

OFF_INTERVALS = 10
"""Intervals in a row in which it does: what comes and goes is not followed."""

CANNOT_CHANGE = (
    "the workers' group cannot change while it trains, so that every try would be a restart; "
    "training.backend: gloo lets it change"
)
WITHOUT_END = "it is not known when the job ends, so that nothing is known of its utility"
OBSERVES = "dry run, the number of workers stays"
REASONS = {CANNOT_CHANGE: "MembersCannotChange", WITHOUT_END: "EndNotKnown", OBSERVES: "DryRun"}
"""Of the condition ScalingBlocked, by its message."""


def looked(
    job: Job, plan: Plan, members: Sequence[WorkerSeen], memory: Remembered, now: float, *, seats: Sequence[Seat]
) -> tuple[Remembered, tuple[Event, ...]]:
    """The memory after a look, and what is to be reported. The job is at its present size, `members` and `seats` are
    those of the plan, by rank; there are no seats unless an interval has ended in which the batches stayed.
    """
    if not scales(job) or hindrance(job, memory):
        return memory, ()
    sizes = _renewed(as_in_spec(job, memory.sizes), memory.sizes)
    size = size_of(job, plan)
    # A straggler about which something is to be done next must not condemn the size either.
    advised = any(0 < each.evidence.advised <= ENOUGH_INTERVALS for each in memory.workers)
    settled = not (memory.following.changing or memory.remedies.replacing or advised)
    if size == wanted_size(job) and settled:
        sizes = _arrived(sizes, now)
        metrics = [worker.metrics for worker in members]
        found = counted(plan, metrics) if seats else None
        if found is not None and found.steps >= max(job.scaling.every_batches, job.interval, 1):
            sizes, events = _measured(job, plan, replace(memory, sizes=sizes), found, now, metrics=metrics, seats=seats)
            return replace(memory, sizes=sizes), events
    return memory if sizes == memory.sizes else replace(memory, sizes=sizes), ()


def _measured(
    job: Job,
    plan: Plan,
    memory: Remembered,
    found: Counted,
    now: float,
    *,
    metrics: Sequence[WorkerMetrics | None],
    seats: Sequence[Seat],
) -> tuple[Sizes, tuple[Event, ...]]:
    """What follows from the throughput of the present size."""
    sizes, point = memory.sizes, point_of(job, plan, found)
    size = point.workers
    if sizes.at_rest and size in curve_of(job, sizes.points):
        return _at_rest(job, sizes, plan, point, found)
    if sizes.at_rest:  # a straggler was removed, or the like
        sizes = replace(sizes.searched_again(), searched_as=sizes.searched_as)
    condition, outlook = CONDITIONS[job.scaling.condition], _outlook(job, plan, metrics, memory, now)
    if condition is None:
        return sizes, ()
    if job.scaling.condition == "Utility" and outlook.samples_left is None:
        return replace(sizes, said=WITHOUT_END), ()
    if size not in curve_of(job, sizes.points):
        sizes = replace(sizes, points=with_point(sizes.points, point), tried=sizes.tried + 1)
    if not sizes.first_end_seconds:
        sizes = replace(sizes, first_end_seconds=outlook.end_seconds(point))
    judge = partial(condition, job.scaling, replace(outlook, first_end_seconds=sizes.first_end_seconds))
    curve, before = curve_of(job, sizes.points), _size_in(sizes.best_size)
    reach = _reach(job, sizes, size, plan)
    best = before if before in curve and reach.holds(before) else size
    after = next_size(
        best,
        curve,
        reach,
        lambda small, great: judge(small, great).pays,
        partial(choice.choose, job, seats, point.step_seconds, plan=plan),
        most=MOST_TRIED - sizes.tried,
    )
    # The way back may need workers that are not to be had.
    target = after.size if reach.is_possible(after.size) else size
    sizes = replace(
        sizes,
        points=tuple(replace(each, left=each.workers in after.left) for each in sizes.points),
        best_size=_text_of(after.best),
        at_rest=after.at_rest,
        rest_throughput=0.0,
        off_intervals=0,
    )
    words = []
    if (pair := _pair(curve, reach, best, size)) is not None:
        words.append(f"{_between(job, pair[0].workers, pair[1].workers)}: {judge(*pair).why}")
    if target != size:
        words.append(f"{_between(job, size, target)}, {'which stays' if after.at_rest else 'to measure that'}")
        for name, workers in zip(names_of(job), target, strict=True):
            sizes = with_replicas(job, sizes, name, workers)
        sizes = replace(sizes, resized_at=now)
    else:
        words.append(f"{_shown(job, size)} stays, at {rate(point)} samples/s")
    event = Event("Normal", "ScalingStopped" if after.at_rest else "Scaled", "; ".join(words))
    return replace(sizes, said=event.message[:LONGEST_WHY]), (event,)


def _at_rest(job: Job, sizes: Sizes, plan: Plan, point: Point, found: Counted) -> tuple[Sizes, tuple[Event, ...]]:
    """Whether the throughput is still what it was when the search came to rest."""
    steps, seconds = found.steps, found.seconds
    if sizes.rest_version == plan.version and steps >= sizes.rest_steps:
        steps, seconds = steps - sizes.rest_steps, seconds - sizes.rest_seconds
    if steps < max(job.interval, 1) or seconds <= 0:
        return sizes, ()
    throughput = point.batch * steps / seconds
    sizes = replace(sizes, rest_version=plan.version, rest_steps=found.steps, rest_seconds=found.seconds)
    if sizes.rest_throughput <= 0:
        return replace(sizes, rest_throughput=throughput, off_intervals=0), ()
    off = abs(throughput / sizes.rest_throughput - 1) > OFF
    sizes = replace(sizes, off_intervals=sizes.off_intervals + 1 if off else 0)
    if sizes.off_intervals < OFF_INTERVALS:
        return sizes, ()
    said = (
        f"{_shown(job, point.workers)}: {sizes.rest_throughput:.4g} -> {throughput:.4g} samples/s for "
        f"{OFF_INTERVALS} intervals, so that other sizes are tried again"
    )
    return replace(sizes.searched_again(), searched_as=sizes.searched_as, said=said[:LONGEST_WHY]), ()


def hindrance(job: Job, memory: Remembered) -> str:
    """Why no size can be tried, in words; empty if one can."""
    if job.dry_run:
        return OBSERVES
    if memory.progress.stepped and memory.protocol < MEMBERS_MAY_END:
        return CANNOT_CHANGE
    return "" if memory.protocol >= MEMBERS_MAY_END else "the workers have not trained yet"


def blocked(job: Job, memory: Remembered, now: float) -> tuple[Condition, ...]:
    """The condition about what hinders scaling; none where the number of workers is not to be found."""
    seen = seen_of(job, memory, now)
    if seen is None:
        return ()
    if not seen.blocked:
        return (Condition("ScalingBlocked", False, "NothingHinders", "nothing hinders scaling"),)
    reason = REASONS.get(seen.blocked, "WorkersNotGiven")
    return (Condition("ScalingBlocked", True, reason, seen.blocked),)


def seen_of(job: Job, memory: Remembered, now: float) -> ScalingSeen | None:
    """What is reported of the search."""
    if not scales(job):
        return None
    names = names_of(job)
    points = tuple(
        SizePoint(tuple(zip(names, each.workers, strict=True)), each.throughput, each.step_seconds)
        for each in sorted(curve_of(job, memory.sizes.points).values(), key=lambda each: each.workers)
    )
    refused = [f"{each.group}: {each.why}" for each in memory.sizes.refusals if each.until > now]
    said = memory.sizes.said
    hinders = hindrance(job, memory) if memory.progress.stepped else ""
    blocked = hinders or "; ".join(refused) or (said if said == WITHOUT_END else "")
    return ScalingSeen(points, memory.sizes.at_rest, said, blocked)


def _renewed(spec: Job, sizes: Sizes) -> Sizes:
    """A new search, from the present size and with all groups, where what it rests on was edited since the last one
    began: whoever edits it knows why workers were refused.
    """
    groups = [(each.name, each.replicas, *bounds_of_size(each), each.price_per_hour) for each in spec.groups]
    settings = hashlib.sha256(repr((spec.scaling, sorted(groups))).encode()).hexdigest()[:8]
    if settings == sizes.searched_as:
        return sizes
    return replace(sizes.searched_again(), searched_as=settings, refusals=())


def _arrived(sizes: Sizes, now: float) -> Sizes:
    """The sizes once all that are wanted are members. Groups that were left alone for long enough may be tried
    again.
    """
    if sizes.resized_at is not None:
        refusals = tuple(each for each in sizes.refusals if each.until > 0)
        sizes = replace(sizes, resized_at=None, refusals=refusals)
    if not any(0 < each.until <= now for each in sizes.refusals):
        return sizes
    again = tuple(replace(each, until=0.0) if each.until <= now else each for each in sizes.refusals)
    return replace(sizes, refusals=again, at_rest=False)


def _reach(job: Job, sizes: Sizes, size: Size, plan: Plan) -> Range:
    """Which sizes can be: within bounds, with a split of the global batch, and without more workers of a group that is
    left alone; but the job may go back to a size that it has had.
    """
    names, groups = names_of(job), {group.name: group for group in as_in_spec(job, sizes).groups}
    removed = {each.group: each.delta for each in sizes.removed}
    bounds = []
    for name in names:
        least, most = bounds_of_size(groups[name])
        bounds.append((least, max(most + removed.get(name, 0), least)))
    alone = {each.group for each in sizes.refusals if each.until > 0}
    had = curve_of(job, sizes.points)

    def is_possible(other: Size) -> bool:
        more = (name for name, want, have in zip(names, other, size, strict=True) if want > have)
        grown = at_size(job, dict(zip(names, other, strict=True)), plan)
        return (other in had or not alone & set(more)) and choice.is_possible(grown, other)

    return Range(bounds, job.scaling.step, is_possible, job.scaling.condition in JUDGE_ANY)


def _outlook(job: Job, plan: Plan, metrics: Sequence[WorkerMetrics | None], memory: Remembered, now: float) -> Outlook:
    started = memory.start.started_at
    read = [each for each in metrics if each is not None and each.total_steps > 0]
    left = min((max(each.total_steps - each.step, 0) for each in read), default=None)
    samples = None if left is None else float(left * plan.global_batch_size)
    elapsed = max(now - started, 0.0) if started is not None else 0.0
    return Outlook(elapsed, samples, 0.0, choice.prices_of(job) or (0.0,) * len(job.groups))


def _pair(curve: dict[Size, Point], reach: Range, best: Size, size: Size) -> tuple[Point, Point] | None:
    """The best size so far and the one that was measured, the smaller first; None if they cannot be compared, or are
    the same.
    """
    if size in reach.swapped(best):
        return curve[best], curve[size]
    if sum(a != b for a, b in zip(best, size, strict=True)) != 1:
        return None
    small, great = sorted((best, size))
    return curve[small], curve[great]


def _between(job: Job, size: Size, target: Size) -> str:
    """Two sizes in words: the groups that differ."""
    pairs = zip(names_of(job), size, target, strict=True)
    return ", ".join(f"{name} {have} -> {want}" for name, have, want in pairs if have != want)


def _shown(job: Job, size: Size) -> str:
    return ", ".join(f"{name} {count}" for name, count in zip(names_of(job), size, strict=True))


def _text_of(size: Size) -> str:
    return " ".join(map(str, size))


def _size_in(text: str) -> Size:
    words = text.split()
    return tuple(map(int, words)) if all(word.isdecimal() and len(word) < 8 for word in words) else ()
