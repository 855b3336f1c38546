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
from heterotrain_operator.core.prediction.relapses import LEAST_TURNS, intervals_counted

LEAST_DELAY = 0.1
"""Part of the step by which a worker that turns slow must delay it, or it is slow now, or need not be looked at."""

LEAST_TURNS_TOGETHER = 2.0
"""Turns of all workers in the last intervals before anybody counts as slow: one may be the last."""


class _Fast(NamedTuple):
    """A worker that is fast now: its place, by how many times longer its steps take when it is slow, by what part that
    delays a balanced step, and the samples per second that it is left without if it counts as slow.
    """

    place: int
    factor: float
    delay: float
    lost: float


def as_wary(seats: Sequence[Seat], step: int, interval: int) -> tuple[Sequence[Seat], tuple[str, ...]]:
    """The seats with the estimates of workers at the slow speed that they have had before, where it costs less to leave
    them there than to follow them; and their names. `step` is the committed one, `interval` the control interval.
    """
    if not any(seat.memory.relapses.turns for seat in seats):
        return seats, ()
    step = max(step, 0)
    measured = [
        (place, seat, estimate, seat.memory.relapses.recent(step, interval))
        for place, seat in enumerate(seats)
        if (estimate := seat.estimate) is not None and seat.batch > 0
    ]
    turns = math.fsum([recent for *_, recent in measured if recent >= LEAST_TURNS])
    if turns < LEAST_TURNS_TOGETHER:
        return seats, ()
    whole = math.fsum([seat.batch / estimate.mean_seconds for _, seat, estimate, _ in measured])
    even = sum([seat.batch for _, seat, *_ in measured]) / whole  # seconds, if each had samples by its speed
    fast: list[_Fast] = []
    for place, seat, estimate, recent in measured:
        if recent < LEAST_TURNS:
            continue
        now, speed = estimate.mean_seconds, seat.batch / estimate.mean_seconds
        slow = seat.memory.relapses.slow_at(seat.predictor, seat.memory.batch_cost, seat.batch, estimate)
        factor = slow / now
        # Followed, it takes as long as the others, or as its greatest batch does.
        delay = factor * min(now * seat.bounds[1] / seat.batch / even, 1.0) - 1
        if delay >= LEAST_DELAY:
            fast.append(_Fast(place, factor, delay, speed * (1 - 1 / factor)))
    wary_of = _wary_of(fast, whole, turns / intervals_counted(step, interval)) if fast else ()
    if not wary_of:
        return seats, ()
    found = list(seats)
    for place, factor, *_ in wary_of:
        estimate = seats[place].estimate
        assert estimate is not None
        found[place] = seats[place]._replace(estimate=estimate.scaled(factor), as_slow=True)
    return found, tuple(seats[each.place].name for each in wary_of)


def _wary_of(fast: Sequence[_Fast], whole: float, turns: float) -> Sequence[_Fast]:
    """Those that are better left at their slow speed, of workers that compute `whole` samples per second together, and
    have had so many `turns` per control interval. First come those that are left without the fewest samples for what
    their turns cost. Each is taken to turn as often as the others: what each did till now is mostly chance.
    """
    ordered = sorted(fast, key=lambda each: (each.lost / each.delay, each.place))
    followed, delays, left = len(ordered), math.fsum([each.delay for each in ordered]), whole
    best, number = math.inf, 0
    for count in range(len(ordered) + 1):
        waits = delays / followed * min(turns * followed / len(ordered), 1.0) if followed else 0.0  # of each interval
        seconds = whole / left * (1 + waits)
        if seconds < best:
            best, number = seconds, count
        if followed:
            followed, delays, left = followed - 1, delays - ordered[count].delay, left - ordered[count].lost
    return ordered[:number]
