"""The change of members under way, as one worker goes through it: what it says, and what is given up."""

from __future__ import annotations

from typing import cast

import pytest

from heterotrain.contract import Member, Plan
from heterotrain.groups.control import Signals
from heterotrain.groups.convening.roster import Number
from heterotrain.groups.succession import Succession
from heterotrain.training.transition import Transition

PLAN = Plan(2, 2, "step", (Member("a", "u0", "127.0.0.1:1", "cpu", 8),), continues=1)


def transition() -> tuple[Transition, list[str]]:
    """Of a worker that leaves, so that it has no groups to make; and what became of each try."""
    made, said = Transition(), list[str]()

    def begin(succession: Succession, attempt: int) -> None:
        succession.begin(Number(2, attempt))
        said.append(f"begins {succession.number}")

    made.prepare = lambda plan: Succession(plan, None, None)
    made.begin = begin
    made.abandon = lambda succession: said.append(f"abandons {succession.number}")
    made.follow(PLAN)
    return made, said


def test_groups_that_are_made_again_are_abandoned_first() -> None:
    """A number that is never abandoned counts in majorities for good, with joiners that may be gone."""
    made, said = transition()
    assert made.next_attempt() == 1
    made.receive(Signals(attempt=1), 2)
    made.receive(Signals(attempt=1, prepared=2, switch=1), 2)
    assert made.due
    made.postpone("a joiner does not answer")
    assert not made.due
    made.receive(Signals(attempt=2), 2)
    assert said == ["begins 2.1", "abandons 2.1", "abandons 2.1", "begins 2.2"]


def test_a_plan_that_another_replaces_is_abandoned_by_all() -> None:
    made, said = transition()
    made.receive(Signals(attempt=1), 2)
    made.follow(Plan(3, 3, "step", PLAN.members, continues=1))
    assert said == ["begins 2.1", "abandons 2.1"]
    assert cast("Succession", made.succession).plan.generation == 3
    assert made.next_attempt() == 2, "numbers of one attempt are never used twice"


def test_a_plan_that_one_member_cannot_follow_is_refused_by_the_leader() -> None:
    made, _ = transition()
    made.receive(Signals(attempt=1), 2)
    made.receive(Signals(attempt=1, refuses=1), 2)
    assert made.refused == "another member cannot follow it"


def test_after_the_members_have_met_again_nothing_is_abandoned() -> None:
    """Some may have gone over before the groups broke."""
    made, said = transition()
    made.receive(Signals(attempt=1), 2)
    made.restart()
    assert said == ["begins 2.1"]


def test_a_try_is_never_counted_as_another_one_was_after_the_members_have_met_again() -> None:
    """Who only joins learns of nothing that was abandoned, and may hold what an earlier try of that number was."""
    made, said = transition()
    made.receive(Signals(attempt=1), 2)
    made.restart()
    made.follow(PLAN)
    assert made.next_attempt() == 2
    made.receive(Signals(attempt=1), 2)
    assert said[-1] == "begins 2.1", "the leader, which may have seen fewer, says which it is"
    made.restart()
    made.follow(PLAN)
    assert made.next_attempt() == 2


def test_a_leader_counts_on_from_the_highest_try_that_it_has_seen() -> None:
    made, _ = transition()
    made.receive(Signals(attempt=5), 2)
    made.restart()
    made.follow(PLAN)
    made.receive(Signals(attempt=2), 2)
    made.restart()
    made.follow(PLAN)
    assert made.next_attempt() == 6


def test_the_first_tries_of_a_plan_follow_one_another_soon_however_many_others_there_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr("heterotrain.training.transition.time.monotonic", lambda: clock[0])
    made, _ = transition()
    made.receive(Signals(attempt=9), 2)
    made.receive(Signals(attempt=9, failed=1), 2)
    clock[0] = 0.25
    assert made.next_attempt() == 10
    made.receive(Signals(attempt=10), 2)
    made.receive(Signals(attempt=10, failed=1), 2)
    clock[0] = 0.5
    assert made.next_attempt() == 10, "the second one is waited for longer"
    clock[0] = 0.75
    assert made.next_attempt() == 11
