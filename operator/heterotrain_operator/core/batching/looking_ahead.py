"""By what the next window's own times will likely differ from the averages of the past: asked for the workers of a job
whose predictor looks ahead, and taught by each window that ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from heterotrain_operator.core.batching.policy import Seat
from heterotrain_operator.core.model import Event
from heterotrain_operator.core.prediction.learned import GREATEST_FACTOR, Learned, Sample, log_speed, sample_of
from heterotrain_operator.core.prediction.predictor import LooksAhead, Prediction, Predictor
from heterotrain_operator.core.prediction.series import Window
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.remembered_worker import RememberedWorker
from heterotrain_operator.core.split.allocation import Line

AVERAGED = 50
"""Windows over which errors are averaged."""

WORSE = 1.5
"""Times the average's mean squared error at which a model begins again."""

MOST_STUDIED = 8
"""Windows that teach at one decision: of many workers a part, so that a decision costs no more."""


class Lesson(NamedTuple):
    """A window that a worker of a group has ended, what was remembered of it till then, and its own time with that."""

    group: str
    worker: RememberedWorker
    window: Window
    estimate: Estimate


LEAST_FORESEEN = 0.005
"""Relative change of own time below which there is nothing to foresee: far less than any window's noise."""


def foreseen(predictor: Predictor, seats: Sequence[Seat], learned: Iterable[Learned]) -> Sequence[Seat]:
    """The seats with the own times that their next windows are expected to show, where a model is to be trusted."""
    ahead = predictor.ahead
    if ahead is None:
        return seats
    trusted = {each.group: each for each in learned if each.is_trusted(ahead.least_samples)}
    return [_foreseen(ahead, seat, trusted.get(seat.group.name)) for seat in seats] if trusted else seats


def _foreseen(ahead: LooksAhead, seat: Seat, known: Learned | None) -> Seat:
    if known is None or seat.estimate is None or len(known.numbers) != len(ahead.beginning):
        return seat
    windows = seat.memory.series.windows
    # Differences from the average of one batch's windows are the same with any line.
    moved = any(each.batch != seat.batch for each in windows)
    sample = sample_of(windows, sure_line(seat.prediction) if moved else None)
    factor = 1.0 if sample is None else math.exp(-ahead.expected(known.numbers, sample))
    if abs(factor - 1) < LEAST_FORESEEN:
        return seat
    return seat.with_estimate(seat.estimate.scaled(min(max(factor, 1 / GREATEST_FACTOR), GREATEST_FACTOR)))


def sure_line(prediction: Prediction | None) -> Line | None:
    """Own time by batch as far as that is sure."""
    return prediction.line if prediction is not None and prediction.is_sure else None


def studied(
    predictor: Predictor, learned: Iterable[Learned], lessons: Sequence[Lesson], turn: int
) -> tuple[tuple[Learned, ...], tuple[Event, ...]]:
    """What is known of each group once these windows have ended, and which models begin again. Of many workers others
    teach at each `turn`, by which the lessons are rotated.
    """
    ahead = predictor.ahead
    if ahead is None:
        return tuple(learned), ()
    known = {each.group: each for each in learned}
    events: list[Event] = []
    start = turn * MOST_STUDIED % max(len(lessons), 1)
    for group, worker, window, estimate in (*lessons[start:], *lessons[:start])[:MOST_STUDIED]:
        windows = worker.series.windows
        if not windows:
            continue
        line = sure_line(predictor.predict(worker.batch_cost, round(window.batch), estimate))
        if line is None and windows[-1].batch != window.batch:
            continue
        sample = sample_of(windows, line)
        if sample is None:
            continue
        before = known.get(group)
        if before is None or len(before.numbers) != len(ahead.beginning):
            if before is not None:
                message = f"what is stored of group {group} is malformed or another predictor's, and is learned again"
                events.append(Event("Normal", "PredictorReset", message))
            before = Learned(group, numbers=ahead.beginning)
        after = _after(ahead, before, sample, log_speed(window, line) - sample.average)
        if after.samples >= ahead.least_samples + AVERAGED and after.error > WORSE * after.average_error:
            after = Learned(group, numbers=ahead.beginning)
            message = f"what was learned of group {group} predicted worse than averages do, and is learned again"
            events.append(Event("Normal", "PredictorReset", message))
        known[group] = after
    return tuple(known.values()), tuple(events)


def inherited(predictor: Predictor, learned: Iterable[Learned]) -> tuple[Learned, ...]:
    """What a job begins with of what a former one of its name has learned: it is asked as soon as it is better than
    averages here.
    """
    ahead = predictor.ahead
    if ahead is None:
        return ()
    return tuple(
        replace(each, samples=min(each.samples, ahead.least_samples), error=0.0, average_error=0.0)
        for each in learned
        if len(each.numbers) == len(ahead.beginning)
    )


def _after(ahead: LooksAhead, known: Learned, sample: Sample, difference: float) -> Learned:
    weight = 1 / min(known.samples + 1, AVERAGED)
    missed = difference - ahead.expected(known.numbers, sample)
    numbers = ahead.taught(known.numbers, sample, difference)
    if not all(map(math.isfinite, numbers)):
        numbers = ahead.beginning
    return replace(
        known,
        samples=known.samples + 1,
        error=known.error + weight * (missed**2 - known.error),
        average_error=known.average_error + weight * (difference**2 - known.average_error),
        numbers=numbers,
    )
