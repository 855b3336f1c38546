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
from heterotrain_operator.clusters.simulated.events import Interference
from heterotrain_operator.clusters.simulated.laws import Affine
from heterotrain_operator.clusters.simulated.noise import Independent
from heterotrain_operator.clusters.simulated.scenario import Scenario, WorkerModel
from heterotrain_operator.core.batching import asking
from heterotrain_operator.core.batching.policy import Seat
from heterotrain_operator.core.batching.relapses import as_wary
from heterotrain_operator.core.batching.words import slowest
from heterotrain_operator.core.lifecycle.prior import Prior, inherited, place_of
from heterotrain_operator.core.model import Group, Job, WorkerSeen
from heterotrain_operator.core.outlook import outlook
from heterotrain_operator.core.prediction.batch_cost import BatchCost
from heterotrain_operator.core.prediction.predictors.ema import PREDICTOR
from heterotrain_operator.core.prediction.relapses import REMEMBERED_INTERVALS, Relapses
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.worker_memory import WorkerMemory
from heterotrain_operator.experiments.simulations import SimulationResult, simulate
from unit.core.jobs import elastic_world, resize
from unit.core.traces import World, hetero_world

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


def test_steps_that_only_seemed_short_are_no_turn() -> None:
    assert after_turn(turned(2), FAST, known=SLOW) == turned(2)


def test_what_slows_many_at_once_counts_once() -> None:
    group = [after_turn(NEVER, SLOW, together=8) for _ in range(8)]
    assert math.fsum(each.recent(AT, INTERVAL) for each in group) == pytest.approx(1)


def test_turns_long_past_count_less() -> None:
    later = AT + REMEMBERED_INTERVALS * INTERVAL
    assert turned(3).recent(later, INTERVAL) == pytest.approx(3 / math.e)
    assert after_turn(turned(3), SLOW, step=later).recent(later, INTERVAL) == pytest.approx(1 + 3 / math.e, rel=1e-3)


def test_the_greatest_numbers_that_a_row_can_hold_still_count_and_are_read_again() -> None:
    known = after_turn(Relapses(SLOW, BATCH, MAX_WHOLE, MAX_WHOLE), SLOW, step=MAX_WHOLE)
    worker = WorkerMemory(relapses=known)
    assert WorkerMemory.from_row(worker.row()) == worker


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


def test_of_few_workers_one_that_seldom_turns_is_followed() -> None:
    assert not wary([*others(2), seat("back", turned(4))])


def test_whoever_turns_slow_in_most_intervals_counts_as_slow_among_few_workers_too() -> None:
    assert wary([*others(7), seat("back", turned(25))]) == ("back",)


def test_a_single_turn_however_slow_may_be_the_last() -> None:
    assert not wary([*others(31), seat("back", turned(1, seconds=10 * FAST))])


def test_who_is_slow_now_is_taken_as_measured() -> None:
    assert not wary([*others(48), *recovered(16, turned(1), seconds=SLOW)])


def test_who_delays_nobody_even_when_slow_keeps_its_batch() -> None:
    at_bound = recovered(16, turned(4, seconds=0.75 * FAST), seconds=FAST / 2, greatest=BATCH)
    assert not wary([*others(48), *at_bound])
    assert len(wary([*others(48), *(each._replace(bounds=(1, 512)) for each in at_bound)])) == 16


def test_a_group_that_turned_together_is_followed() -> None:
    assert not wary([*others(48), *recovered(16, turned(1 / 16))])


def test_it_ends_when_nobody_turns_any_more() -> None:
    seats = [*others(48), *recovered(16, turned(1))]
    assert wary(seats)
    assert not wary(seats, AT + 3 * REMEMBERED_INTERVALS * INTERVAL)


