"""Whole traces: from equal batches to balance in a few adjustments, and still from then on, in spite of noise."""

from __future__ import annotations

import itertools
from dataclasses import replace
from statistics import fmean

import pytest

from heterotrain_operator.core.batching.policies import Proposal
from heterotrain_operator.core.batching.rollback import reviewed
from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.core.remembered.batching import Promises
from heterotrain_operator.core.split.allocation import Line, waterfill
from heterotrain_operator.core.state import Remembered
from unit.core.traces import ThrottledWorld, World, hetero_job, hetero_world, seat

LONG = pytest.mark.long
TOLERANCE = 1.10
QUIET_INTERVALS = 20


def until_still(world: World, limit: int = 60) -> int:
    """Train until no batch changed for twenty intervals; the adjustments it took."""
    adjustments = quiet = 0
    for _ in range(limit):
        if quiet == QUIET_INTERVALS:
            return adjustments
        quiet += 1
        if world.run(1)[0].plan is not None:
            adjustments, quiet = adjustments + 1, 0
    raise AssertionError(f"still adjusting after {limit} intervals")


@pytest.mark.parametrize(
    ("policy", "fixed", "noise", "seed"),
    [
        ("Proportional", 0.003, 0.0, 4),
        ("Proportional", 0.003, 0.12, 4),
        ("Optimal", 0.016, 0.0, 4),
        ("Optimal", 0.016, 0.12, 4),
        *(
            pytest.param(policy, fixed, noise, seed, marks=LONG)
            for policy, fixed in (("Proportional", 0.003), ("Optimal", 0.003), ("Optimal", 0.016))
            for noise in (0.06, 0.12)
            for seed in (5, 6, 7)
        ),
    ],
)
def test_unequal_workers_are_balanced_by_two_adjustments_and_by_a_few_more_in_noise(
    policy: str, fixed: float, noise: float, seed: int
) -> None:
    world = hetero_world(policy, noise=noise, seed=seed, fixed=fixed)
    assert world.imbalance() > 1.5
    assert until_still(world) <= (5 if noise else 2)
    assert world.imbalance() <= TOLERANCE
    assert world.plan.global_batch_size == 192


@pytest.mark.parametrize(
    ("policy", "scales", "totals"),
    [
        ("Uniform", (1, 2, 4), []),
        ("Static", (1, 2, 4), []),
        ("Optimal", (1, 1, 1, 1), []),  # equal workers are left alone
        ("Profile", (1, 2, 4), [192, 115, 250, 154]),
        ("Profile", (1, 1, 1), [114, 249, 153]),  # its second plan is its first
    ],
)
def test_what_needs_no_balance_never_moves_and_a_profile_ends(
    policy: str, scales: tuple[float, ...], totals: list[int]
) -> None:
    world = hetero_world(policy, scales, noise=0.12 if policy == "Optimal" else 0.0, seed=3)
    assert [each.plan.global_batch_size for each in world.run(8) if each.plan is not None] == totals


def throttled_world(noise: float, seed: int) -> ThrottledWorld:
    scales = {"job-g0-0": 0.336, "job-g1-0": 0.51}
    world = ThrottledWorld(hetero_job("Optimal", (1, 1)), scales, noise=noise, seed=seed, fixed=0.0)
    world.start()
    return world


@pytest.mark.parametrize(
    ("noise", "seed"), [(0.06, 0), *(pytest.param(noise, seed, marks=LONG) for noise in (0.0, 0.12) for seed in (1, 2))]
)
def test_a_step_that_no_line_describes_is_not_chased(noise: float, seed: int) -> None:
    world = throttled_world(noise, seed)
    plans, seconds = [], []
    for _ in range(300):
        plans.append(world.run(1)[0].plan is not None)
        seconds.append(max(world.true_seconds()))
    assert sum(plans[:40]) <= 12
    assert sum(plans) <= 50
    # The best split of this world takes 1.5 * 0.336 ms * 116 samples.
    assert fmean(seconds[40:]) <= 1.05 * 1.5 * 0.336e-3 * 116


def test_split_that_made_the_step_slower_is_taken_back_by_half_until_a_speed_changes() -> None:
    world = throttled_world(0.0, 0)
    decisions = world.run(8)
    moves = [(decision.plan.batch_sizes, decision.reason) for decision in decisions if decision.plan is not None]
    at = next(rank for rank, (_, why) in enumerate(moves) if "half of which is taken back" in why)
    (first, _), (failed, _), (back, _) = moves[at - 2 : at + 1]
    assert all(abs(new - (a + b) / 2) <= 0.5 for new, a, b in zip(back, first, failed, strict=True))
    assert any("not believed" in decision.reason for decision in decisions if decision.plan is None)
    assert world.memory.promises.doubt > 0.1
    world.workers["job-g1-0"].scale *= 3
    assert world.run(1)[0].plan is not None
    assert world.memory.promises.doubt == 0.0


def review(promises: Promises, seconds: float, proposal: Proposal) -> tuple[Promises, Proposal]:
    """Of a step that took so long."""
    memory, proposal = reviewed(Remembered(promises=promises), [seat(seconds, 64, variation=0.01)], proposal)
    return memory.promises, proposal


