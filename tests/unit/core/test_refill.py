"""Places whose workers have ended, and what their successors begin with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain.contract import MEMBERS_MAY_END
from heterotrain_operator.core.lifecycle.prior import MOST_SLOWNESS, slowness
from heterotrain_operator.core.model import Group, Job, WorkerMetrics, WorkerState
from heterotrain_operator.core.prediction import predictor_of
from heterotrain_operator.core.prediction.batch_cost import BatchCost
from heterotrain_operator.core.prediction.memory_model import MemoryUse
from heterotrain_operator.core.remembered.members import MOST_PENDING
from unit.core.jobs import (
    A,
    B,
    C,
    D,
    created,
    elastic_world,
    ends,
    names,
    reasons,
    settled,
    told,
)
from unit.core.traces import MemoryWorld, World, hetero_world


def newest(world: World) -> str:
    """The worker that was created last."""
    return max(world.workers.values(), key=lambda pod: int(pod.uid.removeprefix("uid-"))).name


def failures(world: World) -> list[int]:
    return [row.failures for row in world.memory.workers]


def test_place_that_loses_more_workers_than_its_limit_fails_the_job() -> None:
    world = elastic_world(backoff_limit=2)
    for victim in (B, D):
        ends(world, victim, "exit")
        settled(world, 8)
    assert (failures(world), world.decisions[-1].phase) == ([0, 0, 2], "Running")
    world.workers[newest(world)].end(1, message="boom")
    decision = world.tick()
    assert (decision.phase, reasons(decision)) == ("Failed", ["WorkerFailed", "BackoffLimitExceeded"])
    assert "boom (after 2 replacements in its place)" in decision.reason


@pytest.mark.parametrize(
    ("how", "limit", "counted"),
    [("exit", 1, [1, 1, 1]), ("preempt", 0, [0, 0, 0]), ("vanish", 0, [0, 0, 0]), ("left", 0, [0, 0, 0])],
)
def test_ends_of_different_places_do_not_add_up_and_those_that_are_nobodys_fault_do_not_count(
    how: str, limit: int, counted: list[int]
) -> None:
    world = elastic_world(backoff_limit=limit)
    for name in (A, B, C):
        ends(world, name, how)
        settled(world)
    assert (world.decisions[-1].phase, failures(world)) == ("Running", counted)
    if how == "vanish":
        del world.workers[newest(world)]
        assert reasons(world.tick()) == ["WorkerVanished", "GenerationChanged", "WorkerLeft"], "the next one waits"


def test_first_worker_of_a_place_is_created_at_once_and_the_next_ones_ever_later() -> None:
    world = elastic_world(backoff_limit=5)
    ends(world, B, "exit")
    decision = world.tick()
    assert (created([decision]), dict(decision.worker_states)[D]) == ([D], WorkerState.WANTED)
    ends(world, D, "exit")
    assert world.tick().create == ()
    assert world.memory.pending[0].due_at - world.now >= 1
    assert world.tick(0.5).create == ()
    assert len(world.tick(30).create) == 1


@pytest.mark.parametrize("shown", [False, True])
def test_worker_asked_to_stop_is_replaced_at_once_and_counts_unless_somebody_shows_who_asked(shown: bool) -> None:
    world = elastic_world(backoff_limit=1)
    ends(world, B, "asked")
    decision = world.tick()
    assert len(decision.create) == 1
    assert B not in decision.delete, "it may still show who asked"
    assert world.memory.pending[0].failures == 0
    world.train(1)
    world.tick(60)
    world.workers[B].disrupted = shown
    settled(world, 30)
    assert (world.decisions[-1].phase, failures(world)) == ("Running", [0, 0, 0 if shown else 1])
    assert set(world.workers) == {A, C, D}


def test_place_whose_workers_say_again_and_again_that_they_were_asked_comes_to_an_end() -> None:
    world = elastic_world(backoff_limit=3)
    for _ in range(200):
        pod = world.workers.get(newest(world))
        if pod is not None and pod.exit_code is None and pod.metrics.generation:
            pod.end_asked()
        world.train(1)
        if world.tick(5).phase == "Failed":
            break
    assert world.decisions[-1].phase == "Failed"
    assert world.created <= 3 + 5


@pytest.mark.parametrize("how", ["preempt", "vanish", "delete", "left"])
def test_place_whose_workers_end_as_soon_as_they_train_waits_ever_longer_until_one_has_trained_for_long(
    how: str,
) -> None:
    world = elastic_world(backoff_limit=100)
    before, until = world.created, world.now + 1800
    ends(world, B, how)
    while world.now < until:
        pod = world.workers[newest(world)]
        if pod.name not in (A, C) and pod.exit_code is None and pod.metrics.generation > 1:
            ends(world, pod.name, how)
        world.train(1)
        world.tick(5)
    assert 20 < world.created - before < 50
    settled(world, 150)
    ends(world, newest(world), "preempt")
    assert (len(world.tick().create) == 1) is (how != "left"), "of ends that do not count none is remembered"


@pytest.mark.parametrize(("between", "phase"), [(0, "Failed"), (8, "Running")])
def test_script_that_raises_at_the_same_step_in_another_worker_fails_the_job_unless_it_got_past_it(
    between: int, phase: str
) -> None:
    world = elastic_world()
    step = world.cluster.training.step
    world.workers[C].end_by_script(step)
    assert world.tick().phase == "Running"
    settled(world, between)
    world.workers[B].end_by_script(step)
    decision = world.tick()
    assert decision.phase == phase
    assert ("again, in another worker" in decision.reason) is (phase == "Failed")


def test_newcomer_of_a_place_knows_what_was_known_of_it() -> None:
    job = Job("job", (Group("fast", 2), Group("slow", 1)), global_batch=192)
    world = World(job, {"job-slow-0": 6.0}, protocol=MEMBERS_MAY_END)
    world.start().run(4)
    before = world.plan
    world.scales["job-slow-1"] = 6.0
    ends(world, "job-slow-0")
    settled(world)
    assert names(world.plan) == ["job-fast-0", "job-fast-1", "job-slow-1"]
    assert world.plan.batch_sizes == pytest.approx(before.batch_sizes, abs=4)


def test_newcomer_of_whose_like_nothing_is_known_gets_no_more_than_the_slowest() -> None:
    job = Job("job", (Group("fast", 1), Group("slow", 1)), global_batch=192)
    world = World(job, {"job-slow-0": 5.0}, protocol=MEMBERS_MAY_END)
    world.start().run(4)
    world.job = replace(world.job, groups=(*world.job.groups, Group("new", 1)))
    plans = []
    for _ in range(6):
        world.train(1)
        plans.append(world.tick(5).plan)
    joined = next(plan for plan in plans if plan is not None and len(plan.members) == 3)
    fast, slow, new = joined.batch_sizes
    assert fast > 3 * slow
    assert new <= slow + 1


def test_place_of_a_worker_that_ran_out_of_memory_gets_fewer_samples_also_when_all_start_again() -> None:
    world = MemoryWorld(Job("job", (Group("a", 2),), global_batch=300), protocol=MEMBERS_MAY_END)
    world.limit_mib = 2000.0
    world.start().run(2)
    world.workers[A].end_out_of_memory("out of memory")
    [said] = told([world.tick()], "WorkerFailed")
    assert world.memory.pending[0].known.memory_use.failed_batch == 150
    assert said.endswith(f"; {A} gets at most 75 samples instead of 150")
    world.workers[B].end_out_of_memory("out of memory")
    assert world.tick().phase == "Restarting"
    settled(world)
    assert names(world.plan) == [A, B]
    assert [row.memory_use.failed_batch for row in world.memory.workers] == [150, 300]


@pytest.mark.parametrize("how", ["exit", "preempt"])
def test_ends_of_more_workers_than_places_are_remembered(how: str) -> None:
    world = elastic_world(MOST_PENDING + 40, global_batch=1024)
    for name in list(world.workers)[:-2]:
        ends(world, name, how)
    decision = world.tick()
    assert len(world.memory.pending) <= MOST_PENDING
    assert len(world.memory.to_json()) < (MOST_PENDING + 40) * 400
    if how == "exit":
        assert decision.phase == "Restarting"
        return
    assert len(names(decision.plan)) == 2
    settled(world)
    assert len(names(world.plan)) == MOST_PENDING + 40


FAST, SLOW = "job-a-0", "job-a-1"


def learned(world: World, intervals: int = 6) -> World:
    world.run(intervals)
    return world


def restarted(world: World) -> tuple[int, ...]:
    """The batches of the first plan of the next generation."""
    next(iter(world.workers.values())).end(143, disrupted=True)
    return first_batches(world)


def resized(world: World, *groups: Group) -> tuple[int, ...]:
    """The same, after an edit of the groups."""
    world.job = replace(world.job, groups=groups)
    return first_batches(world)


def first_batches(world: World) -> tuple[int, ...]:
    generation = world.memory.generation
    for _ in range(5):
        plan = world.tick(5).plan
        if plan is not None and plan.generation > generation:
            return plan.batch_sizes
    raise AssertionError("no plan of a new generation")


def two_nodes(**changes: object) -> World:
    """Two workers of one group, on a fast and on a slow node."""
    job = Job("job", (Group("a", 2),), global_batch=192)
    world = World(replace(job, **changes), {FAST: 1.0, SLOW: 3.0})
    world.nodes = {FAST: "fast", SLOW: "slow"}
    return learned(world.start())


def test_new_worker_of_a_known_group_begins_with_the_share_of_its_like() -> None:
    world = learned(hetero_world(scales=(1, 4)))
    world.scales["job-g1-1"] = 4.0
    batches = resized(world, Group("g0", 1), Group("g1", 2))
    assert sum(batches) == 192
    assert batches[1] == pytest.approx(batches[2], abs=2)
    assert world.imbalance() < 1.1
    assert "job-g1-1 as job-g1-0 was" in world.decisions[-1].reason


@pytest.mark.parametrize("forgetful", [False, True])
def test_workers_that_changed_places_begin_with_what_is_known_of_these_as_a_prediction(forgetful: bool) -> None:
    world = two_nodes()
    world.forgetful = forgetful
    (fast, slow), ended = world.plan.batch_sizes, [worker.batch_cost.speed for worker in world.memory.workers]
    assert fast > 2 * slow
    world.nodes, world.scales = {FAST: "slow", SLOW: "fast"}, {FAST: 3.0, SLOW: 1.0}
    assert restarted(world) == pytest.approx((slow, fast), abs=4)
    assert f"{FAST} as {SLOW} was" in world.decisions[-1].reason
    known = world.memory.workers
    assert [each.batch_cost.speed for each in known] == pytest.approx(ended[::-1], rel=0.05)
    assert [each.batch_cost.predicted for each in known] == [1, 1]
    before = world.memory.batching.adjustments
    learned(world)
    assert world.memory.batching.adjustments <= before + 1
    assert world.imbalance() < 1.1


@pytest.mark.parametrize("changes", [{"policy": "Uniform"}, {"dry_run": True}], ids=str)
def test_job_that_does_not_follow_speeds_begins_as_ever(changes: dict[str, object]) -> None:
    world = two_nodes(**changes)
    world.scales["job-a-2"] = 1.0
    assert set(resized(world, Group("a", 3))) == {64}


JOINER = "job-a-3"


def joined(factors: tuple[float, ...], *, scale: float = 1.0) -> tuple[tuple[int, ...], World]:
    """The batches of the plan by which a worker joins two others of its speed, once its warm-up has shown so many times
    the seconds that they take, and the world."""
    world = World(Job("job", (Group("a", 3),), global_batch=192), protocol=3)
    world.start().run(4)
    world.scales[JOINER] = scale
    world.workers[B].end(137)
    world.tick()
    joiner = world.workers[JOINER]
    shown = zip((32, 64), factors, strict=False)
    seconds = [(batch, factor * (world.fixed + world.per_sample * batch)) for batch, factor in shown]
    joiner.metrics = replace(joiner.metrics, warm_up=tuple(seconds))
    for _ in range(6):
        world.train(1)
        plan = world.tick(5).plan
        if plan is not None and JOINER in names(plan):
            return plan.batch_sizes, world
    raise AssertionError("it never joined")


def test_a_worker_that_warmed_up_slowly_begins_with_less() -> None:
    batches, world = joined((4.0, 4.0), scale=4.0)
    assert sum(batches) == 192
    assert batches[2] < batches[0] / 2.5
    assert world.imbalance() < 1.25


@pytest.mark.parametrize("factors", [(), (0.2, 0.2), (1.1, 1.2), (4.0, 0.9)])
def test_a_worker_that_was_not_clearly_slower_begins_as_its_like(factors: tuple[float, ...]) -> None:
    batches, _ = joined(factors)
    assert max(batches) - min(batches) <= 8


def test_an_absurd_warm_up_is_believed_in_part() -> None:
    cost = BatchCost(1.0, 10.0, 640.0, 50000.0, 64.0, 4500.0)
    metrics = WorkerMetrics(0, warm_up=((64, 1e9),))
    predictor = predictor_of(Job("job", (Group("a", 1),), global_batch=64))
    assert slowness(cost, metrics, predictor) == MOST_SLOWNESS
    assert slowness(cost, replace(metrics, plan_version=3), predictor) == 1.0, "it is measured now"
    assert slowness(BatchCost(), metrics, predictor) == 1.0, "nothing is expected of it"


def test_limit_that_memory_set_to_a_predecessor_holds_at_another_place() -> None:
    world = two_nodes()
    first, second = world.memory.workers
    small = MemoryUse(guessed_batch=40, failed_batch=80)
    world.memory = replace(world.memory, workers=(first._replace(memory_use=small), second))
    world.nodes, world.scales = {FAST: "slow", SLOW: "fast"}, {FAST: 3.0, SLOW: 1.0}
    restarted(world)
    assert [worker.memory_use.failed_batch for worker in world.memory.workers] == [80, 0]


def test_limit_of_a_new_worker_is_taken_into_account() -> None:
    world = World(Job("job", (Group("a", 1), Group("b", 1)), 192), {"job-a-0": 1.0, "job-b-0": 2.0})
    world.limits = {"job-a-0": 1.0, "job-b-0": 0.5}
    learned(world.start())
    world.limits["job-b-1"], world.scales["job-b-1"] = 0.25, 4.0
    resized(world, Group("a", 1), Group("b", 2))
    assert world.imbalance() < 1.15
