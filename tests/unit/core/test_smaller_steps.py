"""A step of fewer samples, with which an epoch ends, tells the fixed part of a step from a slow worker."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_operator.core.batching.policies import POLICIES, Seat
from heterotrain_operator.core.memory.batching import Batching
from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.core.prediction import PREDICTORS
from heterotrain_operator.core.prediction.batch_cost import BatchCost
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.split.allocation import Line, waterfill
from heterotrain_operator.core.worker_memory import WorkerMemory
from unit.core.traces import World, hetero_world

GROUP = Group("g", 1)
LINES = (Line(0.3, 0.001), Line(1.2, 0.004))
BATCHES = (700, 700)
BEST = waterfill(LINES, sum(BATCHES), [(1, 1400)] * 2)
EMA = PREDICTORS["EMA"]


def seats(*samples: int, batches: tuple[int, ...] = BATCHES, known: BatchCost | None = None) -> list[Seat]:
    """Two workers whose steps have a fixed part, and those of their smaller steps that had so many `samples`."""
    return [
        Seat(
            f"w-{rank}",
            GROUP,
            batch,
            (1, 1400),
            Estimate(line.at(batch), 1e-8, 10),
            memory=WorkerMemory(batch_cost=known or BatchCost()),
            smaller_steps=tuple((each, line.at(each)) for each in samples),
        )
        for rank, (line, batch) in enumerate(zip(LINES, batches, strict=True))
    ]


def moved(seats: list[Seat]) -> tuple[int, ...]:
    job = Job("job", (GROUP,), sum(seat.batch for seat in seats), policy="Optimal")
    proposal = POLICIES["Optimal"].propose(job, seats, Batching())
    assert proposal.batches is not None
    return proposal.batches


def step_seconds(batches: tuple[int, ...]) -> float:
    return max(line.at(batch) for line, batch in zip(LINES, batches, strict=True))


@pytest.mark.parametrize(("samples", "part"), [((50,), 0.15), ((50, 525), 0.15), ((350,), 0.5), ((525,), 0.8)])
def test_first_move_is_nearer_to_the_best_one_where_an_epoch_has_ended_with_a_smaller_step(
    samples: tuple[int, ...], part: float
) -> None:
    """The more it differs from a full one, the better it shows the fixed part."""
    without, with_smaller = (step_seconds(moved(each)) / step_seconds(BEST) - 1 for each in (seats(), seats(*samples)))
    assert without > 0.3
    assert with_smaller < part * without


def test_step_of_nearly_as_many_samples_says_nothing() -> None:
    assert moved(seats(690)) == moved(seats())


def test_a_smaller_step_is_no_reason_for_a_promise() -> None:
    job = Job("job", (GROUP,), 1400, policy="Optimal")
    assert POLICIES["Optimal"].propose(job, seats(50), Batching()).promise is None


def test_what_plans_have_shown_counts_more() -> None:
    line = LINES[0]
    known = EMA.learn(BatchCost(), 700, Estimate(line.at(700), 1e-8, 100))
    [seat, _] = seats(50, batches=(900, 500), known=known)
    misleading = seat._replace(smaller_steps=((50, 0.5),))
    assert misleading.prediction == seat.prediction == EMA.predict(known, 900, seat.estimate)


def test_predictions_keep_to_what_is_measured_at_the_present_batch() -> None:
    for seat in seats(50, 350):
        line = seat.line()
        assert line is not None
        assert seat.estimate is not None
        assert line.at(seat.batch) == pytest.approx(seat.estimate.mean_seconds)


@pytest.mark.parametrize("seconds", [5e-324, 1e-12, 1e9, 2.0**53])
def test_a_time_that_cannot_be_is_passed_over(seconds: float) -> None:
    [seat, _] = seats()
    assert seat._replace(smaller_steps=((50, seconds),)).prediction == seat.prediction


@given(samples=st.integers(1, 10**9), seconds=st.floats(1e-7, 86_400.0), own=st.floats(1e-7, 86_400.0))
def test_whatever_a_worker_tells_a_line_comes_of_it(samples: int, seconds: float, own: float) -> None:
    seat = Seat("w", GROUP, 10**9, (1, 10**9), Estimate(own, 0.0, 10), smaller_steps=((samples, seconds),))
    line = seat.line()
    assert line is not None
    assert 0 <= line.at(1) <= line.at(10**9) * (1 + 1e-9)
    assert line.at(10**9) == pytest.approx(own)


def with_smaller_steps(world: World, version: int, parts: tuple[float, ...]) -> None:
    """Each worker has had a step of a quarter of its batch under a plan, in which it took this part of a step."""
    for pod, part in zip(world.workers.values(), parts, strict=True):
        assert pod.metrics is not None
        seconds = part * pod.metrics.own_seconds / pod.metrics.steps
        shown = ((pod.metrics.batch_size // 4, seconds),)
        pod.metrics = replace(pod.metrics, plan_version=version, smaller_steps=shown)


def test_smaller_steps_of_the_active_plan_count() -> None:
    """The slow worker's time hardly depends on its batch, so to take samples from it helps less than it seems to."""

    def first_move(parts: tuple[float, ...]) -> tuple[int, ...]:
        world = hetero_world()
        world.train(10)
        if parts:
            with_smaller_steps(world, 1, parts)
        plan = world.tick().plan
        assert plan is not None
        return plan.batch_sizes

    plain = first_move(())
    assert first_move((0.25, 0.25, 0.25)) == pytest.approx(plain, abs=1)
    assert first_move((0.25, 0.25, 0.9))[2] < plain[2]
