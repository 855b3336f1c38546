"""What a worker's own time likely is, from its own measurements and from those of the others in its group.

The workers of a group mostly are machines of one kind. Of many, the one that seems slowest in a few steps mostly had
bad luck, and a batch that follows it alone is corrected by the next plan. So each estimate is drawn towards its group's
mean, the more, the less certain it is beside what the group's workers really differ by, which is estimated as well.
Where they differ much, or somebody is far from all others, nothing is drawn.

Random-effects model: B. Efron, C. Morris, Data Analysis Using Stein's Estimator and its Generalizations, 1975; what
workers differ by is estimated as in R. DerSimonian, N. Laird, Meta-Analysis in Clinical Trials, 1986.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from heterotrain_operator.core.batching.policy import Seat
from heterotrain_operator.core.prediction.noise import DEVIATION_OF_MEDIAN, sure_deviations
from heterotrain_operator.core.prediction.step_time import Estimate

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


def as_likely(seats: Sequence[Seat]) -> list[Seat]:
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
