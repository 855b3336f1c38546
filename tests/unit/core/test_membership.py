"""Members that change while others train: one plan says who stays and who joins, and nobody starts again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heterotrain.contract import (
    MAX_EVICTED,
    MEMBERS_MAY_END,
    MEMBERS_STAY,
    PHASE_PREPARING,
    PHASE_WAITING,
    PHASE_WARMING,
    Plan,
    parse_plan,
)
from heterotrain.job.planfile import check_successor
from heterotrain_operator.core.batching.adjust import aligned
from heterotrain_operator.core.facts import Facts, survey
from heterotrain_operator.core.lifecycle.following import noticed
from heterotrain_operator.core.lifecycle.membership import evicted
from heterotrain_operator.core.model import Decision, Group, Job, Seen, Stragglers, WorkerMetrics, WorkerSeen
from heterotrain_operator.core.state import Remembered
from unit.core.jobs import (
    A,
    B,
    C,
    D,
    changed,
    created,
    decided,
    elastic_world,
    ends,
    names,
    one,
    reasons,
    resize,
    settled,
    straggler_world,
    told,
)
from unit.core.traces import World


def test_worker_that_dies_leaves_the_others_training() -> None:
    world = elastic_world()
    before, step = world.plan, world.cluster.training.step
    uids = {name: world.workers[name].uid for name in (A, C)}
    ends(world, B)
    decision = world.tick()
    assert (decision.phase, names(decision.plan)) == ("Running", [A, C])
    assert (decision.plan.generation, decision.plan.continues) == (before.generation + 1, before.generation)
    assert decision.plan.global_batch_size == 192
    assert created([decision]) == [D], "no name waits for a deletion"
    assert (decision.delete, decision.beside_training) == ((B,), True)
    world.train(4)
    assert world.cluster.training.step == step + 4
    settled(world)
    assert names(world.plan) == [A, C, D], "who joins is behind those that stay"
    assert {name: world.workers[name].uid for name in (A, C)} == uids
    assert (world.memory.budget.restarts, world.memory.pending) == (0, ())
    assert not world.tick().beside_training


@pytest.mark.parametrize("phase", [PHASE_PREPARING, PHASE_WARMING])
def test_all_that_are_ready_join_by_one_plan_and_those_that_are_not_later(phase: str) -> None:
    world = elastic_world(4)
    for name in (A, B):
        ends(world, name)
    world.tick()
    last = world.workers["job-a-5"]
    last.metrics = replace(last.metrics, phase=phase)
    world.train(2)
    world.tick()
    assert names(world.plan) == [C, D, "job-a-4"]
    last.metrics = replace(last.metrics, phase=PHASE_WAITING)
    settled(world)
    assert names(world.plan) == [C, D, "job-a-4", "job-a-5"]


@pytest.mark.parametrize("protocols", [(1, 1, 1), (3, 1, 3), (2, 2, 2)])
def test_job_of_which_one_worker_meets_at_its_start_alone_starts_again(protocols: tuple[int, ...]) -> None:
    world = World(Job("job", (Group("a", 3),), global_batch=192))
    world.tick()
    for pod, protocol in zip(world.workers.values(), protocols, strict=True):
        pod.protocol = protocol
    world.tick()
    world.run(3)
    ends(world, B)
    decision = world.tick()
    assert (decision.phase, len(decision.delete)) == ("Restarting", 3)


def test_workers_that_learn_when_they_meet_that_they_cannot_change_start_again() -> None:
    world = elastic_world()
    for pod in world.workers.values():  # as over NCCL
        pod.protocol = MEMBERS_STAY
    world.train(1)
    world.tick()
    resize(world, 4)
    settled(world, 10)
    assert (world.plan.continues, len(world.plan.members)) == (0, 4)


def test_job_of_which_nobody_or_only_a_newcomer_is_left_starts_again_from_the_checkpoint() -> None:
    world = elastic_world()
    for pod in world.workers.values():
        pod.end(137)
    assert (world.tick().phase, world.memory.budget.restarts) == ("Restarting", 1)
    [plan] = [plan for plan in [world.tick(5).plan for _ in range(4)] if plan is not None]
    assert plan.continues == 0
    world = elastic_world(2)
    ends(world, A)
    world.tick()
    world.train(1)
    assert names(world.tick().plan) == [B, C]
    ends(world, B)
    assert world.tick().phase == "Restarting", "the newcomer has no state"


def test_members_that_no_split_fits_without_start_again() -> None:
    groups = (Group("a", 1, batch_min=128, multiple_of=128), Group("b", 1, multiple_of=64, batch_min=64))
    world = World(Job("job", groups, global_batch=192), protocol=MEMBERS_MAY_END).start()
    world.run(2)
    ends(world, "job-b-0")
    decision = world.tick()
    assert decision.phase == "Restarting"
    assert "192" in decision.reason


@pytest.mark.parametrize("protocol", [1, 2])
def test_newcomer_of_an_older_library_never_joins_and_is_given_up(protocol: int) -> None:
    world = elastic_world(backoff_limit=2)
    world.protocol = protocol
    first = len(world.decisions)
    ends(world, B)
    settled(world, 12)
    assert {decision.phase for decision in world.decisions[first:]} == {"Running"}
    assert names(world.plan) == [A, C]
    assert "its library is older" in told(world.decisions, "WorkerGivenUp")[0]


def test_change_while_nobody_who_trains_is_read_carries_on_what_the_plan_before_does() -> None:
    """Members may train under the one before that one, and refuse a plan which does not carry on their training."""
    world = elastic_world(2)
    first = world.plan
    assert first is not None
    resize(world, 3)
    for _ in range(9):
        if world.tick(10).plan is not None and len(names(world.plan)) == 3:
            break
        world.train(1)
    assert names(world.plan) == [A, B, C]
    ends(world, B)
    decision, _ = decided(world, changed(world.seen(), A, metrics=None), 1)
    assert names(decision.plan) == [A, C]
    assert decision.plan.continues == first.generation
    check_successor(first, decision.plan)


def test_change_while_nobody_is_read_carries_on_the_plan_that_was_seen_to_be_followed() -> None:
    world = settled(elastic_world(), 2)
    ends(world, B)
    settled(world)
    before = world.plan
    assert before.generation > 1
    ends(world, A)
    plan = decided(world, changed(world.seen(), metrics=None), 1)[0].plan
    assert plan.continues == before.generation


@pytest.mark.parametrize("when", ["long before", "just before", "in between"])
def test_lost_memory_learns_again_that_members_can_change(when: str) -> None:
    world = elastic_world()
    if when != "in between":
        world.memory = Remembered.initial()
    if when == "long before":
        world.tick()
    ends(world, B)
    decision = world.tick()
    assert (decision.phase, names(decision.plan)) == ("Running", [A, C])
    world.train(1)
    if when == "in between":
        world.memory = Remembered.initial()
    settled(world)
    assert (names(world.plan), world.created) == ([A, C, D], 4)


DEAD = B


def sharing(action: str = "Report", protocol: int = MEMBERS_MAY_END) -> World:
    """Four alike workers, of which a silent one is not taken for lost here."""
    acting = Stragglers(action=action, cooldown_seconds=0)
    return straggler_world(acting, replicas=4, protocol=protocol, heartbeat_timeout_seconds=1000)


def looks_after_silent_death(made: World, looks: int = 8) -> list[Decision]:
    """A machine is cut off: its worker is gone, and a look shows only that it cannot be read."""
    silent = replace(one(made, DEAD), metrics=None)
    ends(made, DEAD)
    decisions = []
    for _ in range(looks):
        made.train(made.job.interval)
        made.now += 5
        seen = made.seen()
        shown = Seen(tuple(silent if worker.name == DEAD else worker for worker in seen.workers), seen.plan)
        decision, made.memory = decided(made, shown)
        decisions.append(decision)
    return decisions


@pytest.mark.parametrize("action", ["Report", "Replace", "Remove"])
def test_nothing_is_learned_or_changed_by_steps_with_other_batches_than_the_plans(action: str) -> None:
    made = sharing(action)

    def known() -> dict[str, Any]:
        return {row.key: (row.step_time, row.batch_cost, row.evidence) for row in made.memory.workers}

    before = known()
    decisions = looks_after_silent_death(made)
    assert [each.plan for each in decisions] == [None] * 8
    assert not any(each.create or each.delete or each.stragglers for each in decisions)
    assert known() == before
    assert f"{A} (training, with 64 samples instead of 48)" in decisions[-1].reason
    assert made.tick().plan is not None  # the dead worker is seen by now
    made.workers[D].scale *= 3
    made.run(8)
    by_name = {member.name: member.batch_size for member in made.plan.members}
    if action == "Report":
        assert by_name[D] < min(by_name[A], by_name[C])


@pytest.mark.parametrize(
    ("protocol", "batch"), [(MEMBERS_STAY, 64), (MEMBERS_MAY_END, 0)], ids=["members that stay", "no figure"]
)
def test_batch_that_is_not_known_or_cannot_be_another_is_the_plans(protocol: int, batch: int) -> None:
    plain, odd = sharing(protocol=protocol), sharing(protocol=protocol)
    for made in (plain, odd):
        made.workers[D].scale *= 2
    for _ in range(6):
        decisions = []
        for made in (plain, odd):
            made.train(made.job.interval)
            for pod in made.workers.values():
                if made is odd:
                    pod.metrics = replace(pod.metrics, batch_size=batch)
            decisions.append(made.tick())
        assert decisions[0] == decisions[1]
    assert "BatchRebalanced" in reasons(odd.decisions[-6:])


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


def planned(world: World, seen: Seen) -> Plan:
    """The plan that is decided upon when this is seen."""
    plan = decided(world, seen, 1)[0].plan
    assert plan is not None
    return plan


def without(seen: Seen, name: str, *departed: WorkerSeen) -> Seen:
    """Nobody of this name is there, and these are known to have gone."""
    return replace(seen, workers=tuple(each for each in seen.workers if each.name != name), departed=departed)


@pytest.mark.parametrize(
    ("changes", "is_evicted"),
    [
        *(({"phase": "Failed", "exit_code": code}, True) for code in (0, 1, 137, 143)),
        ({"node_lost": True, "disrupted": True}, False),
        ({"deleting_since": 0.0}, False),
        ({"phase": "Failed"}, False),  # without an exit code, as others than its node may say
    ],
)
def test_only_a_worker_that_was_seen_to_end_is_evicted_by_the_plan_that_goes_on_without_it(
    changes: dict[str, Any], is_evicted: bool
) -> None:
    world = elastic_world()
    assert [each.plan.evicted for each in world.decisions if each.plan is not None] == [()]
    seen = changed(world.seen(), A, **changes)
    plan = planned(world, seen)
    assert (names(plan), plan.evicted) == ([B, C], (world.workers[A].uid,) if is_evicted else ())
    assert parse_plan(plan.to_json()) == plan
    assert planned(world, changed(seen, B, node_lost=True)).evicted == (), "another might train elsewhere"


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
