"""A quorum of the workers that are read steers; whoever is not read keeps its batch, and is named."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from heterotrain_operator.clusters.simulated.pod import SimulatedPod
from heterotrain_operator.core.model import Decision, Group, Job
from heterotrain_operator.core.split.allocation import Line, waterfill
from unit.core.jobs import condition
from unit.core.traces import World, hetero_world

ADAPTIVE = ("Proportional", "Optimal")


def batches(world: World) -> tuple[int, ...]:
    assert world.plan is not None
    return world.plan.batch_sizes


class LossyWorld(World):
    """Each look misses each worker's metrics with the chance `lost`, one independently of the other."""

    lost = 0.01

    def tick(self, seconds: float = 1.0) -> Decision:
        if self.plan is not None:
            for worker in self.workers.values():
                worker.answers = self.random.random() >= self.lost
        return super().tick(seconds)


def excess(world: World) -> float:
    """The realised step over the oracle's, by the true times."""
    assert world.plan is not None
    members = [world.workers[m.name] for m in world.plan.members]
    lines = [Line(w.scale * world.fixed, w.scale * world.per_sample) for w in members]
    total = world.plan.global_batch_size
    best = waterfill(lines, total, [(1, total)] * len(lines))
    return max(world.true_seconds()) / max(line.at(b) for line, b in zip(lines, best, strict=True))


@pytest.mark.parametrize("policy", ADAPTIVE)
def test_a_worker_that_is_never_read_keeps_its_batch_and_the_others_are_balanced(policy: str) -> None:
    world = hetero_world(policy, (1, 2, 4, 4), fixed=0.0)
    world.workers["job-g3-0"].answers = False
    world.run(30)
    assert batches(world)[3] == 48
    fast, middle, slow, _ = batches(world)
    assert fast + middle + slow == 144
    assert (fast, middle, slow) == pytest.approx((82, 41, 21), abs=2)


def test_one_lost_scrape_leaves_nobody_out() -> None:
    world = hetero_world(scales=(1, 2, 4))
    world.train(10)
    world.workers["job-g2-0"].answers = False
    waiting = world.tick()
    assert waiting.plan is None
    assert "metrics cannot be read of job-g2-0" in waiting.reason
    world.workers["job-g2-0"].answers = True
    decided = world.tick()
    assert decided.plan is not None
    assert batches(world)[2] < 64


@pytest.mark.parametrize(("scales", "unread"), [((1, 2, 4), 2), ((1, 2, 4, 4), 3)])
def test_fewer_than_half_of_the_workers_are_no_quorum(scales: tuple[float, ...], unread: int) -> None:
    world = hetero_world(scales=scales)
    for rank in range(unread):
        world.workers[f"job-g{rank}-0"].answers = False
    for decision in world.run(10):
        assert decision.plan is None
    assert "no quorum" in world.decisions[-1].reason
    assert len(set(batches(world))) == 1


def test_workers_with_less_than_half_of_the_samples_are_no_quorum() -> None:
    world = hetero_world(scales=(1, 8, 8))
    world.run(8)
    assert batches(world)[0] > 96
    world.workers["job-g0-0"].answers = False
    world.workers["job-g1-0"].scale = 2.0
    world.run(10)
    assert "no quorum" in world.decisions[-1].reason


@pytest.mark.parametrize("policy", ADAPTIVE)
@pytest.mark.parametrize("lost", [0.0, 0.01])
def test_a_thousand_workers_of_whose_scrapes_some_are_lost_are_balanced(policy: str, lost: float) -> None:
    rng = random.Random(5)
    job = Job("job", (Group("cpu", 1000),), 64_000, policy=policy)
    world = LossyWorld(job, {f"job-cpu-{index}": rng.choice((1, 2, 4)) for index in range(1000)}, fixed=0.004, seed=3)
    world.lost = lost
    world.start()
    for _ in range(6):
        world.train(5)
        world.tick()
        world.train(5)
        world.tick()
    assert excess(world) < 1.03
    assert world.memory.batching.adjustments <= 4


def spoil(worker: SimulatedPod, name: str, value: float) -> None:
    worker.metrics = replace(worker.metrics, **{name: value})  # type: ignore[arg-type]  # names are the tests' care


