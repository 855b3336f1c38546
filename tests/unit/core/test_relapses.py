"""Workers that become slow again and again count as slow where to follow them costs more than to leave them be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain.foreign import MAX_WHOLE
from heterotrain_operator.core.batching.likeness import as_wary
from heterotrain_operator.core.batching.policy import Seat
from heterotrain_operator.core.batching.words import slowest
from heterotrain_operator.core.model import Group
from heterotrain_operator.core.outlook import outlook
from heterotrain_operator.core.prediction.batch_cost import BatchCost
from heterotrain_operator.core.prediction.predictors.ema import PREDICTOR
from heterotrain_operator.core.prediction.relapses import REMEMBERED_INTERVALS, Relapses
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.worker_memory import WorkerMemory
from unit.core.traces import hetero_world

INTERVAL = 10

FAST, SLOW = 0.1, 0.2

BATCH = 32

NEVER = Relapses()

AT = 500
"""The committed step of these decisions."""

LINE = BatchCost(speed=1.0)

for _batch in (32, 48):
    LINE = PREDICTOR.learn(LINE, _batch, Estimate(0.02 + 0.002 * _batch, 1e-8, 100))


def turned(times: float, *, at_step: int = AT, seconds: float = SLOW) -> Relapses:
    return Relapses(seconds, BATCH, round(1000 * times), at_step + 1)


def after_turn(before: Relapses, seconds: float, *, together: int = 1, known: float = 0.0, step: int = AT) -> Relapses:
    """Of a worker that turned slow and stayed so."""
    slow = Estimate(seconds, (0.05 * seconds) ** 2, 10)
    return before._replace(together=together).lasted(slow, BATCH, known, step=step, interval=INTERVAL)


def seat(
    name: str, relapses: Relapses = NEVER, *, seconds: float = FAST, batch: int = BATCH, greatest: int = 512
) -> Seat:
    estimate = Estimate(seconds, (0.05 * seconds) ** 2, 10)
    return Seat(name, Group("g", 9), batch, (1, greatest), estimate, memory=WorkerMemory(relapses=relapses))


def others(number: int) -> list[Seat]:
    return [seat(f"other-{place}") for place in range(number)]


def recovered(number: int, relapses: Relapses, **how: Any) -> list[Seat]:
    return [seat(f"back-{place}", relapses, **how) for place in range(number)]


def wary(seats: Sequence[Seat], step: int = AT) -> tuple[str, ...]:
    return as_wary(seats, step, INTERVAL)[1]


def test_a_turn_that_lasts_counts_and_says_how_slow_the_worker_was() -> None:
    once = after_turn(NEVER, SLOW)
    assert once.recent(AT, INTERVAL) == pytest.approx(1)
    assert (once.slow_seconds, once.slow_batch, once.together) == (SLOW, BATCH, 0)
    assert after_turn(turned(2), FAST, known=SLOW) == turned(2), "its steps only seemed short"
    group = [after_turn(NEVER, SLOW, together=8) for _ in range(8)]
    assert math.fsum(each.recent(AT, INTERVAL) for each in group) == pytest.approx(1), "what slows many counts once"
    known = after_turn(Relapses(SLOW, BATCH, MAX_WHOLE, MAX_WHOLE), SLOW, step=MAX_WHOLE)
    worker = WorkerMemory(relapses=known)
    assert WorkerMemory.from_row(worker.row()) == worker


def test_turns_long_past_count_less() -> None:
    later = AT + REMEMBERED_INTERVALS * INTERVAL
    assert turned(3).recent(later, INTERVAL) == pytest.approx(3 / math.e)
    assert after_turn(turned(3), SLOW, step=later).recent(later, INTERVAL) == pytest.approx(1 + 3 / math.e, rel=1e-3)


@pytest.mark.parametrize(("slow_batch", "batch"), [(12, 48), (48, 12), (16, 32), (32, 16)])
def test_the_slow_time_at_another_batch_follows_the_line_of_the_worker(slow_batch: int, batch: int) -> None:
    slow = Relapses(2 * (0.02 + 0.002 * slow_batch), slow_batch)
    now = Estimate(0.02 + 0.002 * batch, 1e-8, 100)
    assert slow.slow_at(PREDICTOR, LINE, batch, now) == pytest.approx(2 * now.mean_seconds, rel=0.05)


def test_of_many_workers_those_that_have_recovered_count_as_slow_as_they_were() -> None:
    back = recovered(16, turned(1))
    seats, names = as_wary([*others(48), *back], AT, INTERVAL)
    assert names == tuple(each.name for each in back)
    assert [each.estimate.mean_seconds for each in seats[48:] if each.estimate] == pytest.approx([SLOW] * 16)
    assert seats[:48] == others(48)
    assert slowest(seats).startswith("back-0 takes, when it is slow, 200 ms")


@pytest.mark.parametrize(
    ("fast", "back", "counted"),
    [
        (48, recovered(16, turned(1)), 16),
        (2, recovered(1, turned(4)), 0),  # of few workers one that seldom turns is followed
        (7, recovered(1, turned(25)), 1),  # and one that turns in most intervals is not
        (31, recovered(1, turned(1, seconds=10 * FAST)), 0),  # a single turn may be the last
        (48, recovered(16, turned(1), seconds=SLOW), 0),  # who is slow now is taken as measured
        (48, recovered(16, turned(4, seconds=0.75 * FAST), seconds=FAST / 2, greatest=BATCH), 0),  # delays nobody
        (48, recovered(16, turned(4, seconds=0.75 * FAST), seconds=FAST / 2), 16),
        (48, recovered(16, turned(1 / 16)), 0),  # a group that turned together
    ],
)
def test_those_count_as_slow_whose_turns_cost_more_than_to_leave_them_be(
    fast: int, back: list[Seat], counted: int
) -> None:
    assert len(wary([*others(fast), *back])) == counted
    assert not wary([*others(fast), *back], AT + 10 * REMEMBERED_INTERVALS * INTERVAL), "nobody turns any more"


NUMBERS = st.integers(0, 2**53)


@given(
    st.lists(
        st.tuples(
            st.builds(Relapses, st.floats(0, 1e15), NUMBERS, NUMBERS, NUMBERS, NUMBERS),
            st.floats(1e-6, 1e4),
            st.integers(0, 4096),
        ),
        max_size=6,
    ),
    NUMBERS,
)
def test_whatever_is_remembered_estimates_stay_finite_and_grow_only(
    workers: list[tuple[Relapses, float, int]], step: int
) -> None:
    before = [seat(str(place), known, seconds=s, batch=b) for place, (known, s, b) in enumerate(workers)]
    after, names = as_wary(before, step, INTERVAL)
    for was, now in zip(before, after, strict=True):
        assert was.estimate is not None and now.estimate is not None
        assert was.estimate.mean_seconds <= now.estimate.mean_seconds < math.inf
        assert (now.estimate != was.estimate) == (now.name in names)


def test_what_is_explained_is_what_is_decided() -> None:
    """Of 24 equal workers eight have turned slow often."""
    world = hetero_world(scales=[1.0] * 24)
    world.run(4)
    assert world.plan is not None
    workers = [
        known._replace(relapses=Relapses(2 * known.step_time.mean_seconds, member.batch_size, 2000, 1))
        if rank < 8
        else known
        for rank, (known, member) in enumerate(zip(world.memory.workers, world.plan.members, strict=True))
    ]
    world.memory = replace(world.memory, workers=tuple(workers))
    ahead = outlook(world.job, world.plan, world.memory, {}, world.now)
    world.train(world.job.interval)
    decision = world.tick()
    assert decision.plan is not None
    explained, decided = (each.split("; ")[-1] for each in (ahead.proposal.reason, decision.reason))
    assert explained == decided
    assert decided.endswith("counted as slow as they often become")
    assert max(decision.plan.batch_sizes[:8]) < 0.7 * min(decision.plan.batch_sizes[8:])
