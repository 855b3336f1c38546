"""When a decision about batches is taken, on what, and what becomes of figures that cannot be.

CPU limits that change are followed by what they let predict, before anything is measured.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from statistics import fmean

import pytest

from heterotrain_operator.core.batching.policy import Proposal, Seat
from heterotrain_operator.core.batching.rebalance import evidence_of, with_patience
from heterotrain_operator.core.batching.words import BALANCE_TOLERANCE, balance
from heterotrain_operator.core.decide import decide
from heterotrain_operator.core.model import Condition, Group, Job
from heterotrain_operator.core.prediction.predictors.ema import predict
from heterotrain_operator.core.prediction.step_time import Estimate, StepTime
from heterotrain_operator.core.remembered_worker import RememberedWorker
from heterotrain_operator.core.state import Remembered
from unit.core.traces import World, hetero_world


def last(world: World, kind: str) -> Condition:
    return next(c for c in world.decisions[-1].conditions if c.type == kind)


def test_no_small_move_before_every_worker_has_its_interval_of_steps() -> None:
    world = hetero_world(scales=(1, 1.1, 1.2))
    world.train(9)
    decision = world.tick()
    assert decision.plan is None
    assert "has 9 of 10 measured steps" in decision.reason
    world.train(1)
    assert world.tick().plan is not None


def test_steps_under_an_older_plan_do_not_count() -> None:
    world = hetero_world()
    world.train(10)
    world.tick()
    decision = world.tick()
    assert decision.plan is None
    assert "plan 2 is not followed yet by job-g0-0 (training, plan 1)" in decision.reason


def test_steps_that_take_no_time_that_a_number_can_hold_move_nothing() -> None:
    world = hetero_world("Uniform")
    for steps, seconds in ((0.0, 1.0), (7e53, 1.7e-270)):
        for pod, counted in zip(world.workers.values(), (steps, 0.0, 0.0), strict=True):
            pod.metrics = replace(pod.metrics, plan_version=1, steps=counted, own_seconds=seconds, samples=0.0)
        assert world.tick().plan is None


def test_rebalancing_keeps_generation_members_and_global_batch_and_tells_why() -> None:
    world = hetero_world(apply_at="epoch")
    before = world.plan
    decision = world.run(1)[0]
    assert decision.plan.generation == before.generation
    assert decision.plan.version == before.version + 1
    assert decision.plan.apply_at == "epoch"
    assert [m.uid for m in decision.plan.members] == [m.uid for m in before.members]
    assert decision.plan.global_batch_size == 192
    fast, middle, slow = decision.plan.batch_sizes
    assert fast > middle > slow
    assert [event.reason for event in decision.events] == ["BatchRebalanced"]
    assert "job-g2-0 takes 264 ms at 64 samples, the median is 132 ms" in decision.reason
    assert "to job-g0-0 saves 57 % of the step" in decision.reason


def test_same_observation_rebalances_once() -> None:
    world = hetero_world()
    world.train(10)
    seen = world.seen()
    first, memory = decide(world.job, seen, world.memory, world.now)
    second, _ = decide(world.job, seen, memory, world.now)
    assert first.plan is not None
    assert second.plan is None


def test_dry_run_publishes_the_first_plan_and_then_only_explains() -> None:
    world = hetero_world(dry_run=True)
    decision = world.run(1)[0]
    assert decision.plan is None
    assert decision.reason.startswith("dry run, nothing changes: job-g2-0 takes")
    assert [event.reason for event in decision.events] == ["DryRun"]


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 0.0, -3.0, 1e300])
@pytest.mark.parametrize("policy", ["Proportional", "Optimal", "Profile"])
def test_impossible_own_times_are_ignored_with_a_reason_and_spoil_nothing(policy: str, seconds: float) -> None:
    world = hetero_world(policy)
    world.train(10)
    worker = world.workers["job-g1-0"]
    good, worker.metrics = worker.metrics, replace(worker.metrics, own_seconds=seconds)
    decision = world.tick()
    assert decision.plan is None
    assert "job-g1-0" in decision.reason
    assert "ignored the window of job-g1-0" in decision.reason or "measured steps" in decision.reason
    worker.metrics = good
    assert any(decision.plan is not None for decision in world.run(2))


def test_worker_without_samples_neither_holds_decisions_up_nor_moves_them() -> None:
    groups = tuple(Group(f"g{rank}", 1, batch_min=0) for rank in range(3))
    world = World(Job("job", groups, 2), {"job-g0-0": 1.0, "job-g1-0": 1.0}).start()
    assert world.plan.batch_sizes == (1, 1, 0)
    world.train(10)
    idle = world.workers["job-g2-0"]
    idle.metrics = replace(idle.metrics, steps=0.0, own_seconds=0.0, own_seconds_squared=0.0)
    decision = world.tick()
    assert "the best split saves" in decision.reason


def test_policy_changed_while_running_takes_over() -> None:
    world = hetero_world("Uniform")
    world.run(2)
    world.job = replace(world.job, policy="Optimal")
    assert world.run(1)[0].plan is not None
    world.job = replace(world.job, policy="Uniform")
    plan = world.run(1)[0].plan
    assert plan.batch_sizes == (64, 64, 64)


def test_balances_figure_and_condition_agree_also_after_a_worker_has_changed_its_speed() -> None:
    """The means since the plan began still hold the time before the change."""
    world = hetero_world("Uniform", (1, 1, 1))
    for scale in (1.0, 1.0, 1.0, *[2.0] * 8):
        world.workers["job-g2-0"].scale = scale
        (decision,) = world.run(1)
        assert decision.imbalance is not None
        assert last(world, "Balanced").status == (decision.imbalance <= BALANCE_TOLERANCE)
        (told,) = re.findall(r"([0-9.]+) % above the mean", last(world, "Balanced").message)
        assert float(told) == pytest.approx(100 * decision.imbalance, rel=0.05, abs=0.6)
    assert decision.imbalance == pytest.approx(2 / (4 / 3) - 1, rel=0.02)
    for worker in world.workers.values():
        worker.end(0, finished=True)
    world.tick()
    world.tick()
    assert last(world, "Succeeded").status
    assert not last(world, "Balanced").status, "it is still told when the job is over"


def test_no_balance_is_told_before_all_that_have_samples_are_measured_under_the_plan() -> None:
    world = hetero_world("Uniform", (1, 1, 1))
    assert world.tick().imbalance is None
    plan = world.plan
    half = (RememberedWorker(StepTime(mean_seconds=1.0, steps=10.0)), RememberedWorker(), RememberedWorker())
    memory = Remembered(plan_version=plan.version, workers=half)
    told = balance(plan, memory)
    assert told == (None, f"no own time of job-g1-0, job-g2-0 is measured under plan {plan.version}", None)
    idle = tuple(replace(member, batch_size=0) for member in plan.members)
    assert balance(replace(plan, members=(plan.members[0], *idle[1:])), memory)[2] == 0.0
    assert balance(replace(plan, members=idle), memory)[0] is None
    assert balance(replace(plan, version=99), memory)[2] is None


BETTER = Proposal((60, 68), "moving 4 samples", saving=0.05)
KEPT = Proposal(None, "batches stay", likely=BETTER)


@pytest.mark.parametrize(
    ("steps", "rested_on", "how", "taken"),
    [
        (150, 100, {}, True),  # 5 % are 3 standard errors of 150 steps
        (149, 100, {}, False),
        (15, 1, {}, False),  # and 0.97 of 15
        (20, 1, {"workers": 8}, True),  # and 1.1 of 20
        (20, 1, {"workers": 32}, False),  # of more workers the slowest seems slower by chance
        (1000, 0, {}, False),  # batches that no estimates chose leave only for what is sure
        (150, 100, {"inflation": 1.1}, False),  # steps that are alike count as fewer
        (90, 100, {"urgent": True}, True),  # a straggler's jump has cut the evidence down
        (90, 100, {}, False),
        (100, 100, {"urgent": True}, False),
    ],
)
def test_small_gain_is_taken_once_the_evidence_has_grown(
    steps: float, rested_on: float, how: dict[str, float], taken: bool
) -> None:
    estimate = Estimate(0.1, 0.02**2, steps, how.get("inflation", 1.0))
    seats = [Seat(str(rank), Group("g", 1), 64, (1, 128), estimate) for rank in range(int(how.get("workers", 2)))]
    urgent = bool(how.get("urgent"))
    assert with_patience(rested_on, evidence_of(seats), seats, KEPT, urgent=urgent) is (BETTER if taken else KEPT)


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 6), marks=pytest.mark.long)])
def test_noise_of_forty_per_cent_keeps_no_wrong_split_and_causes_few_plans(seeds: range) -> None:
    """The best step is that of workers at 1, 1.5, 2 and 4 times 2 ms and 1 ms a sample."""
    best = (512 + 4 * 2) * 0.001 / (1 + 1 / 1.5 + 1 / 2 + 1 / 4)
    plans, over = [], []
    for seed in seeds:
        world = hetero_world(scales=(1, 1.5, 2, 4), noise=0.4, seed=seed, global_batch=512)
        world.run(30)
        steps, moved = [], 0
        for _ in range(60):
            moved += world.run(1)[0].plan is not None
            steps.append(max(world.true_seconds()))
        plans.append(moved)
        over.append(fmean(steps) / best)
    assert fmean(plans) <= 2
    assert fmean(over) <= 1.05


def resized_world(scales: tuple[float, ...] = (1, 1), device: str = "cpu", factor: float = 0.5) -> World:
    """Two workers in balance, of which the first is just given so many times its CPU limit."""
    world = hetero_world(scales=scales)
    world.job = replace(world.job, groups=tuple(replace(group, device=device) for group in world.job.groups))
    for worker in world.workers.values():
        worker.cpu_limit = 1.0
    world.run(3)
    world.workers["job-g0-0"].cpu_limit = factor
    return world


def test_known_limit_moves_samples_at_once_and_says_why_and_costs_one_interval_if_it_does_not_bind() -> None:
    world = resized_world()
    world.train(1)
    decision = world.tick()
    assert decision.plan.batch_sizes == pytest.approx((64, 128), abs=2)
    assert decision.reason.startswith("by the CPU limits that changed, job-g0-0 takes 196 ms at 96 samples")
    world.run(2)
    assert world.plan.batch_sizes == pytest.approx((96, 96), abs=4)


def test_cpu_limit_beside_a_gpu_says_nothing_of_its_speed() -> None:
    world = resized_world(device="gpu")
    world.train(1)
    assert world.tick().plan is None
    assert all(decision.plan is None for decision in world.run(3))


def test_shape_is_not_bent_by_a_limit_that_does_not_bind() -> None:
    """A worker with much time that does not depend on its batch, seen at many batches, is given twice its limit, and is
    no faster; the line known of it stays as it was."""
    world = hetero_world(scales=(1, 2), fixed=0.06)
    fast = world.workers["job-g0-0"]
    fast.cpu_limit = 1.0
    world.run(8)
    before = world.memory.workers[0]
    share = fixed_share(before)
    assert share == pytest.approx(60 / 160, abs=0.05)
    fast.cpu_limit = 2.0
    world.train(1)
    assert world.tick().plan is not None
    world.run(12)
    assert fixed_share(world.memory.workers[0]) == pytest.approx(share, abs=0.05)


def fixed_share(known: RememberedWorker) -> float:
    """Of a worker's time at 100 samples."""
    prediction = predict(known.batch_cost, 0, None)
    line = prediction.line
    return line.fixed_seconds / line.at(100)