@pytest.mark.parametrize(
    ("name", "value"),
    [("own_seconds", math.nan), ("own_seconds", 0.0), ("own_seconds", 1e300), ("steps", 0.0), ("steps", math.nan)],
)
@pytest.mark.parametrize("policy", ADAPTIVE)
def test_counters_that_are_never_usable_degrade_the_job_and_are_left_out(policy: str, name: str, value: float) -> None:
    world = hetero_world(policy, (1, 2, 4, 4), fixed=0.0)
    for _ in range(30):
        world.train(10)
        spoil(world.workers["job-g3-0"], name, value)
        world.tick()
    fast, middle, slow, unusable = batches(world)
    assert unusable == 48
    assert (fast, middle, slow) == pytest.approx((82, 41, 21), abs=2)
    degraded = condition(world.decisions[-1])
    assert (degraded.status, degraded.reason) == (True, "CountersUnusable")
    assert "job-g3-0" in degraded.message
    told = [event for decision in world.decisions for event in decision.events if event.reason == "CountersUnusable"]
    assert len(told) == 1
    assert told[0].kind == "Warning"
    assert "job-g3-0" in told[0].message
    # Usable again, it is taken in, and the job is well.
    worker = world.workers["job-g3-0"]
    worker.metrics = replace(worker.metrics, steps=0.0, own_seconds=0.0, own_seconds_squared=0.0)
    world.run(8)
    assert not condition(world.decisions[-1]).status
    assert excess(world) < 1.05


def test_a_worker_that_is_never_read_is_reported_once_and_named_as_long_as_it_is_silent() -> None:
    world = hetero_world(scales=(1, 2, 4, 4))
    world.workers["job-g3-0"].answers = False
    world.run(30)
    told = [event for decision in world.decisions for event in decision.events if event.reason == "WorkerUnreadable"]
    assert len(told) == 1
    assert "job-g3-0" in told[0].message
    assert "keeps its 48 samples" in told[0].message
    assert condition(world.decisions[-1]).reason == "WorkersImpaired"
    assert "job-g3-0" in condition(world.decisions[-1]).message


# --- a gross imbalance is acted on after a few steps, and a small one waits for the interval ---------------------


def steps_until_a_move(world: World, limit: int = 10) -> int:
    """One look after each step."""
    for step in range(1, limit + 1):
        world.train(1)
        if world.tick().plan is not None:
            return step
    return limit + 1


@pytest.mark.parametrize("scales", [(1, 2, 4), (1, 1, 4, 1, 2, 1, 3, 1)])
def test_first_move_comes_after_three_steps_at_four_times_the_speed(scales: tuple[float, ...]) -> None:
    steps = sorted(steps_until_a_move(hetero_world(scales=scales, noise=0.1, seed=seed)) for seed in range(10))
    assert steps[-3] <= 3
    assert steps[-1] <= 4


@pytest.mark.parametrize("seed", range(5))
def test_small_imbalance_waits_for_the_interval(seed: int) -> None:
    assert steps_until_a_move(hetero_world(scales=(1, 1.15, 1.2), noise=0.05, seed=seed)) >= 10


def test_noise_alone_moves_nothing_at_any_look() -> None:
    moves = 0
    for seed in range(30):
        world = hetero_world(scales=(1,) * 8, noise=0.15, seed=seed)
        for _ in range(60):
            world.train(1)
            moves += world.tick().plan is not None
    assert moves <= 3


def test_every_worker_needs_two_steps() -> None:
    world = hetero_world(scales=(1, 40))
    world.train(1)
    assert world.tick().plan is None
    world = hetero_world()
    world.train(4)
    late = world.workers["job-g1-0"]
    late.metrics = replace(late.metrics, steps=1.0, own_seconds=0.1, own_seconds_squared=0.01)
    assert world.tick().plan is None


def test_profile_and_dry_run_keep_their_intervals() -> None:
    world = hetero_world("Profile")
    world.train(9)
    assert world.tick().plan is None
    world = hetero_world(dry_run=True)
    world.train(4)
    assert world.tick().reason.startswith("dry run, nothing changes"), "it says what it would do at once, too"
