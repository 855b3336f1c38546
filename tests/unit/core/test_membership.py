"""Members that change while others train: one plan says who stays and who joins, and nobody starts again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain.contract import MEMBERS_STAY, PHASE_EVALUATING, PHASE_PREPARING, PHASE_WAITING, PHASE_WARMING
from heterotrain_operator.core.lifecycle.following import DELIVERY_SECONDS
from heterotrain_operator.core.model import Group, Job
from unit.core.members import A, B, C, elastic_world, names, resize, settled
from unit.core.traces import World, hetero_world


def test_worker_that_dies_leaves_the_others_training() -> None:
    world = elastic_world()
    before, step = world.plan, world.cluster.training.step
    assert before is not None
    world.workers[B].end(137)
    decision = world.tick()
    assert decision.phase == "Running"
    assert names(decision.plan) == [A, C]
    assert decision.plan is not None
    assert (decision.plan.generation, decision.plan.continues) == (before.generation + 1, before.generation)
    assert sum(decision.plan.batch_sizes) == 192
    assert [key.name for key in decision.create] == ["job-a-3"], "no name waits for a deletion"
    assert decision.delete == (B,)
    world.train(4)
    assert world.cluster.training.step == step + 4
    assert world.memory.budget.restarts == 0


def test_only_workers_that_are_created_beside_training_warm_up() -> None:
    world = World(Job("job", (Group("a", 3),), global_batch=192), protocol=3)
    first = world.tick()
    assert (len(first.create), first.beside_training) == (3, False)
    world.start().run(3)
    world.workers[B].end(137)
    decision = world.tick()
    assert ([key.name for key in decision.create], decision.beside_training) == (["job-a-3"], True)
    settled(world)
    assert not world.tick().beside_training


def test_newcomer_joins_behind_those_that_stay() -> None:
    world = elastic_world()
    uids = {name: world.workers[name].uid for name in (B, C)}
    world.workers[A].end(143, disrupted=True)
    settled(world)
    assert names(world.plan) == [B, C, "job-a-3"]
    assert {name: world.workers[name].uid for name in (B, C)} == uids
    assert {pod.metrics.generation for pod in world.workers.values()} == {3}
    assert world.memory.pending == ()


@pytest.mark.parametrize("phase", [PHASE_PREPARING, PHASE_WARMING])
def test_all_that_are_ready_join_by_one_plan_and_those_that_are_not_later(phase: str) -> None:
    world = elastic_world(4)
    for name in (A, B):
        world.workers[name].end(137)
    world.tick()
    late = world.workers["job-a-5"]
    late.metrics = replace(late.metrics, phase=phase)
    world.train(2)
    world.tick()
    assert names(world.plan) == [C, "job-a-3", "job-a-4"]
    late.metrics = replace(late.metrics, phase=PHASE_WAITING)
    settled(world)
    assert names(world.plan) == [C, "job-a-3", "job-a-4", "job-a-5"]


def test_change_waits_until_all_report_the_one_before() -> None:
    world = elastic_world()
    world.workers[B].end(137)
    world.tick()
    generation = world.plan.generation if world.plan else 0
    # Nobody has taken a step since, so that the plan is not followed yet.
    assert world.tick().plan is None
    assert world.plan is not None
    assert world.plan.generation == generation
    world.train(1)
    assert names(world.tick().plan) == [A, C, "job-a-3"]


@pytest.mark.parametrize("protocols", [(1, 1, 1), (3, 1, 3), (2, 2, 2)])
def test_job_of_which_one_worker_meets_at_its_start_alone_starts_again(protocols: tuple[int, ...]) -> None:
    world = World(Job("job", (Group("a", 3),), global_batch=192))
    world.tick()
    for pod, protocol in zip(world.workers.values(), protocols, strict=True):
        pod.protocol = protocol
    world.tick()
    world.run(3)
    world.workers[B].end(137)
    decision = world.tick()
    assert (decision.phase, len(decision.delete)) == ("Restarting", 3)


def test_job_of_which_nobody_is_left_starts_again_from_the_checkpoint() -> None:
    world = elastic_world()
    for pod in world.workers.values():
        pod.end(137)
    decision = world.tick()
    assert (decision.phase, world.memory.budget.restarts) == ("Restarting", 1)
    plans = [world.tick(5).plan for _ in range(4)]
    [plan] = [plan for plan in plans if plan is not None]
    assert plan.continues == 0


def test_job_of_which_only_a_newcomer_is_left_starts_again_since_it_has_no_state() -> None:
    world = elastic_world(2)
    world.workers[A].end(137)
    world.tick()
    world.train(1)
    world.tick()
    assert names(world.plan) == [B, "job-a-2"]
    world.workers[B].end(137)
    assert world.tick().phase == "Restarting"


def test_newcomer_that_does_not_follow_is_left_out_and_counts_for_its_place() -> None:
    world = elastic_world()
    world.workers[B].end(137)
    world.tick()
    world.train(2)
    joining = world.tick().plan
    assert names(joining) == [A, C, "job-a-3"]
    # The others train on under the plan before, and the newcomer never meets them.
    world.workers["job-a-3"].ready_at = world.now + 1e6
    published = world.now
    for _ in range(60):
        world.train(2)
        decision = world.tick(2)
        if decision.plan is not None:
            break
    assert names(decision.plan) == [A, C]
    assert world.now - published >= DELIVERY_SECONDS, "its volume may show the plan so late"
    assert "job-a-3 did not follow" in decision.events[0].message
    assert [place.failures for place in world.memory.pending] == [2]
    settled(world)
    assert len(names(world.plan)) == 3
    assert "job-a-3" not in world.workers
    assert [row.failures for row in world.memory.workers] == [0, 0, 2]


def test_long_evaluation_does_not_count_against_a_newcomer() -> None:
    world = elastic_world()
    world.workers[B].end(137)
    world.tick()
    world.train(2)
    world.tick()
    for pod in world.workers.values():
        if pod.metrics.generation:
            pod.metrics = replace(pod.metrics, phase=PHASE_EVALUATING)
    for _ in range(20):
        assert world.tick(10).plan is None
    settled(world)
    assert names(world.plan) == [A, C, "job-a-3"]
    assert [row.failures for row in world.memory.workers] == [0, 0, 1]


def test_more_replicas_join_while_the_others_train() -> None:
    world = elastic_world(2)
    world.job = replace(world.job, groups=(Group("a", 4),))
    step = world.cluster.training.step
    settled(world)
    assert names(world.plan) == [A, B, C, "job-a-3"]
    assert world.cluster.training.step == step + 12
    assert world.memory.budget.restarts == 0


def test_fewer_replicas_let_the_greatest_indices_go() -> None:
    world = elastic_world(4)
    world.job = replace(world.job, groups=(Group("a", 2),))
    decision = world.tick()
    assert names(decision.plan) == [A, B]
    assert decision.delete == (), "those that go leave by themselves"
    settled(world)
    assert set(world.workers) == {A, B}


def test_group_that_is_removed_goes_and_one_that_is_added_joins() -> None:
    world = hetero_world(scales=(1, 2), protocol=3)
    world.run(3)
    world.job = replace(world.job, groups=(Group("g0", 1), Group("new", 1)))
    settled(world)
    assert names(world.plan) == ["job-g0-0", "job-new-0"]
    assert set(world.workers) == {"job-g0-0", "job-new-0"}


def test_member_that_is_being_deleted_is_no_member_of_the_next_plan_and_is_replaced_at_once() -> None:
    world = elastic_world()
    world.workers[B].gone_at = world.now + 30
    decision = world.tick()
    assert names(decision.plan) == [A, C]
    assert [key.name for key in decision.create] == ["job-a-3"]
    assert world.memory.pending[0].failures == 0


def test_members_that_no_split_fits_without_start_again() -> None:
    groups = (Group("a", 1, batch_min=128, multiple_of=128), Group("b", 1, multiple_of=64, batch_min=64))
    world = World(Job("job", groups, global_batch=192), protocol=3).start()
    world.run(2)
    world.workers["job-b-0"].end(137)
    decision = world.tick()
    assert decision.phase == "Restarting"
    assert "192" in decision.reason


def test_newcomer_of_an_older_library_never_joins_and_is_given_up() -> None:
    world = elastic_world(backoff_limit=2)
    world.protocol = 1
    world.workers[B].end(137)
    said = []
    for _ in range(12):
        world.train(2)
        decision = world.tick(5)
        assert decision.phase == "Running"
        said += [event.message for event in decision.events if event.reason == "WorkerGivenUp"]
    assert names(world.plan) == [A, C]
    assert "its library is older" in said[0]


def test_of_a_thousand_workers_one_in_a_hundred_dies_again_and_again_and_the_others_train_on() -> None:
    world = elastic_world(1000, global_batch=32_000)
    first = {name: pod.uid for name, pod in world.workers.items()}
    step, plans, dead = world.cluster.training.step, 0, set[str]()
    for each in range(3):
        for name in list(world.workers)[each * 10 : each * 10 + 10]:
            world.workers[name].end(137)
            dead.add(name)
        for _ in range(4):
            plans += world.tick(5).plan is not None
            world.train(2)
    assert world.plan is not None
    assert (len(world.plan.members), world.plan.global_batch_size) == (1000, 32_000)
    assert plans <= 6, "those that die together go by one plan, and those that replace them come by one"
    assert world.cluster.training.step == step + 24
    assert {name: world.workers[name].uid for name in first if name not in dead} == {
        name: uid for name, uid in first.items() if name not in dead
    }
    assert world.created == 1030
    assert len(world.memory.to_json()) < 1000 * 250


def test_workers_that_learn_when_they_meet_that_they_cannot_change_start_again() -> None:
    world = elastic_world()
    for pod in world.workers.values():  # as over NCCL
        pod.protocol = MEMBERS_STAY
    world.train(1)
    world.tick()
    resize(world, 4)
    settled(world, 10)
    assert world.plan is not None
    assert world.plan.continues == 0
    assert len(world.plan.members) == 4
