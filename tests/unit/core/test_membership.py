"""Members that change while others train: one plan says who stays and who joins, and nobody starts again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heterotrain.contract import MEMBERS_MAY_END, MEMBERS_STAY, PHASE_PREPARING, PHASE_WAITING, PHASE_WARMING
from heterotrain.job.planfile import check_successor
from heterotrain_operator.core.model import Decision, Group, Job, Seen, Stragglers
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
    assert before is not None
    ends(world, B)
    decision = world.tick()
    assert (decision.phase, names(decision.plan)) == ("Running", [A, C])
    assert decision.plan is not None
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
    assert world.plan is not None
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


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (3, 1)])
def test_replicas_change_while_the_others_train(before: int, after: int) -> None:
    world = elastic_world(before)
    uids = {name: pod.uid for name, pod in world.workers.items()}
    step = world.cluster.training.step
    resize(world, after)
    assert world.tick().delete == (), "those that go leave by themselves"
    settled(world)
    assert list(world.workers) == names(world.plan) == [f"job-a-{index}" for index in range(after)]
    assert all(world.workers[name].uid == uid for name, uid in uids.items() if name in world.workers)
    assert (world.cluster.training.step, world.memory.budget.restarts) == (step + 12, 0)


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


# --- what was known is lost or cannot be read --------------------------------------------------------------------


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
    assert decision.plan is not None
    assert decision.plan.continues == first.generation
    check_successor(first, decision.plan)


def test_change_while_nobody_is_read_carries_on_the_plan_that_was_seen_to_be_followed() -> None:
    world = settled(elastic_world(), 2)
    ends(world, B)
    settled(world)
    before = world.plan
    assert before is not None
    assert before.generation > 1
    ends(world, A)
    plan = decided(world, changed(world.seen(), metrics=None), 1)[0].plan
    assert plan is not None
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


# --- survivors of a failure share the batches before the operator knows ------------------------------------------

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
    assert made.plan is not None
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
