"""The change of members under way, as one worker goes through it: what it says, what is given up, and how often they
exchange what they know."""

from __future__ import annotations

from typing import Any, cast
from unittest.mock import MagicMock

import pytest
import torch
from torch import nn

from heterotrain.contract import Member, Plan
from heterotrain.data.sampler import Position
from heterotrain.groups.control import Signals
from heterotrain.groups.convening.roster import Number
from heterotrain.groups.succession import Succession
from heterotrain.state.buffers import SharedBuffers
from heterotrain.state.replica_watch import MOST_STEPS
from heterotrain.training import agreeing
from heterotrain.training.agreeing import Agreement
from heterotrain.training.exchange import FIRST_STEPS, Pace
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


def agreement_of(model: nn.Module, buffers: SharedBuffers, **exchange: Any) -> Agreement:
    """That of one worker which has trained with others."""
    return Agreement(
        subject=MagicMock(module=model, tensors=lambda: [*model.parameters(), *model.buffers()]),
        state=MagicMock(position=Position(step=5)),
        plans=MagicMock(rank=0),
        losses=MagicMock(),
        exchange=MagicMock(**exchange),
        evaluation=MagicMock(),
        buffers=buffers,
    )


def test_whoever_knows_that_the_script_ended_the_job_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that ended it may be lost, and others may not have read what it said."""
    monkeypatch.setattr(agreeing, "sum_over_ranks", lambda reported, generation: None)  # it is the only one
    model = nn.Linear(1, 1)
    agreement = agreement_of(model, SharedBuffers(model), done=False, done_agreed=True)
    _, _, ended, _ = agreement._report(MagicMock(world_size=1, rank=0), is_new=False)
    assert ended.tolist() == [1]


def test_statistics_of_those_who_trained_stay_theirs_where_one_that_has_the_state_meets_them_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a failure they were not merged: those of one worker for all would count as what the others have seen."""
    model = nn.BatchNorm1d(2)
    buffers = SharedBuffers(model)
    buffers.saw(7)
    agreement = agreement_of(model, buffers)
    model.running_mean = torch.full((2,), 3.0)
    steps, new, nobody = torch.tensor([5, 5]), torch.tensor([0, 1]), torch.tensor([0, 0])
    monkeypatch.setattr(agreement, "_report", lambda generation, is_new: torch.stack([steps, new, nobody, nobody]))
    monkeypatch.setattr(agreeing, "broadcast_document", lambda document, source, generation: b"")
    monkeypatch.setattr(agreeing, "parse_facts", lambda document: MagicMock())

    def take(tensors: list[torch.Tensor], source: int, generation: object) -> None:
        with torch.no_grad():
            for each in tensors:
                each.zero_()

    monkeypatch.setattr(agreeing, "broadcast_tensors", take)
    monkeypatch.setattr(agreement, "_facts", lambda again: b"")
    agreement.reach(MagicMock(world_size=2, rank=0), MagicMock(has_met=True), again=True)
    assert model.weight.tolist() == [0.0, 0.0], "parameters are taken over"
    assert model.running_mean is not None
    assert model.running_mean.tolist() == [3.0, 3.0]


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
