"""How workers' own times grow with their batches, from their own measurements and from those of the others in their
group.

A line is laid through few batches, one for each plan. Under noise that lasts for longer than a window, what a worker's
speed did between two plans passes for the cost of a batch, and the line's own error does not tell. Of hundreds of
workers the lines of a few then say that more samples cost next to nothing, and these end every step. But the workers of
a group mostly are machines of one kind, or of a few. So the lines that say so more than most of their group's are
turned about what was measured, as far as the worker's noise lasts, until they say it as much as most of the others.

Lines are made steeper alone. Where they are so by mistake, too few samples go to a worker or leave it, and the next
plan goes on from there. One that is too flat gives a worker more than twice too many, and plans diverge. Only lines
through own times that were measured are turned: one of its own leads back from a batch as it led there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

from heterotrain_operator.core.batching.likeness import LIKE_BATCHES
from heterotrain_operator.core.batching.policy import Seat
from heterotrain_operator.core.prediction import Prediction
from heterotrain_operator.core.prediction.roughness import inflation_of
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.split.waterfill import Line

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
