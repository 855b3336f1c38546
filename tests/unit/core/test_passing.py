"""What is said of workers that come and go: to users, each once and why; and to the others, who was seen to end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heterotrain.contract import MAX_EVICTED, Plan, parse_plan
from heterotrain_operator.core.batching.adjust import aligned
from heterotrain_operator.core.facts import Facts, survey
from heterotrain_operator.core.lifecycle.following import noticed
from heterotrain_operator.core.lifecycle.membership import evicted
from heterotrain_operator.core.model import Group, Job, Seen, WorkerMetrics, WorkerSeen
from heterotrain_operator.core.state import Remembered
from unit.core.jobs import (
    A,
    B,
    C,
    D,
    changed,
    decided,
    elastic_world,
    ends,
    names,
    one,
    resize,
    settled,
    told,
)
from unit.core.traces import World

# --- events, and what the status shows --------------------------------------------------------------------------


@pytest.mark.parametrize("forgetful", [False, True])
def test_worker_that_joins_and_one_that_leaves_are_each_told_of_once(forgetful: bool) -> None:
    world = elastic_world()
    world.forgetful = forgetful
    resize(world, 4)
    settled(world)
    [arrival] = world.memory.passages.arrivals
    assert (arrival.name, arrival.other) == (D, "")
    assert 0 < arrival.step <= world.cluster.training.step
    still = world.memory.transitions.idle_seconds
    assert still > 0
    resize(world, 3)
    settled(world)
    [joined], [left] = told(world.decisions, "WorkerJoined"), told(world.decisions, "WorkerLeft")
    assert joined.startswith(f"{D} trains since step ")
    assert joined.endswith("more workers are wanted")
    assert left.startswith(f"{D} left at step ")
    assert left.endswith("fewer workers are wanted")
    assert [each.name for each in world.memory.passages.departures] == [D]
    assert world.memory.transitions.idle_seconds > still, "the standstill of all changes is counted"


@pytest.mark.parametrize(
    ("how", "said"), [("kill", f"{B} was killed by SIGKILL"), ("vanish", "its pod is gone"), ("left", "left in order")]
)
def test_worker_that_ends_says_how_and_who_has_come_in_its_place(how: str, said: str) -> None:
    world = elastic_world()
    ends(world, B, how)
    settled(world)
    [left], [joined] = told(world.decisions, "WorkerLeft"), told(world.decisions, "WorkerJoined")
    assert said in left
    assert f"in place of {B}: {B} " in joined
    [departure], [arrival] = world.memory.passages.departures, world.memory.passages.arrivals
    assert (departure.name, departure.other, arrival.other) == (B, D, B)
    assert departure.step <= arrival.step


# --- whom a plan names as evicted: who was seen to end, if nobody else could train beside its members -----------


def planned(world: World, seen: Seen) -> Plan:
    """The plan that is decided upon when this is seen."""
    plan = decided(world, seen, 1)[0].plan
    assert plan is not None
    return plan


def without(seen: Seen, name: str, *departed: WorkerSeen) -> Seen:
    """Nobody of this name is there, and these are known to have gone."""
    return replace(seen, workers=tuple(each for each in seen.workers if each.name != name), departed=departed)


@pytest.mark.parametrize("code", [0, 1, 137, 143])
def test_worker_that_was_seen_to_end_is_evicted_by_the_plan_that_goes_on_without_it(code: int) -> None:
    world = elastic_world()
    assert [each.plan.evicted for each in world.decisions if each.plan is not None] == [()]
    uid = world.workers[A].uid
    world.workers[A].end(code)
    plan = world.tick().plan
    assert plan is not None
    assert (names(plan), plan.evicted) == ([B, C], (uid,))
    assert parse_plan(plan.to_json()) == plan


@pytest.mark.parametrize(
    "changes",
    [{"node_lost": True, "disrupted": True}, {"deleting_since": 0.0}, {"phase": "Failed"}],
    ids=["node does not answer", "only being deleted", "failed without an exit code, as others than its node may say"],
)
def test_worker_that_may_still_run_is_not_evicted(changes: dict[str, Any]) -> None:
    world = elastic_world()
    plan = planned(world, changed(world.seen(), A, **changes))
    assert (names(plan), plan.evicted) == ([B, C], ())


@pytest.mark.parametrize(
    ("last", "is_evicted"),
    [
        (None, False),
        ({}, False),
        ({"phase": "Failed", "exit_code": 137}, True),
        ({"phase": "Failed", "exit_code": 137, "uid": "another"}, False),
    ],
    ids=["never seen", "it ran", "it had ended", "another one had"],
)
def test_worker_that_is_not_there_any_more_is_evicted_if_its_end_was_seen(
    last: dict[str, Any] | None, is_evicted: bool
) -> None:
    """Else its pod may have been deleted by force."""
    world = elastic_world()
    gone = () if last is None else (replace(one(world, A), **last),)
    plan = planned(world, without(world.seen(), A, *gone))
    assert (names(plan), plan.evicted) == ([B, C], (world.workers[A].uid,) if is_evicted else ())


def test_nobody_is_evicted_while_another_might_train_elsewhere() -> None:
    world = elastic_world()
    ends(world, A)
    plan = planned(world, changed(world.seen(), B, node_lost=True))
    assert (names(plan), plan.evicted) == ([C], ())


@pytest.mark.parametrize("gone_over", [False, True])
def test_word_is_repeated_until_somebody_has_gone_over_to_the_plan_that_gave_it(gone_over: bool) -> None:
    world = elastic_world()
    uids = {name: world.workers[name].uid for name in (A, B)}
    ends(world, A)
    world.tick()
    if gone_over:
        world.train(2)
    else:
        ends(world, B)
    plan = world.tick(5).plan
    assert plan is not None
    assert names(plan)[0] == (B if gone_over else C)
    assert plan.evicted == (() if gone_over else (uids[A], uids[B]))


def test_worker_is_evicted_though_nobody_is_read_in_that_look_who_was_seen_to_follow_the_plan_before() -> None:
    world = elastic_world(2)
    uid = world.workers[A].uid
    ends(world, A)
    plan = planned(world, changed(world.seen(), metrics=None))
    assert (names(plan), plan.evicted) == ([B], (uid,))


def test_nobody_is_evicted_after_a_look_without_anybody_who_follows_a_plan_that_may_never_have_been_followed() -> None:
    world = elastic_world()
    ends(world, A)
    first = world.tick().plan
    assert first is not None
    world.plan = replace(first, evicted=())
    ends(world, B)
    plan = planned(world, changed(world.seen(), C, metrics=None))
    assert (names(plan)[0], plan.evicted) == (C, ())


@pytest.mark.parametrize("generation", [0, 1, 2])
def test_memory_that_was_lost_proves_only_what_was_seen_since(generation: int) -> None:
    world = elastic_world()
    plan = planned(world, without(world.seen(), A))
    world.plan = plan
    world.workers.pop(A)
    if generation > 0:
        for name in (B, C):
            world.workers[name].metrics = replace(world.workers[name].metrics, generation=generation)
    seen = world.seen() if generation > 0 else changed(world.seen(), metrics=None)
    memory = noticed(survey(world.job, seen), replace(Remembered.initial(), protocol=3), world.now)
    memory = aligned(memory, plan, world.now)
    ends(world, B)
    uid, facts = world.workers[B].uid, survey(world.job, changed(world.seen(), C, metrics=None))
    assert evicted(facts, memory, {world.workers[C].uid}) == ((uid,) if generation == plan.generation else ())


def test_plan_that_has_just_been_published_proves_nothing_whatever_its_members_said_that_they_speak() -> None:
    world = World(Job("job", (Group("a", 2),), global_batch=192), protocol=1).start()
    ends(world, A)
    facts = survey(world.job, changed(world.seen(), B, metrics=None))
    assert evicted(facts, replace(world.memory, protocol=3), {world.workers[B].uid}) == ()


def test_nobody_is_evicted_after_a_change_without_the_word_that_nobody_has_gone_over_to() -> None:
    """Who was a member before, and is not named by then, may train elsewhere."""
    world = elastic_world()
    world.plan = planned(world, without(world.seen(), A))
    world.workers.pop(A)
    ends(world, B)
    assert evicted(survey(world.job, world.seen()), world.memory, {world.workers[C].uid}) == ()


def test_more_than_a_plan_may_name_are_not_named() -> None:
    world = elastic_world(2)
    assert world.plan is not None
    member = world.plan.members[0]
    metrics = WorkerMetrics(plan_version=1, generation=1)
    plan = Plan(1, 1, "step", tuple(replace(member, name=f"w{index}", uid=f"u{index}") for index in range(300)))

    def facts(ended: int) -> Facts:
        workers = (
            WorkerSeen(m.name, m.uid, m.group, i, "Running", metrics=metrics) for i, m in enumerate(plan.members)
        )
        seen = Seen(tuple(workers), plan)
        return survey(world.job, changed(seen, *(f"w{index}" for index in range(ended)), phase="Failed", exit_code=1))

    for ended, named in ((MAX_EVICTED, MAX_EVICTED), (MAX_EVICTED + 1, 0)):
        staying = {each.uid for each in plan.members[ended:]}
        assert len(evicted(facts(ended), world.memory, staying)) == named
