"""What is remembered of replacements under way, and when they are given up whatever the newcomer does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain_operator.core.memory.replacements import (
    MOST_REPLACEMENTS,
    Remedies,
    Removal,
    Replacement,
    from_rows,
    rows_of,
)
from heterotrain_operator.core.state import Memory
from unit.core.replacing import (
    NEWCOMER,
    SLOW,
    created,
    is_warm,
    members,
    prepares,
    reasons,
    slowed,
    until_created,
    world,
)


def test_replacement_outlives_the_operator() -> None:
    made = world()
    made.forgetful = True
    slowed(made)
    until_created(made)
    prepares(made)
    made.run(2)
    made.memory = Memory.from_json(made.memory.to_json())
    decisions = made.run(2)
    is_warm(made)
    decisions += made.run(6)
    assert created(decisions) == []
    assert reasons(decisions) == ["WorkerReplaced"]


def test_memory_that_is_lost_takes_the_newcomer_for_one_too_many() -> None:
    made = world()
    slowed(made)
    until_created(made)
    prepares(made)
    made.memory = Memory.initial()
    made.run(3)
    assert NEWCOMER not in made.workers
    assert SLOW in members(made.plan)


def test_suspended_job_keeps_no_newcomer() -> None:
    made = world()
    slowed(made)
    until_created(made)
    prepares(made)
    made.job = replace(made.job, suspend=True)
    assert NEWCOMER in made.tick().delete
    made.tick()
    assert made.memory.remedies.replacing == ()


def test_job_that_succeeds_gives_the_newcomer_up() -> None:
    made = world()
    slowed(made)
    until_created(made)
    prepares(made)
    for name, pod in made.workers.items():
        if name != NEWCOMER:
            pod.end(0, finished=True)
    decided = made.tick()
    assert decided.phase == "Succeeded"
    assert NEWCOMER in decided.delete
    assert reasons([decided]) == ["ReplacementGivenUp"]
    assert decided.replacing == made.memory.remedies.replacing == ()
    assert reasons([made.tick()]) == []


def test_newcomer_goes_once_the_members_can_no_longer_change_while_they_train() -> None:
    made = world()
    slowed(made)
    until_created(made)
    prepares(made)
    for name, pod in made.workers.items():
        if name != NEWCOMER:
            pod.protocol = 1
    decided = made.run(1)[-1]
    assert decided.phase == "Running"
    assert NEWCOMER in decided.delete
    [event] = [event for event in decided.events if event.reason == "ReplacementGivenUp"]
    assert event.message == "job-a-2 stays: the members can no longer change while they train"
    assert decided.replacing == made.memory.remedies.replacing == ()
    assert reasons(made.run(3)) == []
    assert SLOW in members(made.plan)


def test_newcomer_after_whose_joining_members_can_no_longer_change_has_replaced_the_straggler() -> None:
    made = world()
    slowed(made)
    decisions = until_created(made)
    while NEWCOMER not in members(made.plan):
        decisions += made.run(1)
    for pod in made.workers.values():
        pod.protocol = 1
    decisions += made.run(3)
    assert reasons(decisions) == ["ReplacingStraggler", "WorkerReplaced"]
    assert made.memory.remedies.replacing == ()
    assert NEWCOMER in members(made.plan)


@pytest.mark.parametrize(
    "rows",
    [None, 5, [5], [["a"]], [["a", -1, "b", "x" * 6, "", 0, 0, 0, 0, 0]], [["a", 1, "b", "short", "", 0, 0, 0, 0, 0]]],
)
def test_malformed_replacements_are_none(rows: object) -> None:
    assert from_rows(rows) == ()


def test_replacements_read_back_as_they_were_written_and_no_more_than_are_allowed() -> None:
    each = Replacement("a", 7, "job-a-1", "abcdef", "it is slow", 1, 5.0, 6.0, 0.25, 32.5)
    assert from_rows(rows_of([each])) == (each,)
    assert len(from_rows(rows_of([each] * 40))) == MOST_REPLACEMENTS
    remedies = Remedies(replacing=(each,), removed=(Removal("a", 3, 1),), replacements=2, replaced_at=5.0)
    memory = Memory(remedies=remedies)
    assert Memory.from_json(memory.to_json()) == memory
    assert memory.moved(10).remedies.replacing[0].created_at == 16.0
