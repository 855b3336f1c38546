"""Workers that become slow again and again count as slow where to follow them costs more than to leave them be."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_operator.clusters.simulated.events import Interference
from heterotrain_operator.clusters.simulated.laws import Affine
from heterotrain_operator.clusters.simulated.noise import Independent
from heterotrain_operator.clusters.simulated.scenario import Scenario, WorkerModel
from heterotrain_operator.core.batching import rebalance
from heterotrain_operator.core.batching.policy import Seat
from heterotrain_operator.core.batching.relapses import as_wary
from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.core.prediction.relapses import REMEMBERED_INTERVALS, Relapses
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.worker_memory import WorkerMemory
from heterotrain_operator.experiments.simulations import SimulationResult, simulate

INTERVAL = 10
FAST, SLOW = 0.1, 0.2
BATCH = 32
NEVER = Relapses()
AT = 500
"""The committed step of these decisions."""


def turned(times: float, *, at_step: int = AT, seconds: float = SLOW) -> Relapses:
    return Relapses(seconds, BATCH, round(1000 * times), at_step + 1)


def seat(name: str, relapses: Relapses = NEVER, *, seconds: float = FAST, batch: int = BATCH) -> Seat:
    estimate = Estimate(seconds, (0.05 * seconds) ** 2, 10)
    return Seat(name, Group("g", 9), batch, (1, 512), estimate, memory=WorkerMemory(relapses=relapses))


def others(number: int) -> list[Seat]:
    return [seat(f"other-{place}") for place in range(number)]


def wary(seats: Sequence[Seat], step: int = AT) -> tuple[str, ...]:
    return as_wary(seats, step, INTERVAL)[1]


def test_a_turn_counts_once_the_next_window_shows_that_it_lasts() -> None:
    once = NEVER.turned(SLOW, BATCH, 1)
    assert once.rate(AT, INTERVAL) == 0
    assert once.confirmed(lasts=True, step=AT, interval=INTERVAL).recent(AT, INTERVAL) == pytest.approx(1)
    stall = once.confirmed(lasts=False, step=AT, interval=INTERVAL)
    assert stall.rate(AT, INTERVAL) == 0
    assert not stall.together


def test_what_slows_many_at_once_counts_once() -> None:
    group = [NEVER.turned(SLOW, BATCH, 8).confirmed(lasts=True, step=AT, interval=INTERVAL) for _ in range(8)]
    assert math.fsum(each.recent(AT, INTERVAL) for each in group) == pytest.approx(1)


def test_turns_long_past_count_less() -> None:
    later = AT + REMEMBERED_INTERVALS * INTERVAL
    assert turned(3).recent(later, INTERVAL) == pytest.approx(3 / math.e)
    again = turned(3).turned(SLOW, BATCH, 1).confirmed(lasts=True, step=later, interval=INTERVAL)
    assert again.recent(later, INTERVAL) == pytest.approx(1 + 3 / math.e, rel=1e-3)


def test_of_many_workers_those_that_have_recovered_count_as_slow_as_they_were() -> None:
    recovered = [seat(f"back-{place}", turned(1)) for place in range(16)]
    seats, names = as_wary([*others(48), *recovered], AT, INTERVAL)
    assert names == tuple(each.name for each in recovered)
    assert [each.estimate.mean_seconds for each in seats[48:] if each.estimate] == pytest.approx([SLOW] * 16)
    assert seats[:48] == others(48)


def test_of_few_workers_one_that_seldom_turns_is_followed() -> None:
    assert not wary([*others(2), seat("back", turned(2))])


def test_whoever_turns_slow_in_most_intervals_counts_as_slow_among_few_workers_too() -> None:
    assert wary([*others(7), seat("back", turned(25))]) == ("back",)


def test_who_is_slow_now_is_taken_as_measured() -> None:
    assert not wary([*others(48), *(seat(f"slow-{place}", turned(1), seconds=SLOW) for place in range(16))])


def test_a_group_that_turned_together_is_followed() -> None:
    assert not wary([*others(48), *(seat(f"back-{place}", turned(1 / 16)) for place in range(16))])


def test_it_ends_when_nobody_turns_any_more() -> None:
    seats = [*others(48), *(seat(f"back-{place}", turned(1)) for place in range(16))]
    assert wary(seats, AT + 3 * REMEMBERED_INTERVALS * INTERVAL) != wary(seats)
    assert not wary(seats, AT + 10 * REMEMBERED_INTERVALS * INTERVAL)


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
    monkeypatch.setattr(rebalance, "as_wary", lambda seats, step, interval: (seats, ()))
    following = beside_neighbours(64)
    last = left_alone.steps // 2, left_alone.steps
    assert left_alone.ratio_between(*last) < 0.9 * following.ratio_between(*last)
    assert left_alone.plans_per_100_intervals() < 0.7 * following.plans_per_100_intervals()
