"""What a worker's own time likely is, from its own measurements and from those of the others in its group.

The workers of a group mostly are machines of one kind. Of many, the one that seems slowest in a few steps mostly had
bad luck, and a batch that follows it alone is corrected by the next plan. So each estimate is drawn towards its group's
mean, the more, the less certain it is beside what the group's workers really differ by, which is estimated as well.
Where they differ much, or somebody is far from all others, nothing is drawn.

Random-effects model: B. Efron, C. Morris, Data Analysis Using Stein's Estimator and its Generalizations, 1975; what
workers differ by is estimated as in R. DerSimonian, N. Laird, Meta-Analysis in Clinical Trials, 1986.

Lines over the batch are drawn, too. A line is laid through few batches, one for each plan. Under noise that lasts for
longer than a window, what a worker's speed did between two plans passes for the cost of a batch, and the line's own
error does not tell. Of hundreds of workers the lines of a few then say that more samples cost next to nothing, and
these end every step. So the lines that say so more than most of their group's are turned about what was measured, as
far as the worker's noise lasts, until they say it as much as most of the others. Lines are made steeper alone. Where
they are so by mistake, too few samples go to a worker or leave it, and the next plan goes on from there. One that is
too flat gives a worker more than twice too many, and plans diverge. Only lines through own times that were measured are
turned: one of its own leads back from a batch as it led there.

Workers that become slow again and again are left what they manage when they are slow, where that costs less. A batch
that follows a worker's speed is wrong for about a control interval after each change, and the step waits for that
worker. Where that takes more than what the worker could compute besides while it is fast, it counts as slow all the
time. Of three workers that is seldom worth it; of hundreds, somebody turns slow in every interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

from heterotrain_operator.core.batching.policy import Seat
from heterotrain_operator.core.prediction import Prediction
from heterotrain_operator.core.prediction.noise import DEVIATION_OF_MEDIAN, sure_deviations, together, variations_of
from heterotrain_operator.core.prediction.relapses import LEAST_TURNS, intervals_counted
from heterotrain_operator.core.prediction.roughness import inflation_of
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.remembered_worker import RememberedWorker
from heterotrain_operator.core.split.allocation import Line
from heterotrain_operator.core.split.expected import alike, expected_step

LEAST_WORKERS = 4
"""Of a group, measured: fewer say too little of what workers of their kind differ by."""

LIKE_BATCHES = 1.5
"""Times the group's usual batch, or a part of it, that a worker may have: who has another one was set apart before.
Tried: without it, one of eight workers that became twice as slow was followed by four plans instead of one."""

LEAST_VARIANCE, GREATEST_VARIANCE = 1e-8, 1.0
"""Of what was measured, relative: between them sums of certainties keep their digits."""


class _Measured(NamedTuple):
    """A seat's place among all, and the logarithm of its own time at the group's usual batch; the variance of what was
    measured, and what it grows by on the way from the seat's batch to the usual one."""

    place: int
    log_seconds: float
    measured: float
    way: float

    @property
    def variance(self) -> float:
        """At the usual batch."""
        return self.measured + self.way


def shrunk_to_group_mean(seats: Sequence[Seat]) -> list[Seat]:
    """The seats with estimates that are drawn towards those of their groups."""
    groups: dict[str, list[int]] = {}
    for place, seat in enumerate(seats):
        if seat.estimate is not None:
            groups.setdefault(seat.group.name, []).append(place)
    found = list(seats)
    for places in groups.values():
        if len(places) >= LEAST_WORKERS:
            for place, estimate in _drawn(seats, places):
                found[place] = seats[place].with_estimate(estimate)
    return found


def _drawn(seats: Sequence[Seat], places: Sequence[int]) -> list[tuple[int, Estimate]]:
    """The estimates of one group's seats that are drawn, by place."""
    members = _without_strangers(_at_one_batch(seats, places))
    if len(members) < LEAST_WORKERS:
        return []
    mean, between = _mean_and_variance(members)
    certainty = math.fsum(1 / (each.variance + between) for each in members)
    # What few workers differ by is itself uncertain (Efron and Morris).
    trust = (len(members) - 3) / (len(members) - 1)
    drawn = []
    for place, log_seconds, measured, way in members:
        estimate = seats[place].estimate
        assert estimate is not None
        weight = trust * measured / (measured + way + between)  # of the group's mean
        left = (1 - weight) + weight**2 / certainty / measured  # of the variance
        ratio = math.exp(weight * (mean - log_seconds))
        drawn.append(
            (
                place,
                Estimate(
                    estimate.mean_seconds * ratio,
                    estimate.variance * ratio**2,
                    estimate.steps,
                    estimate.inflation * min(left, 1.0),
                ),
            )
        )
    return drawn