@pytest.mark.parametrize(("replaced", "doubted"), [(0.3, False), (0.15, True)])
def test_split_that_helped_less_than_it_promised_raises_no_doubt(replaced: float, doubted: bool) -> None:
    """A step of 0.1 s was promised, and 0.2 s came: after one of 0.3 s that helped, after one of 0.15 s it did not."""
    promises, _ = review(Promises(promised_seconds=0.1, replaced_seconds=replaced), 0.2, Proposal(None, "kept"))
    assert (promises.doubt > 0) is doubted
    assert promises.promised_seconds == 0.0


@pytest.mark.parametrize(("seconds", "ends"), [(0.42, True), (0.395, True), (0.34, False)])
def test_way_back_that_regains_next_to_nothing_ends(seconds: float, ends: bool) -> None:
    """The split took 0.4 s instead of 0.2 s. Half of it was taken back, and should be half as bad: who became slow in
    the same step is slow at any batches."""
    promises = Promises(replaced_seconds=0.2, retreated_seconds=0.4, doubt=0.5, missed_promises=1)
    after, proposal = review(promises, seconds, Proposal((64,), "moved", saving=0.3))
    assert (after == Promises()) is ends
    assert (proposal.batches is not None) is ends


IDLE_FIXED = 0.03
IDLE_SCALES = (1.0, 2.0, 2.0)


def idle_world(*, slow: float = 30.0, noise: float = 0.05, seed: int = 0, forgetful: bool = False) -> World:
    """The fastest of three workers is slowed until it has no samples."""
    job = Job("job", tuple(Group(f"g{rank}", 1, batch_min=0) for rank in range(3)), 192)
    scales = {f"job-g{rank}-0": scale for rank, scale in enumerate(IDLE_SCALES)}
    world = World(job, scales, fixed=IDLE_FIXED, noise=noise, seed=seed, forgetful=forgetful).start()
    world.run(6)
    world.workers["job-g0-0"].scale = slow
    for _ in range(20):
        world.run(1)
        if batches(world)[0] == 0:
            break
    assert batches(world)[0] == 0
    return world


def batches(world: World) -> tuple[int, ...]:
    return world.plan.batch_sizes


def best_split_seconds(world: World, scales: tuple[float, ...]) -> float:
    lines = [Line(scale * world.fixed, scale * world.per_sample) for scale in scales]
    best = waterfill(lines, 192, [(0, 192)] * len(lines))
    return max(line.at(batch) for line, batch in zip(lines, best, strict=True) if batch)


def step_seconds(world: World) -> float:
    return max(second for second, batch in zip(world.true_seconds(), batches(world), strict=True) if batch)


@pytest.mark.parametrize(
    ("slow", "forgetful"), [(10.0, True), pytest.param(30.0, False, marks=LONG), pytest.param(30.0, True, marks=LONG)]
)
def test_a_worker_that_recovered_comes_back(slow: float, forgetful: bool) -> None:
    world = idle_world(slow=slow, forgetful=forgetful)
    world.workers["job-g0-0"].scale = 1.0
    world.run(120)
    assert any("job-g0-0 is tried again with" in each.reason for each in world.decisions)
    assert step_seconds(world) < 1.05 * best_split_seconds(world, IDLE_SCALES)


@LONG
@pytest.mark.parametrize("slow", [10.0, 30.0, 200.0])
def test_retries_of_a_worker_that_stays_slow_grow_rare_and_cost_little(slow: float) -> None:
    world = idle_world(slow=slow)
    ideal = best_split_seconds(world, (slow, *IDLE_SCALES[1:]))
    taken, retried = 0.0, []
    for interval in range(1500):
        before = world.plan
        taken += step_seconds(world)
        world.run(1)
        if world.plan is not before and batches(world)[0] > 0:
            retried.append(interval)
    assert 2 <= len(retried) <= 8
    gaps = [later - earlier for earlier, later in itertools.pairwise(retried)]
    assert all(later > 1.5 * earlier for earlier, later in itertools.pairwise(gaps))
    assert taken / 1500 < {10.0: 1.015, 30.0: 1.02, 200.0: 1.07}[slow] * ideal


@pytest.mark.parametrize(("limit", "scale"), [(1.5, 1.0), (0.5, 30.0)])
def test_a_raised_cpu_limit_is_a_reason_to_try_at_once_and_a_lowered_one_is_none(limit: float, scale: float) -> None:
    world = idle_world()
    for worker in world.workers.values():
        worker.cpu_limit = 1.0
    world.run(2)
    assert batches(world)[0] == 0
    world.workers["job-g0-0"].cpu_limit, world.workers["job-g0-0"].scale = limit, scale
    world.run(1)
    world.tick()
    assert (batches(world)[0] > 0) is (limit > 1)


def test_a_worker_that_comes_to_another_node_is_tried_at_once() -> None:
    world = idle_world()
    for name, worker in world.workers.items():
        worker.node = world.nodes[name] = f"node-{name}"
    world.memory = replace(world.memory, workers=tuple(known._replace(place=7) for known in world.memory.workers))
    world.nodes["job-g0-0"] = "another"
    world.scales["job-g0-0"] = 1.0
    world.workers["job-g0-0"].end(137, message="the node was drained", disrupted=True)
    for _ in range(6):
        world.tick(20)
    world.run(4)
    assert batches(world)[0] > 0
