"""Exchanges are seldom, and often where somebody waits: in the first steps of a plan, and while members change."""

from __future__ import annotations

import pytest

from heterotrain.state.replica_watch import MOST_STEPS
from heterotrain.training.exchange import FIRST_STEPS, Pace


def due(step_seconds: float, steps: int, *, plan: int = 1, pace: Pace | None = None, begin: int = 0) -> list[int]:
    """The steps from `begin` on that carry an exchange, if the first of them does."""
    pace = pace or Pace()
    found, following = [], begin
    for step in range(begin, begin + steps):
        pace.at(step, plan)
        if step >= following:
            found.append(step)
            following = step + pace.steps(step_seconds, changing=False)
    return found


def test_every_long_step_of_a_new_plan_carries_one_and_later_one_a_second() -> None:
    assert due(0.25, 25) == [*range(FIRST_STEPS + 1), 14, 18, 22]


def test_of_shorter_steps_five_a_second_do_and_never_fewer_than_one_of_so_many() -> None:
    assert due(0.05, 12) == [0, 4, 8]
    assert due(0.001, 40) == [0, MOST_STEPS, 2 * MOST_STEPS]


def test_another_plan_is_new_again_whenever_it_comes() -> None:
    pace = Pace()
    assert due(0.5, 20, pace=pace)[-3:] == [14, 16, 18]
    assert due(0.5, 4, plan=2, pace=pace, begin=20) == [20, 21, 22, 23]
    assert due(0.5, 14, plan=2, pace=pace, begin=24) == [*range(24, 31), 32, 34, 36]


@pytest.mark.parametrize("step_seconds", [0.0, 2.0, 60.0])
def test_every_step_does_if_steps_are_long_or_of_unknown_length(step_seconds: float) -> None:
    assert due(step_seconds, 30) == list(range(30))


def test_while_members_change_it_is_as_if_the_plan_were_new() -> None:
    pace = Pace()
    pace.at(0, 1)
    pace.at(100, 1)
    assert (pace.steps(0.1, changing=False), pace.steps(0.1, changing=True)) == (10, 2)
