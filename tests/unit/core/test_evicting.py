"""A plan names those as evicted that were seen to end, if nobody else could train beside its members; else nobody."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain.contract import MAX_EVICTED, Plan, parse_plan
from heterotrain_operator.core.batching.adjust import aligned
from heterotrain_operator.core.decide import decide
from heterotrain_operator.core.facts import Facts, survey
from heterotrain_operator.core.lifecycle.following import noticed
from heterotrain_operator.core.lifecycle.membership import evicted
from heterotrain_operator.core.model import Group, Job, Seen, WorkerMetrics, WorkerSeen
from heterotrain_operator.core.state import Memory
from unit.core.members import A, B, C, elastic_world, names
from unit.core.traces import World


def planned(world: World, seen: Seen) -> Plan:
    """The plan that is decided upon when this is seen."""
    decision, _ = decide(world.job, seen, world.memory, world.now + 1)
    assert decision.plan is not None
    return decision.plan


def without(world: World, name: str) -> Seen:
    """Nobody of this name is there."""
    seen = world.seen()
    return replace(seen, workers=tuple(each for each in seen.workers if each.name != name))


def one(world: World, name: str) -> WorkerSeen:
    return next(each for each in world.seen().workers if each.name == name)


@pytest.mark.parametrize("code", [0, 1, 137, 143])
def test_worker_that_was_seen_to_end_is_evicted_by_the_plan_that_goes_on_without_it(code: int) -> None:
    world = elastic_world()
    uid = world.workers[A].uid
    world.workers[A].end(code)
    plan = world.tick().plan
    assert names(plan) == [B, C]
    assert plan is not None
    assert plan.evicted == (uid,)
    assert parse_plan(plan.to_json()) == plan


def test_plan_of_the_same_members_evicts_nobody() -> None:
    world = elastic_world()
    assert [each.plan.evicted for each in world.decisions if each.plan is not None] == [()]


def test_worker_on_a_node_that_does_not_answer_is_not_evicted() -> None:
    world = elastic_world()
    seen = world.seen()
    lost = tuple(replace(each, node_lost=each.name == A, disrupted=each.name == A) for each in seen.workers)
    plan = planned(world, replace(seen, workers=lost))
    assert (names(plan), plan.evicted) == ([B, C], ())


def test_worker_that_is_only_being_deleted_is_not_evicted() -> None:
    world = elastic_world()
    seen = world.seen()
    going = tuple(replace(each, deleting_since=world.now if each.name == A else None) for each in seen.workers)
    plan = planned(world, replace(seen, workers=going))
    assert (names(plan), plan.evicted) == ([B, C], ())


def test_worker_that_is_only_not_there_any_more_is_not_evicted() -> None:
    """Its pod may have been deleted by force."""
    world = elastic_world()
    plan = planned(world, without(world, A))
    assert (names(plan), plan.evicted) == ([B, C], ())
    seen_last = one(world, A)
    plan = planned(world, replace(without(world, A), departed=(seen_last,)))
    assert plan.evicted == (), "it ran when it was seen last"


def test_worker_whose_end_was_seen_before_its_pod_went_is_evicted() -> None:
    world = elastic_world()
    ended = replace(one(world, A), phase="Failed", exit_code=137)
    plan = planned(world, replace(without(world, A), departed=(ended,)))
    assert plan.evicted == (ended.uid,)
    other = replace(ended, uid="another")
    assert planned(world, replace(without(world, A), departed=(other,))).evicted == ()


def test_pod_that_failed_without_an_exit_code_is_not_evicted() -> None:
    """That may be written by another than its node, which does not answer."""
    world = elastic_world()
    seen = world.seen()
    workers = tuple(replace(each, phase="Failed") if each.name == A else each for each in seen.workers)
    plan = planned(world, replace(seen, workers=workers))
    assert (names(plan), plan.evicted) == ([B, C], ())


def test_nobody_is_evicted_while_another_might_train_elsewhere() -> None:
    world = elastic_world()
    world.workers[A].end(137)
    seen = world.seen()
    lost = tuple(replace(each, node_lost=each.name == B) for each in seen.workers)
    plan = planned(world, replace(seen, workers=lost))
    assert (names(plan), plan.evicted) == ([C], ())


def test_word_is_repeated_until_somebody_has_gone_over_to_the_plan_that_gave_it() -> None:
    world = elastic_world()
    uids = {name: world.workers[name].uid for name in (A, B)}
    world.workers[A].end(137)
    world.tick()
    world.workers[B].end(137)
    plan = world.tick(5).plan
    assert names(plan)[0] == C
    assert plan is not None
    assert plan.evicted == (uids[A], uids[B])


def test_word_is_not_repeated_once_they_have() -> None:
    world = elastic_world()
    world.workers[A].end(137)
    world.tick()
    world.train(2)
    plan = world.tick(5).plan
    assert names(plan) == [B, C, "job-a-3"]
    assert plan is not None
    assert plan.evicted == ()


def unread(seen: Seen, *silent: str) -> Seen:
    """What is seen if these workers are not read."""
    workers = tuple(replace(each, metrics=None) if each.name in silent else each for each in seen.workers)
    return replace(seen, workers=workers)


def test_worker_is_evicted_though_nobody_is_read_in_that_look_who_was_seen_to_follow_the_plan_before() -> None:
    world = elastic_world(2)
    uid = world.workers[A].uid
    world.workers[A].end(137)
    plan = planned(world, unread(world.seen(), A, B))
    assert (names(plan), plan.evicted) == ([B], (uid,))


def test_nobody_is_evicted_after_a_look_without_anybody_who_follows_a_plan_that_may_never_have_been_followed() -> None:
    world = elastic_world()
    world.workers[A].end(137)
    first = world.tick().plan
    assert first is not None
    world.plan = replace(first, evicted=())
    world.workers[B].end(137)
    seen = unread(world.seen(), C)
    plan = planned(world, seen)
    assert (names(plan)[0], plan.evicted) == (C, ())


@pytest.mark.parametrize("generation", [0, 1, 2])
def test_memory_that_was_lost_proves_only_what_was_seen_since(generation: int) -> None:
    world = elastic_world()
    plan = planned(world, without(world, A))
    world.plan = plan
    world.workers.pop(A)
    if generation > 0:
        for name in (B, C):
            world.workers[name].metrics = replace(world.workers[name].metrics, generation=generation)
    seen = world.seen() if generation > 0 else unread(world.seen(), B, C)
    memory = noticed(survey(world.job, seen), replace(Memory.initial(), protocol=3), world.now)
    memory = aligned(memory, plan, world.now)
    world.workers[B].end(137)
    uid, facts = world.workers[B].uid, survey(world.job, unread(world.seen(), C))
    assert evicted(facts, memory, {world.workers[C].uid}) == ((uid,) if generation == plan.generation else ())


def test_plan_that_has_just_been_published_proves_nothing_whatever_its_members_said_that_they_speak() -> None:
    world = World(Job("job", (Group("a", 2),), global_batch=192), protocol=1).start()
    memory = replace(world.memory, protocol=3)
    world.workers[A].end(137)
    facts = survey(world.job, unread(world.seen(), B))
    assert evicted(facts, memory, {world.workers[B].uid}) == ()


def test_nobody_is_evicted_after_a_change_without_the_word_that_nobody_has_gone_over_to() -> None:
    """Who was a member before, and is not named by then, may train elsewhere."""
    world = elastic_world()
    plan = planned(world, without(world, A))
    world.plan = plan
    world.workers.pop(A)
    world.workers[B].end(137)
    facts = survey(world.job, world.seen())
    assert evicted(facts, world.memory, {world.workers[C].uid}) == ()


def test_more_than_a_plan_may_name_are_not_named() -> None:
    world = elastic_world(2)
    member = world.plan.members[0] if world.plan else None
    assert member is not None
    metrics = WorkerMetrics(plan_version=1, generation=1)
    plan = Plan(1, 1, "step", tuple(replace(member, name=f"w{index}", uid=f"u{index}") for index in range(300)))

    def facts(ended: int) -> Facts:
        workers = tuple(
            WorkerSeen(each.name, each.uid, member.group, index, "Running", metrics=metrics)
            if index >= ended
            else WorkerSeen(each.name, each.uid, member.group, index, "Failed", exit_code=1)
            for index, each in enumerate(plan.members)
        )
        return survey(world.job, Seen(workers, plan))

    for ended, named in ((MAX_EVICTED, MAX_EVICTED), (MAX_EVICTED + 1, 0)):
        staying = {each.uid for each in plan.members[ended:]}
        assert len(evicted(facts(ended), world.memory, staying)) == named