def flapping(world: World, *, binds: bool, times: int = 16) -> list[bool]:
    """The first worker's limit goes up and down every six intervals; whether each of them moved batches."""
    first, moves = world.workers["job-g0-0"], []
    for flap in range(times):
        first.cpu_limit = 2.0 if flap % 2 else 1.0
        if binds:
            first.scale = 1 / first.cpu_limit
        world.train(1)
        moves.append(world.tick().plan is not None)
        moves += [decision.plan is not None for decision in world.run(6)]
    return moves


@pytest.mark.parametrize("noise", [0.0, pytest.param(0.1, marks=pytest.mark.long)])
@pytest.mark.parametrize("binds", [False, True])
def test_limit_that_never_binds_soon_moves_nothing_and_one_that_does_is_followed_at_once(
    noise: float, binds: bool
) -> None:
    world = hetero_world(scales=(1,) * 4, noise=noise, seed=2)
    for worker in world.workers.values():
        worker.cpu_limit = 2.0
    world.workers["job-g0-0"].scale = 0.5 if binds else 1.0
    world.run(6)
    moves = flapping(world, binds=binds)
    elasticity = world.memory.workers[0].step_time.elasticity
    if binds:
        assert sum(moves[::7]) >= 15
        assert elasticity >= 0.8
        return
    assert sum(moves) <= 8
    # Under noise some moves are small gains, taken as the evidence grows.
    assert sum(moves[len(moves) // 2 :]) <= (4 if noise else 1)
    seconds = world.true_seconds()
    assert max(seconds) <= (1.1 if noise else 1.05) * min(seconds)
    assert elasticity <= 0.2
    if not noise:
        flapping(world, binds=True, times=6)
        assert world.memory.workers[0].step_time.elasticity >= 0.6, "it begins to bind"
