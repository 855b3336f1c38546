"""Workers begin with what is known of their places and of their warm-up, and nobody too boldly."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain_operator.core.lifecycle.prior import MOST_SLOWNESS, slowness
from heterotrain_operator.core.model import Group, Job, WorkerMetrics
from heterotrain_operator.core.prediction import predictor_of
from heterotrain_operator.core.prediction.batch_cost import BatchCost
from heterotrain_operator.core.prediction.memory_model import MemoryUse
from unit.core.jobs import B, names
from unit.core.traces import World, hetero_world

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
    world = World(replace(job, **changes), {FAST: 1.0, SLOW: 3.0})  # type: ignore[arg-type]  # the tests' care
    world.nodes = {FAST: "fast", SLOW: "slow"}
    return learned(world.start())


def worst(world: World) -> float:
    """The slowest worker's time, relative to the mean."""
    times = world.true_seconds()
    return max(times) / (sum(times) / len(times))


def test_new_worker_of_a_known_group_begins_with_the_share_of_its_like() -> None:
    world = learned(hetero_world(scales=(1, 4)))
    world.scales["job-g1-1"] = 4.0
    batches = resized(world, Group("g0", 1), Group("g1", 2))
    assert sum(batches) == 192
    assert batches[1] == pytest.approx(batches[2], abs=2)
    assert worst(world) < 1.1
    assert "job-g1-1 as job-g1-0 was" in world.decisions[-1].reason


@pytest.mark.parametrize("forgetful", [False, True])
def test_workers_that_changed_places_begin_with_what_is_known_of_these_as_a_prediction(forgetful: bool) -> None:
    world = two_nodes()
    world.forgetful = forgetful
    assert world.plan is not None
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
    assert worst(world) < 1.1


def test_limit_that_memory_set_to_a_predecessor_holds_at_another_place() -> None:
    world = two_nodes()
    first, second = world.memory.workers
    small = MemoryUse(guessed_batch=40, failed_batch=80)
    world.memory = replace(world.memory, workers=(first._replace(memory_use=small), second))
    world.nodes, world.scales = {FAST: "slow", SLOW: "fast"}, {FAST: 3.0, SLOW: 1.0}
    restarted(world)
    assert [worker.memory_use.failed_batch for worker in world.memory.workers] == [80, 0]


def test_workers_at_their_old_places_begin_with_exactly_their_batches_and_their_measured_speeds() -> None:
    world = two_nodes()
    assert world.plan is not None
    before, ended = world.plan.batch_sizes, [worker.batch_cost.speed for worker in world.memory.workers]
    assert restarted(world) == before
    assert "the batches of plan" in world.decisions[-1].reason
    known = [worker.batch_cost for worker in world.memory.workers]
    assert [cost.speed for cost in known] == pytest.approx(ended, rel=0.05)
    assert [cost.predicted for cost in known] == [0, 0]


def test_group_of_which_nothing_is_known_begins_with_equal_shares() -> None:
    world = learned(hetero_world(scales=(1, 4)))
    assert set(resized(world, Group("g0", 1), Group("g1", 1), Group("new", 1))) == {64}


@pytest.mark.parametrize("changes", [{"policy": "Uniform"}, {"dry_run": True}], ids=str)
def test_job_that_does_not_follow_speeds_begins_as_ever(changes: dict[str, object]) -> None:
    world = two_nodes(**changes)
    world.scales["job-a-2"] = 1.0
    assert set(resized(world, Group("a", 3))) == {64}


def test_caution_that_whole_steps_did_not_bear_out_is_not_believed_by_the_next_generation() -> None:
    """Of equally fast workers those whose times vary more get fewer samples, as far as that is believed."""
    steady, noisy, slow = Group("steady", 4), Group("noisy", 4), Group("slow", 1)
    job = Job("job", (steady, noisy, slow), global_batch=64 * 9)
    fewer = []
    for believed in (1.0, 0.0):
        world = World(job, {f"job-slow-{index}": 6.0 for index in range(2)}, noise_of={"noisy": 0.3}, seed=1)
        learned(world.start(), 30)
        world.memory = replace(world.memory, batching=replace(world.memory.batching, believed=believed))
        batches = resized(world, steady, noisy, replace(slow, replicas=2))
        fewer.append(1 - sum(batches[4:8]) / sum(batches[:4]))
    assert fewer[0] > 0.15
    assert fewer[1] < 0.5 * fewer[0]


# --- who was clearly slower than its like while it warmed up begins with fewer samples, and never with more ------

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
    times = world.true_seconds()
    assert max(times) < 1.25 * sum(times) / len(times)


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