def test_at_another_place_a_worker_has_other_neighbours() -> None:
    here = WorkerSeen("w", "uid-1", "g", 0, "Running", node="noisy")
    known = WorkerMemory(relapses=turned(3), place=place_of(here))
    prior = Prior(None, {"w": known})
    assert inherited(replace(here, uid="uid-2"), prior).relapses == turned(3)
    assert inherited(replace(here, uid="uid-2", node="quiet"), prior).relapses == NEVER


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
    assert len(after) == len(before)
    for was, now in zip(before, after, strict=True):
        assert was.estimate is not None
        assert now.estimate is not None
        assert was.estimate.mean_seconds <= now.estimate.mean_seconds < math.inf
        assert (now.estimate != was.estimate) == (now.name in names)


def beside_neighbours(workers: int) -> SimulationResult:
    """A quarter of the workers is slowed 2x for half of every 300 steps, each at times of its own."""
    quarter = workers // 4
    job = Job("job", (Group("a", quarter), Group("b", workers - quarter)), 32 * workers)
    models = {name: WorkerModel(Affine(0.02, 0.002), 1.0, Independent(0.05)) for name in "ab"}
    neighbours = Interference(("a",), 2.0, 300, followed=True, begin=50, scattered=True)
    return simulate(Scenario(job, models, events=(neighbours,), seed=3, intervals=100), own_seconds=False)


def test_beside_neighbours_that_come_and_go_many_workers_train_faster_than_by_following(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left_alone = beside_neighbours(64)
    monkeypatch.setattr(asking, "as_wary", lambda seats, step, interval: (seats, ()))
    following = beside_neighbours(64)
    last = left_alone.steps // 2, left_alone.steps
    assert left_alone.ratio_between(*last) < 0.9 * following.ratio_between(*last)
    assert left_alone.plans_per_100_intervals() < 0.7 * following.plans_per_100_intervals()


def wary_world(*, elastic: bool = False) -> World:
    """Of 24 equal workers eight have turned slow often."""
    world = elastic_world(24) if elastic else hetero_world(scales=[1.0] * 24)
    world.run(4)
    assert world.plan is not None
    workers = [
        known._replace(relapses=Relapses(2 * known.step_time.mean_seconds, member.batch_size, 2000, 1))
        if rank < 8
        else known
        for rank, (known, member) in enumerate(zip(world.memory.workers, world.plan.members, strict=True))
    ]
    world.memory = replace(world.memory, workers=tuple(workers))
    return world


def test_what_is_explained_is_what_is_decided() -> None:
    world = wary_world()
    assert world.plan is not None
    ahead = outlook(world.job, world.plan, world.memory, {}, world.now)
    world.train(world.job.interval)
    decision = world.tick()
    assert decision.plan is not None
    explained, decided = (each.split("; ")[-1] for each in (ahead.proposal.reason, decision.reason))
    assert explained == decided
    assert decided.endswith("counted as slow as they often become")
    assert max(decision.plan.batch_sizes[:8]) < 0.7 * min(decision.plan.batch_sizes[8:])


def test_batches_that_a_new_limit_moves_still_count_them_as_slow() -> None:
    world = wary_world()
    world.train(world.job.interval)
    first = world.tick().plan
    assert first is not None
    world.run(2)
    names = [member.name for member in first.members]
    for name in names:
        world.workers[name].cpu_limit = 1.0
    world.run(2)
    world.workers[names[-1]].cpu_limit = 0.5
    moved = world.tick()
    assert moved.plan is not None
    assert "CPU limits" in moved.reason
    slow, fast = moved.plan.batch_sizes[:8], moved.plan.batch_sizes[8:-1]
    assert max(slow) < 0.7 * min(fast)


def test_batches_of_changed_members_still_count_them_as_slow() -> None:
    world = wary_world(elastic=True)
    world.run(2)
    assert world.plan is not None
    assert max(world.plan.batch_sizes[:8]) < 0.7 * min(world.plan.batch_sizes[8:])
    resize(world, 25)
    for _ in range(30):
        world.train(2)
        world.tick(1)
        if len(world.plan.members) == 25:
            break
    assert len(world.plan.members) == 25
    assert max(world.plan.batch_sizes[:8]) < 0.7 * min(world.plan.batch_sizes[8:])
