"""Which group is tried next: the one whose workers are predicted to bring the most throughput for their price.

Only the choice is predicted; whether it paid is measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from heterotrain.contract import Plan
from heterotrain_operator.core.batching.growth import at_size
from heterotrain_operator.core.batching.policy import Seat
from heterotrain_operator.core.facts import bounds_of, multiples_of
from heterotrain_operator.core.model import Job
from heterotrain_operator.core.scaling.curve import Size, names_of
from heterotrain_operator.core.split.allocation import Line, iteration_seconds, waterfill
from heterotrain_operator.core.split.multiples import infeasible
from heterotrain_operator.core.split.passes import in_passes


def prices_of(job: Job) -> tuple[float, ...] | None:
    """The price of a second of a worker, by group in the order of a size; None if one has none."""
    prices = {group.name: group.price_per_hour for group in job.groups}
    found = [prices[name] for name in names_of(job)]
    known = [price / 3600 for price in found if price is not None]
    return tuple(known) if len(known) == len(found) else None


def is_possible(job: Job, size: Size) -> bool:
    """Whether some split of the global batch keeps the bounds of so many workers."""
    groups = {group.name: group for group in job.groups}
    workers = [groups[name] for name, count in zip(names_of(job), size, strict=True) for _ in range(count)]
    bounds = in_passes(job.global_batch, [bounds_of(job, each) for each in workers])
    return infeasible(job.global_batch, bounds, multiples_of(workers)) is None


def choose(
    job: Job,
    seats: Sequence[Seat],
    step_seconds: float,
    best: Size,
    sizes: Sequence[Size],
    *,
    plan: Plan | None = None,
) -> Size:
    """The size, of several beside the best one, that promises most for its price. `seats` are the members of `plan`,
    and `step_seconds` what a whole step takes with them. One with workers of which nothing is known promises most, for
    only a measurement can tell.
    """
    if len(sizes) < 2:
        return sizes[0]
    prices = prices_of(job) or (1.0,) * len(best)

    def predicted(size: Size) -> float | None:
        grown = at_size(job, dict(zip(names_of(job), size, strict=True)), plan)
        return predicted_throughput(grown, seats, step_seconds, size)

    now = predicted(best)

    def promise(size: Size) -> float:
        then = predicted(size)
        if now is None or then is None:
            return float("inf")
        price = sum(abs(a - b) * each for a, b, each in zip(size, best, prices, strict=True))
        return (then - now) / max(price, 1e-12)

    return max(sizes, key=promise)


def predicted_throughput(job: Job, seats: Sequence[Seat], step_seconds: float, size: Size) -> float | None:
    """Samples per second at a size: the water-filled own time of the workers' lines, those who are not there by the
    median of their group, and the rest of the measured step. None if nothing is known of some worker.
    """
    lines: dict[str, list[Line]] = defaultdict(list)
    present: list[Line] = []
    for seat in seats:
        line = seat.line()
        if line is None:
            return None
        lines[seat.group.name].append(line)
        present.append(line)
    groups = {group.name: group for group in job.groups}
    chosen, workers = [], []
    for name, count in zip(names_of(job), size, strict=True):
        known = lines[name]
        if count and not known:
            return None
        mean_batch = max(job.global_batch / max(sum(size), 1), 1.0)
        typical = sorted(known, key=lambda line: line.at(mean_batch))[len(known) // 2 : len(known) // 2 + 1]
        chosen += (known + typical * count)[:count]
        workers += [groups[name]] * count
    bounds = in_passes(job.global_batch, [bounds_of(job, each) for each in workers])
    multiples = multiples_of(workers)
    if infeasible(job.global_batch, bounds, multiples) is not None or any(line[1] <= 0 for line in chosen):
        return None
    rest = max(step_seconds - iteration_seconds(present, [seat.batch for seat in seats]), 0.0)
    own = iteration_seconds(chosen, waterfill(chosen, job.global_batch, bounds, multiples))
    return job.global_batch / max(own + rest, 1e-9)
