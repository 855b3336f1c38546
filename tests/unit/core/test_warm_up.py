"""A worker that was clearly slower than its like while it warmed up begins with fewer samples, and never with more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain_operator.core.lifecycle.prior import MOST_SLOWNESS, slowness
from heterotrain_operator.core.model import Group, Job, WorkerMetrics
from heterotrain_operator.core.prediction import predictor_of
from heterotrain_operator.core.prediction.batch_cost import BatchCost
from unit.core.members import B, names
from unit.core.traces import World

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
