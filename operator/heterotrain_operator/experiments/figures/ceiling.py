"""The ceiling: how fast the job could be if every batch were split with perfect knowledge of the workers; pure.

The profile of the workers, own time by batch size and the time of the all-reduce, says what is possible. A speed-up
alone says little: it grows with how badly the uniform split fits. The share of the ceiling says how much of what was
possible has been reached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from heterotrain_operator.core.split.allocation import ProfiledTime, oracle_split
from heterotrain_operator.experiments.figures.steps import Step, balanced

LEAST_SIZES = 4
"""A profile at fewer batch sizes than this is too coarse for a trustworthy ceiling."""


BEST_BALANCED_SHARE = 0.20
"""Share of the steps, the best balanced ones, that are used instead where no step is balanced."""


DOUBTFUL_DRIFT = 0.10
"""A worker that differs by more than this fraction before and after the trials makes the ceiling doubtful."""


@dataclass(frozen=True, slots=True)
class ProfilePoint:
    """One worker at one batch size: median own seconds, their interquartile range, and from how many steps.

    `before_seconds` and `after_seconds` are the medians of the two profiles; None where one lacks this size.
    """

    batch: int
    own_seconds: float
    spread_seconds: float
    steps: int
    before_seconds: float | None
    after_seconds: float | None


@dataclass(frozen=True, slots=True)
class WorkerProfile:
    """One worker's own time over its batch size, in ascending order of sizes."""

    name: str
    points: tuple[ProfilePoint, ...]


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Median seconds of the all-reduce over `steps` steps; `balanced` says if those were balanced ones."""

    seconds: float
    steps: int
    balanced: bool


@dataclass(frozen=True, slots=True)
class Profile:
    """What was profiled, and what is doubtful about it."""

    workers: tuple[WorkerProfile, ...]
    allreduce: AllReduce
    warnings: tuple[str, ...]


def _interquartile_range(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    low, _, high = quantiles(values, n=4, method="inclusive")
    return high - low


def _by_size(steps: Sequence[Step], name: str) -> dict[int, list[float]]:
    sizes: dict[int, list[float]] = {}
    for step in steps:
        record = step.records.get(name)
        if record is not None and not step.marked and record.samples > 0:
            sizes.setdefault(record.batch, []).append(record.own)
    return sizes


def _worker_profile(name: str, before: Sequence[Step], after: Sequence[Step]) -> WorkerProfile:
    first, last = _by_size(before, name), _by_size(after, name)
    points = []
    for batch in sorted(first.keys() | last.keys()):
        seconds = first.get(batch, []) + last.get(batch, [])
        points.append(
            ProfilePoint(
                batch=batch,
                own_seconds=median(seconds),
                spread_seconds=_interquartile_range(seconds),
                steps=len(seconds),
                before_seconds=median(first[batch]) if batch in first else None,
                after_seconds=median(last[batch]) if batch in last else None,
            )
        )
    return WorkerProfile(name, tuple(points))


def _drift(worker: WorkerProfile) -> float | None:
    """The median change of own time from before to after, as a fraction; sizes in between are interpolated."""
    before = {point.batch: point.before_seconds for point in worker.points if point.before_seconds is not None}
    after = {point.batch: point.after_seconds for point in worker.points if point.after_seconds is not None}
    if not before or not after:
        return None
    expected = ProfiledTime(before)
    return median(seconds / expected(batch) - 1 for batch, seconds in after.items() if expected(batch) > 0)


def _warnings(worker: WorkerProfile) -> list[str]:
    found = []
    if len(worker.points) < LEAST_SIZES:
        found.append(
            f"{worker.name}: profiled at {len(worker.points)} batch sizes, "
            f"fewer than {LEAST_SIZES}; its ceiling is doubtful"
        )
    drift = _drift(worker)
    if drift is not None and abs(drift) > DOUBTFUL_DRIFT:
        found.append(
            f"{worker.name}: own time changed by {drift:+.0%} from before to after the trials; "
            "something else was using this machine"
        )
    return found


def allreduce_of(steps: Sequence[Step]) -> AllReduce:
    """Median all-reduce seconds of the balanced steps, or of the best balanced fifth if none is.

    Raises ValueError if no step is fit for measuring.
    """
    chosen = balanced(steps)
    if chosen:
        return AllReduce(median(step.allreduce_seconds for step in chosen), len(chosen), True)
    ranked = sorted(
        (spread, step.allreduce_seconds) for step in steps if not step.marked and (spread := step.spread) is not None
    )
    if not ranked:
        raise ValueError("no step is fit for measuring the all-reduce")
    best = ranked[: max(1, round(len(ranked) * BEST_BALANCED_SHARE))]
    return AllReduce(median(seconds for _, seconds in best), len(best), False)


def profile_of(names: Sequence[str], before: Sequence[Step], after: Sequence[Step], trials: Sequence[Step]) -> Profile:
    """The profile of the workers from the steps profiled before and after the trials, and the trials' own steps.

    Raises ValueError if a worker was not measured at all.
    """
    workers = tuple(_worker_profile(name, before, after) for name in names)
    unmeasured = [worker.name for worker in workers if not worker.points]
    if unmeasured:
        raise ValueError(f"no step of {', '.join(unmeasured)} was fit for measuring in the profile")
    allreduce = allreduce_of(trials)
    warnings = [text for worker in workers for text in _warnings(worker)]
    if not allreduce.balanced:
        warnings.append(
            "no step of any trial was balanced within 10 %: "
            f"the all-reduce is taken from the {allreduce.steps} best balanced ones"
        )
    return Profile(workers, allreduce, tuple(warnings))


FAULT_ABOVE = 1.02
"""A share of the ceiling above this cannot be speed; the measurement is at fault."""


@dataclass(frozen=True, slots=True)
class MeasuredCeiling:
    """The oracle's iteration for one global batch: its split, the longest own time, with all-reduce."""

    global_batch: int
    batches: Mapping[str, int]
    own_seconds: float
    iteration_seconds: float


Ceilings = Mapping[int, MeasuredCeiling]
"""By global batch, in samples."""


def ceilings_at(levels: Sequence[Ceilings], level: int) -> Ceilings:
    """The ceilings under the limits of this level; empty where they were not measured."""
    return levels[level] if level < len(levels) else {}


def ceiling_of(profile: Profile, global_batch: int, bounds: Mapping[str, tuple[int, int]]) -> MeasuredCeiling:
    """The oracle's iteration for `global_batch` samples under each worker's (least, most) samples.

    Raises ValueError if the bounds cannot hold the global batch.
    """
    own = [{p.batch: p.own_seconds for p in worker.points} for worker in profile.workers]
    names = [worker.name for worker in profile.workers]
    split, seconds = oracle_split(own, global_batch, [bounds[name] for name in names])
    batches = dict(zip(names, split, strict=True))
    return MeasuredCeiling(global_batch, batches, seconds, seconds + profile.allreduce.seconds)
