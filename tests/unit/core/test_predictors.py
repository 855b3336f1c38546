"""What every predictor must do, and how the cost of a batch is told from speed, also by an epoch's smaller step."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_operator.api.spec.batching import Batching
from heterotrain_operator.core.batching.policies import POLICIES, Seat
from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.core.prediction import PREDICTORS, Predictor
from heterotrain_operator.core.prediction.batch_cost import BatchCost
from heterotrain_operator.core.prediction.predictors.ema import expect, learn, predict
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.remembered.batching import Batching as BatchingMemory
from heterotrain_operator.core.remembered_worker import RememberedWorker
from heterotrain_operator.core.split.allocation import Line, iteration_seconds, waterfill
from unit.core.traces import hetero_world

GROUP = Group("g", 1)


@pytest.fixture(params=PREDICTORS)
def predictor(request: pytest.FixtureRequest) -> Predictor:
    return PREDICTORS[request.param]


def measured(seconds: float) -> Estimate:
    return Estimate(seconds, 1e-8, 100)


def test_prediction_at_the_present_batch_is_what_is_measured_there(predictor: Predictor) -> None:
    known = predictor.learn(predictor.learn(BatchCost(), 64, measured(0.114)), 32, measured(0.082))
    for seconds in (0.098, 0.3):
        prediction = predictor.predict(known, 48, measured(seconds))
        assert prediction.line.at(48) == pytest.approx(seconds)


def test_plan_without_samples_or_measurements_teaches_and_predicts_nothing(predictor: Predictor) -> None:
    known = predictor.learn(BatchCost(), 64, measured(0.1))
    assert predictor.learn(known, 0, measured(1.0)) == known
    assert predictor.learn(known, 64, None) == known
    assert predictor.predict(BatchCost(), 64, None) is None
    assert predictor.predict(BatchCost(), 0, None) is None
    assert predictor.expected(BatchCost(), 64, 10) is None


def test_what_is_learned_is_expected_before_it_is_measured_again_at_any_speed(predictor: Predictor) -> None:
    known = predictor.learn(predictor.learn(BatchCost(), 64, measured(0.128)), 32, measured(0.064))
    for factor in (1.0, 2.0):
        estimate = predictor.expected(known.scaled(factor), 48, 10)
        assert estimate.mean_seconds == pytest.approx(factor * 0.096, rel=0.05)
        assert estimate.steps == 10
        assert estimate.relative_error > 0


def test_manifest_may_name_the_predictors_that_there_are() -> None:
    assert set(get_args(Batching.model_fields["prediction"].annotation)) == PREDICTORS.keys()


def at(fixed: float, per_sample: float, batch: int) -> Estimate:
    return Estimate(fixed + per_sample * batch, 1e-8, 100)


def learned(fixed: float, per_sample: float, *batches: int) -> BatchCost:
    known = BatchCost()
    for batch in batches:
        known = learn(known, batch, at(fixed, per_sample, batch))
    return known


@pytest.mark.parametrize(
    ("batches", "batch", "slower", "fixed"),
    [
        ((), 64, 1.0, 0.0),  # one batch size tells no overhead
        ((64,), 32, 1.0, 0.05),
        ((100,), 102, 1.0, 0.0),  # nor do batches that span less than four per cent
        ((64, 32), 32, 2.0, 0.1),  # the line goes through the newest estimate
        ((64, 32, *[48] * 200), 48, 1.0, 0.05),  # a long stay at one batch does not wash the cost out
    ],
)
def test_two_batch_sizes_tell_overhead_from_time_per_sample(
    batches: tuple[int, ...], batch: int, slower: float, fixed: float
) -> None:
    known, now = learned(0.05, 0.001, *batches), at(0.05, 0.001, batch).scaled(slower)
    prediction = predict(known.scaled(slower), batch, now)
    assert prediction.line.fixed_seconds == pytest.approx(fixed, rel=0.15)
    assert prediction.line.at(batch) == pytest.approx(now.mean_seconds)


@pytest.mark.parametrize("ratio", [1e-12, 1e12])
def test_speed_that_no_step_can_have_makes_the_cost_be_learned_again(ratio: float) -> None:
    """As of a worker that reports steps of a day and of a millisecond in turn, under each plan again."""
    known = learned(0.01, 0.001, 32, 64)
    for _ in range(30):
        known = known.scaled(ratio).rounded(BatchCost())
        known = learn(known, 64, at(0.01, 0.001, 64))
        assert expect(known, 64, at(0.01, 0.001, 64), 32) is not None
        rounded = known.rounded(BatchCost())
        assert RememberedWorker.from_row(RememberedWorker(batch_cost=rounded).row()).batch_cost == rounded


LINES = (Line(0.3, 0.001), Line(1.2, 0.004))
BATCHES = (700, 700)
BEST = waterfill(LINES, sum(BATCHES), [(1, 1400)] * 2)


def seats(*samples: int, batches: tuple[int, ...] = BATCHES, known: BatchCost | None = None) -> list[Seat]:
    """Two workers whose steps have a fixed part, and those of their smaller steps that had so many `samples`."""
    return [
        Seat(
            f"w-{rank}",
            GROUP,
            batch,
            (1, 1400),
            Estimate(line.at(batch), 1e-8, 10),
            memory=RememberedWorker(batch_cost=known or BatchCost()),
            smaller_steps=tuple((each, line.at(each)) for each in samples),
        )
        for rank, (line, batch) in enumerate(zip(LINES, batches, strict=True))
    ]


def moved(seats: list[Seat]) -> tuple[int, ...]:
    job = Job("job", (GROUP,), sum(seat.batch for seat in seats), policy="Optimal")
    proposal = POLICIES["Optimal"].propose(job, seats, BatchingMemory())
    assert proposal.batches is not None
    assert proposal.promise is None, "one batch size and smaller steps are no reason for one"
    return proposal.batches


@pytest.mark.parametrize(("samples", "part"), [((50, 525), 0.15), ((350,), 0.5), ((525,), 0.8), ((690,), 1.01)])
def test_first_move_is_nearer_to_the_best_one_where_an_epoch_has_ended_with_a_smaller_step(
    samples: tuple[int, ...], part: float
) -> None:
    """The more it differs from a full one, the better it shows the fixed part; one of nearly as many says nothing."""
    best, without, with_smaller = (
        iteration_seconds(LINES, each) for each in (BEST, moved(seats()), moved(seats(*samples)))
    )
    assert without / best > 1.3
    assert with_smaller / best - 1 < part * (without / best - 1)


@given(samples=st.integers(1, 10**9), seconds=st.floats(1e-7, 86_400.0), own=st.floats(1e-7, 86_400.0))
def test_whatever_a_worker_tells_a_line_comes_of_it(samples: int, seconds: float, own: float) -> None:
    seat = Seat("w", GROUP, 10**9, (1, 10**9), Estimate(own, 0.0, 10), smaller_steps=((samples, seconds),))
    line = seat.line()
    assert 0 <= line.at(1) <= line.at(10**9) * (1 + 1e-9)
    assert line.at(10**9) == pytest.approx(own)


def test_smaller_steps_of_the_active_plan_count() -> None:
    """The slow worker's time hardly depends on its batch, so to take samples from it helps less than it seems to."""

    def first_move(*parts: float) -> tuple[int, ...]:
        world = hetero_world()
        world.train(10)
        for pod, part in zip(world.workers.values(), parts, strict=True):
            seconds = part * pod.metrics.own_seconds / pod.metrics.steps
            shown = ((pod.metrics.batch_size // 4, seconds),)
            pod.metrics = replace(pod.metrics, plan_version=1, smaller_steps=shown)
        plan = world.tick().plan
        return plan.batch_sizes

    assert first_move(0.25, 0.25, 0.9)[2] < first_move(0.25, 0.25, 0.25)[2]
