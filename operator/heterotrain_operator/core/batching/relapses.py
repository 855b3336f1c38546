"""Workers that become slow again and again are left what they manage when they are slow, where that costs less.

A batch that follows a worker's speed is wrong for about a control interval after each change, and the step waits for
that worker. Where that takes more than what the worker could compute besides while it is fast, it counts as slow all
the time. Of three workers that is seldom worth it; of hundreds, somebody turns slow in every interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from heterotrain_operator.core.batching.policy import Seat

LEAST_FACTOR = 1.1
"""Times longer that a step must take when the worker is slow, or it is slow now."""


class _Fast(NamedTuple):
    """A worker that is fast now: its place, by how many times longer its steps take when it is slow, and the samples
    per second that it is left without if it counts as slow.
    """

    place: int
    factor: float
    lost: float


def as_wary(seats: Sequence[Seat], step: int, interval: int) -> tuple[Sequence[Seat], tuple[str, ...]]:
    """The seats with the estimates of workers at the slow speed that they have had before, where it costs less to leave
    them there than to follow them; and their names. `step` is the committed one, `interval` the control interval.
    """
    fast: list[_Fast] = []
    turns = whole = 0.0
    for place, seat in enumerate(seats):
        estimate, relapses = seat.estimate, seat.memory.relapses
        if estimate is None or seat.batch <= 0:
            continue
        speed = seat.batch / estimate.mean_seconds
        whole += speed
        if relapses.turns:
            turns += relapses.rate(step, interval)
            slow = relapses.slow_at(seat.predictor, seat.memory.batch_cost, seat.batch, estimate)
            if (factor := slow / estimate.mean_seconds) >= LEAST_FACTOR:
                fast.append(_Fast(place, factor, speed * (1 - 1 / factor)))
    wary_of = _wary_of(fast, whole, turns) if fast else ()
    if not wary_of:
        return seats, ()
    found = list(seats)
    for place, factor, _ in wary_of:
        estimate = seats[place].estimate
        assert estimate is not None
        found[place] = seats[place]._replace(estimate=estimate.scaled(factor))
    return found, tuple(seats[place].name for place, _, _ in wary_of)


def _wary_of(fast: Sequence[_Fast], whole: float, turns: float) -> Sequence[_Fast]:
    """Those that are better left at their slow speed, of workers that compute `whole` samples per second together, and
    have had so many `turns` per control interval. First come those that are left without the fewest samples for what
    their turns cost. Each is taken to turn as often as the others: what each did till now is mostly chance.
    """
    ordered = sorted(fast, key=lambda each: (each.lost / (each.factor - 1), each.place))
    followed, longer, left = len(ordered), math.fsum([each.factor - 1 for each in ordered]), whole
    best, number = math.inf, 0
    for count in range(len(ordered) + 1):
        waits = longer / followed * min(turns * followed / len(ordered), 1.0) if followed else 0.0  # of each interval
        seconds = whole / left * (1 + waits)
        if seconds < best:
            best, number = seconds, count
        if followed:
            followed, longer, left = followed - 1, longer - ordered[count].factor + 1, left - ordered[count].lost
    return ordered[:number]
