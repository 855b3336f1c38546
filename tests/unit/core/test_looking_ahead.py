"""Predictors that look ahead foresee what use of the CPU explains, are left alone where it does not, and forget nothing
between two decisions.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterotrain_operator.core.batching.looking_ahead import Lesson, foreseen, inherited, studied
from heterotrain_operator.core.batching.policies import Seat
from heterotrain_operator.core.model import Group, WorkerMetrics
from heterotrain_operator.core.prediction import PREDICTORS
from heterotrain_operator.core.prediction.learned import LEARNED, LOOKS_BACK, Learned
from heterotrain_operator.core.prediction.predictor import LooksAhead, Predictor
from heterotrain_operator.core.prediction.resource_use import ResourceUse
from heterotrain_operator.core.prediction.series import UNKNOWN, Series, Window, window_seen
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.remembered_worker import RememberedWorker
from heterotrain_operator.core.state import Remembered
from unit.core.traces import World, hetero_world

GROUP = Group("g", 8)


@pytest.fixture(params=[name for name, each in PREDICTORS.items() if each.ahead is not None])
def predictor(request: pytest.FixtureRequest) -> Predictor:
    return PREDICTORS[request.param]


def ahead_of(predictor: Predictor) -> LooksAhead:
    assert predictor.ahead is not None
    return predictor.ahead


def lesson(series: Series, window: Window) -> Lesson:
    """Of a worker of whom one batch alone is known."""
    return Lesson("g", RememberedWorker(series=series), window, Estimate(window.seconds, 0.0, 10))


def interfered(draw: random.Random, windows: int, *, interference: bool) -> list[Window]:
    """Of a worker whose neighbours come and go, or do not, and take half of its CPU."""
    found, busy = [], False
    for _ in range(windows):
        busy = interference and busy is not (draw.random() < 0.05)
        share = (0.5 if busy else 0.95) + draw.gauss(0, 0.01)
        found.append(Window(0.2 * math.exp(draw.gauss(0, 0.05)) / share, 32, share, 0.5))
    return found


def play(
    predictor: Predictor, traces: Sequence[Sequence[Window]], learned: tuple[Learned, ...] = ()
) -> tuple[Learned, float, float]:
    """What is learned of the traces, after what was `learned`; and over the second half the root of the mean squared
    error of log seconds, with the model and of the average alone.
    """
    series = [Series()] * len(traces)
    errors, plain = [], []
    for number, newest in enumerate(zip(*traces, strict=True)):
        for before, window in zip(series, newest, strict=True):
            if number > len(traces[0]) // 2:
                seconds = fmean(each.seconds for each in before.windows)
                for found, known in ((errors, learned), (plain, ())):
                    (seat,) = foreseen(predictor, [seat_of(before, seconds)], known)
                    assert seat.estimate is not None
                    found.append(math.log(seat.estimate.mean_seconds / window.seconds) ** 2)
        lessons = [lesson(before, window) for before, window in zip(series, newest, strict=True)]
        learned, events = studied(predictor, learned, lessons, number)
        assert not events
        series = [before.followed_by(window, LOOKS_BACK) for before, window in zip(series, newest, strict=True)]
    return learned[0], math.sqrt(fmean(errors)), math.sqrt(fmean(plain))


def seat_of(series: Series, seconds: float) -> Seat:
    return Seat("w", GROUP, 32, (1, 64), Estimate(seconds, 0.0, 10), memory=RememberedWorker(series=series))


@pytest.mark.parametrize(("interference", "most"), [(True, 0.85), (False, 1.05)])
def test_interference_is_foreseen_and_noise_is_left_alone(
    predictor: Predictor, *, interference: bool, most: float
) -> None:
    draw = random.Random(3)
    traces = [interfered(draw, 300, interference=interference) for _ in range(8)]
    learned, error, plain = play(predictor, traces)
    assert learned.samples == len(traces) * (300 - 3)
    assert error <= most * plain


def test_worker_whose_use_of_the_cpu_is_not_known_goes_by_averages(predictor: Predictor) -> None:
    trusted = Learned(
        "g", ahead_of(predictor).least_samples, 0.1, 0.2, tuple(0.1 for _ in ahead_of(predictor).beginning)
    )
    known, unknown = (Series((0.1, 32.0, share, 0.5) * LOOKS_BACK) for share in (0.5, -1.0))
    first, second = foreseen(predictor, [seat_of(known, 0.1), seat_of(unknown, 0.1)], [trusted])
    assert first.estimate != second.estimate == Estimate(0.1, 0.0, 10)
    assert studied(predictor, (), [lesson(unknown, Window(0.1, 32, -1.0, 0.5))], 0) == ((), ())


@pytest.mark.parametrize("cpu_seconds", [None, -1.0, math.nan, 1.2])
def test_use_of_the_cpu_that_cannot_be_is_not_known(cpu_seconds: float | None) -> None:
    metrics = WorkerMetrics(1, steps=10, own_seconds=1.0, observed_seconds=1.0, cpu_seconds=cpu_seconds)
    assert window_seen(ResourceUse(), metrics, Estimate(0.1, 0.0, 10), 32, 1.0) == (0.1, 32, UNKNOWN, UNKNOWN)


def test_later_job_of_the_name_asks_what_was_learned_as_soon_as_it_is_better_than_averages(
    predictor: Predictor,
) -> None:
    draw = random.Random(5)
    traces = [interfered(draw, 300, interference=True) for _ in range(8)]
    learned, _, _ = play(predictor, traces)
    (begun,) = inherited(predictor, [learned, Learned("other", 10_000, 0.1, 0.2, (1.0,))])
    assert not begun.is_trusted(ahead_of(predictor).least_samples), "nothing shows yet that it holds here"
    again, _, _ = play(predictor, [trace[:60] for trace in traces], (begun,))
    assert again.samples < ahead_of(predictor).least_samples + 500
    assert again.is_trusted(ahead_of(predictor).least_samples)
    assert inherited(PREDICTORS["EMA"], [learned]) == ()


def test_what_predicts_worse_than_averages_is_not_trusted_and_learned_again(predictor: Predictor) -> None:
    series, window = Series((0.1, 32.0, 0.5, 0.5) * LOOKS_BACK), Window(0.1, 32, 0.5, 0.5)
    bad = Learned("g", 10_000, 1.0, 0.1, ahead_of(predictor).beginning)
    assert not bad.is_trusted(ahead_of(predictor).least_samples)
    (learned,), (event,) = studied(predictor, [bad], [lesson(series, window)], 0)
    assert learned == Learned("g", numbers=ahead_of(predictor).beginning)
    assert event.reason == "PredictorReset"


ROWS = st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=3), st.lists)


@given(ROWS)
def test_what_is_stored_otherwise_is_learned_again(rows: object) -> None:
    memory = Remembered.initial().to_json()
    text = json.dumps({**json.loads(memory), "learned": rows})
    if "NaN" not in text and "Infinity" not in text:
        assert all(math.isfinite(each.error) for each in Remembered.from_json(text).learned)
    window, short = Window(0.1, 32, 0.5, 0.5), Learned("g", 10_000, 0.1, 0.2, (1.0,))
    for name in ("ARX", "NARX"):
        seat, read = seat_of(Series(window * LOOKS_BACK), 0.1), LEARNED.read(LEARNED.write([short]))
        assert foreseen(PREDICTORS[name], [seat], read) == [seat]
        learned, events = studied(PREDICTORS[name], read, [lesson(seat.memory.series, window)] * 2, 0)
        assert ([each.samples for each in learned], [each.reason for each in events]) == ([2], ["PredictorReset"])


WINDOWS = st.lists(
    st.builds(Window, st.floats(1e-6, 1e6), st.floats(1, 1e6), st.floats(-2, 2), st.floats(-2, 2)), max_size=40
)


@given(WINDOWS)
def test_any_windows_leave_finite_numbers(windows: list[Window]) -> None:
    for name in ("ARX", "NARX"):
        learned: tuple[Learned, ...] = ()
        series = Series()
        for number, window in enumerate(windows):
            learned, _ = studied(PREDICTORS[name], learned, [lesson(series, window)], number)
            series = series.followed_by(window, LOOKS_BACK)
        assert all(math.isfinite(each) for known in learned for each in known.numbers)


@pytest.mark.parametrize(("prediction", "interval"), [("ARX", 10), ("NARX", 10), ("NARX", 1)])
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 1000), noise=st.sampled_from((0.0, 0.03, 0.2)))
def test_memory_written_and_read_between_all_decisions_decides_as_one_that_is_kept(
    prediction: str, interval: int, seed: int, noise: float
) -> None:
    """The models are asked from the beginning, as those of a former job. At an interval of 1 the policy keeps more
    windows than the predictor reads.
    """
    ahead = ahead_of(PREDICTORS[prediction])

    def reasons(*, forgetful: bool) -> list[str]:
        world = hetero_world("LBBSP", noise=noise, seed=seed, prediction=prediction, interval=interval)
        world.forgetful = forgetful
        export_use(world)
        groups = [group.name for group in world.job.groups]
        learned = tuple(Learned(group, ahead.least_samples, 1e-9, 1e-3, ahead.beginning) for group in groups)
        world.memory = replace(world.memory, learned=tuple(each.rounded() for each in learned))
        reasons = [decision.reason for decision in world.run(40)]
        assert all(each.samples > ahead.least_samples for each in world.memory.learned)
        return reasons

    assert reasons(forgetful=True) == reasons(forgetful=False)


def export_use(world: World) -> None:
    for pod in world.workers.values():
        pod.exports_use = True
        pod.cpu_limit = 1.0
