"""What is reported of workers that join and leave while others train: each once, why, and at which step."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from heterotrain_operator.core.facts import NAMED
from heterotrain_operator.core.memory.members import MOST_PASSAGES, PASSAGES, Passage, Passages, Transitions
from heterotrain_operator.core.model import Decision
from heterotrain_operator.core.state import Memory
from unit.core.members import A, B, C, D, elastic_world, nobody_reaches, resize, settled
from unit.core.replacing import NEWCOMER, SLOW, fails, slowed, swapping
from unit.core.replacing import world as straggler_world


def told(decisions: Sequence[Decision], *reasons: str) -> list[str]:
    """The messages of events of these reasons, by default of who joined and left."""
    wanted = reasons or ("WorkerJoined", "WorkerLeft")
    return [event.message for each in decisions for event in each.events if event.reason in wanted]


@pytest.mark.parametrize("forgetful", [False, True])
def test_worker_that_joins_and_one_that_leaves_are_each_told_of_once(forgetful: bool) -> None:
    world = elastic_world()
    world.forgetful = forgetful
    first = len(world.decisions)
    resize(world, 4)
    settled(world)
    [joined] = told(world.decisions[first:])
    assert joined.startswith(f"{D} trains since step ")
    assert joined.endswith("more workers are wanted")
    [arrival] = world.memory.passages.arrivals
    assert (arrival.name, arrival.other) == (D, "")
    assert 0 < arrival.step <= world.cluster.training.step
    first = len(world.decisions)
    resize(world, 3)
    settled(world)
    [left] = told(world.decisions[first:])
    assert left.startswith(f"{D} left at step ")
    assert left.endswith("fewer workers are wanted")
    assert [each.name for each in world.memory.passages.departures] == [D]


def test_worker_that_dies_says_how_and_who_has_come_in_its_place() -> None:
    world = elastic_world()
    first = len(world.decisions)
    world.workers[B].end(137)
    settled(world)
    left, joined = told(world.decisions[first:])
    assert f"{B} was killed by SIGKILL" in left
    assert f"in place of {B}: {B} was killed by SIGKILL" in joined
    [departure], [arrival] = world.memory.passages.departures, world.memory.passages.arrivals
    assert (departure.name, departure.other, arrival.other) == (B, D, B)
    assert departure.step <= arrival.step


def test_worker_that_vanishes_and_one_that_leaves_in_order_say_so() -> None:
    world = elastic_world()
    first = len(world.decisions)
    del world.workers[B]
    world.tick()
    world.workers[C].end_in_order(world.cluster.training.step)
    world.tick()
    gone, left = told(world.decisions[first:], "WorkerLeft")
    assert gone.endswith("its pod is gone")
    assert left.endswith("left in order")


def test_straggler_that_is_replaced_is_told_of_as_a_story() -> None:
    made = straggler_world()
    slowed(made)
    decisions = made.run(20)
    [creating] = told(decisions, "ReplacingStraggler")
    [left] = told(decisions, "WorkerLeft")
    [joined] = told(decisions, "WorkerJoined")
    [replaced] = told(decisions, "WorkerReplaced")
    assert f"creating {NEWCOMER} to replace {SLOW}" in creating
    assert f"{NEWCOMER} takes its place: it takes" in left
    assert f"in place of {SLOW}: it takes" in joined
    assert f"{NEWCOMER} trains in place of {SLOW} since step " in replaced
    assert "of that" in replaced, "and how fast the newcomer is"
    assert [(each.name, each.other) for each in made.memory.passages.departures] == [(SLOW, NEWCOMER)]
    assert [(each.name, each.other) for each in made.memory.passages.arrivals] == [(NEWCOMER, SLOW)]


def test_straggler_that_stays_after_all_has_not_left() -> None:
    made = swapping()
    fails(made, "kill")
    made.tick()
    assert made.memory.passages.departures == ()


def test_newcomer_that_never_trained_has_neither_joined_nor_left() -> None:
    world = elastic_world(backoff_limit=1)
    nobody_reaches(world, A, B, C)
    first = len(world.decisions)
    resize(world, 4)
    for _ in range(60):
        world.train(1)
        world.tick(5)
    assert told(world.decisions[first:]) == []
    assert (world.memory.passages.arrivals, world.memory.passages.departures) == ((), ())


def test_of_many_that_leave_at_once_only_the_first_have_events_of_their_own() -> None:
    world = elastic_world(24)
    resize(world, 2)
    events = told([world.tick()])
    assert len(events) == NAMED + 1
    assert len(world.memory.passages.departures) == MOST_PASSAGES


def test_standstill_of_all_changes_is_counted() -> None:
    world = elastic_world()
    resize(world, 4)
    settled(world)
    once = world.memory.transitions.idle_seconds
    assert once > 0
    resize(world, 3)
    settled(world)
    assert world.memory.transitions.idle_seconds > once


def test_passages_read_back_as_they_were_written_and_no_more_than_are_remembered() -> None:
    each = Passage("job-a-3", 12, 5.0, "more workers are wanted")
    assert PASSAGES.read(PASSAGES.write([each])) == (each,)
    assert len(PASSAGES.read(PASSAGES.write([each] * 40))) == MOST_PASSAGES
    passages = Passages(arrivals=(each,), departures=(each, each))
    memory = Memory(passages=passages, transitions=Transitions(idle_seconds=1.25))
    assert Memory.from_json(memory.to_json()) == memory
    assert memory.moved(10).passages.arrivals[0].at == 15.0


@pytest.mark.parametrize("rows", [None, 5, [5], [["a"]], [["a", -1, 0, "", ""]], [["a", 1, "soon", "", ""]]])
def test_malformed_passages_are_none(rows: object) -> None:
    assert PASSAGES.read(rows) == ()