def _at_one_batch(seats: Sequence[Seat], places: Sequence[int]) -> list[_Measured]:
    usual = round(median(seats[place].batch for place in places))
    found = []
    for place in places:
        seat = seats[place]
        own = at_usual = seat.estimate
        if own is None or not seat.batch <= LIKE_BATCHES * usual <= LIKE_BATCHES**2 * seat.batch:
            continue
        if seat.batch != usual:
            at_usual = seat.predictor.expect(seat.memory.batch_cost, seat.batch, own, usual)
        if at_usual is not None and at_usual.mean_seconds > 0:
            measured = min(max(own.relative_error**2, LEAST_VARIANCE), GREATEST_VARIANCE)
            way = min(max(at_usual.relative_error**2 - measured, 0.0), GREATEST_VARIANCE)
            found.append(_Measured(place, math.log(at_usual.mean_seconds), measured, way))
    return found


def _without_strangers(members: Sequence[_Measured]) -> Sequence[_Measured]:
    """Those that noise, and what most of them differ by, does not set apart: whose speed has jumped is none of them."""
    if len(members) < LEAST_WORKERS:
        return members
    middle = median(each.log_seconds for each in members)
    spread = DEVIATION_OF_MEDIAN * median(abs(each.log_seconds - middle) for each in members)
    between = max(0.0, spread**2 - median(each.variance for each in members))
    far = sure_deviations(len(members))
    return [each for each in members if abs(each.log_seconds - middle) <= far * math.sqrt(each.variance + between)]


def _mean_and_variance(members: Sequence[_Measured]) -> tuple[float, float]:
    """The mean of what the members' own times really are, and the variance between them, of logarithms."""
    weights = [1 / each.variance for each in members]
    whole = math.fsum(weights)
    mean = math.fsum(weight * each.log_seconds for weight, each in zip(weights, members, strict=True)) / whole
    squares = math.fsum(weight * (each.log_seconds - mean) ** 2 for weight, each in zip(weights, members, strict=True))
    scale = whole - math.fsum(weight**2 for weight in weights) / whole
    between = max(0.0, (squares - (len(members) - 1)) / scale)
    weights = [1 / (each.variance + between) for each in members]
    whole = math.fsum(weights)
    return math.fsum(weight * each.log_seconds for weight, each in zip(weights, members, strict=True)) / whole, between


MOST = 0.8
"""Part of a group's lines that are left as they are. Tried: 0.8 and 0.9 with 32 and 512 workers; the latter did nothing
for 32. Drawing all lines to the median made steps longer by a third where a group has workers of two kinds."""

GREATEST = 0.999
"""Share that no line has: predictors bound it below that."""


class _Known(NamedTuple):
    """A seat's place among all, the own time that was measured at its batch, its line, and which part of what its
    windows vary by lasts for longer than one (0 to 1)."""

    place: int
    seat: Seat
    estimate: Estimate
    line: Line
    lasting: float


def as_alike(seats: Sequence[Seat]) -> list[Seat]:
    """The seats with their predictions, none of which is much flatter than those of most others in its group."""
    groups: dict[str, list[_Known]] = {}
    found = list(seats)
    for place, seat in enumerate(seats):
        prediction = None if seat.held or seat.batch <= 0 else seat.prediction
        if prediction is None or seat.estimate is None:
            continue
        found[place] = seat.with_prediction(prediction)
        if prediction.is_sure:
            lasting = 1 - 1 / inflation_of(seat.memory.step_time.roughness / 100)
            known = _Known(place, seat, seat.estimate, prediction.line, lasting)
            groups.setdefault(seat.group.name, []).append(known)
    for members in groups.values():
        for place, line in _turned(members):
            found[place] = seats[place].with_prediction(Prediction(line, is_sure=True))
    return found


def _turned(members: Sequence[_Known]) -> Iterator[tuple[int, Line]]:
    """The lines of one group that are turned, by place."""
    usual = round(median([each.seat.batch for each in members]))
    near = [each for each in members if each.seat.batch <= LIKE_BATCHES * usual <= LIKE_BATCHES**2 * each.seat.batch]
    shares = [_share(each.line, usual) for each in near]
    most = sorted(shares)[int(MOST * len(shares))] if shares else GREATEST
    for (place, seat, estimate, line, lasting), share in zip(near, shares, strict=True):
        if lasting > 0 and share > most:
            turned = seat.predictor.with_share(share - lasting * (share - most), usual, seat.batch, estimate)
            if turned.seconds_per_sample > line.seconds_per_sample:
                yield place, turned


def _share(line: Line, batch: int) -> float:
    """Which part of the line's time at this batch does not depend on it; 0 where it has no such time."""
    seconds = line.at(batch)
    return 0.0 if seconds <= 0 else min(line.fixed_seconds / seconds, GREATEST)


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


def with_relapse_caution(seats: Sequence[Seat], step: int, interval: int) -> tuple[Sequence[Seat], tuple[str, ...]]:
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


def noise_of(workers: Sequence[RememberedWorker]) -> tuple[list[float], bool]:
    """Each worker's coefficient of variation, rounded to a few classes, and whether workers differ in it for sure."""
    variations, differ = variations_of([together(worker.variation, worker.step_time) for worker in workers])
    return alike(variations), differ


def measured_step(workers: Sequence[RememberedWorker]) -> float:
    """Expected seconds of a step under the active plan, of those workers that were measured under it."""
    variations, _ = noise_of(workers)
    measured = [worker.step_time.estimate for worker in workers]
    return expected_step([0.0 if each is None else each.mean_seconds for each in measured], variations)
