"""When a decision about batches is taken, by a quorum of those that are read, and on what figures."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from heterotrain_operator.clusters.simulated.pod import SimulatedPod
from heterotrain_operator.core.batching.policy import Proposal, Seat
from heterotrain_operator.core.batching.quorum import with_silent
from heterotrain_operator.core.batching.rebalance import evidence_of, with_patience
from heterotrain_operator.core.batching.words import BALANCE_TOLERANCE
from heterotrain_operator.core.model import Condition, Group, Job
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.split.allocation import Line, waterfill
from unit.core.jobs import condition, told
from unit.core.traces import World, hetero_world


def last(world: World, kind: str) -> Condition:
    return next(c for c in world.decisions[-1].conditions if c.type == kind)


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


def test_balances_figure_and_condition_agree_also_after_a_worker_has_changed_its_speed() -> None:
    """The means since the plan began still hold the time before the change."""
    world = hetero_world("Uniform", (1, 1, 1))
    for scale in (1.0, 1.0, 1.0, *[2.0] * 8):
        world.workers["job-g2-0"].scale = scale
        (decision,) = world.run(1)
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


ADAPTIVE = ("Proportional", "Optimal")


def batches(world: World) -> tuple[int, ...]:
    return world.plan.batch_sizes


def excess(world: World) -> float:
    """The realised step over the oracle's, by the true times."""
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
    assert (fast, middle, slow) == pytest.approx((82, 41, 21), abs=2)
    [said] = told(world.decisions, "WorkerUnreadable")
    assert "job-g3-0" in said
    assert "keeps its 48 samples" in said
    impaired = condition(world.decisions[-1])
    assert (impaired.reason, "job-g3-0" in impaired.message) == ("WorkersImpaired", True)


def test_a_worker_that_has_ended_is_not_called_unreadable() -> None:
    world = hetero_world(scales=(1, 2, 4))
    *others, silent = world.seen().workers
    known = world.memory.workers[2]._replace(silent_since=1.0)
    memory = replace(world.memory, workers=(*world.memory.workers[:2], known))
    reasons = {}
    for code in (None, 0):
        members = (*others, replace(silent, metrics=None, exit_code=code))
        _, events = with_silent(world.job, world.plan, members, memory, 1e9)
        reasons[code] = [event.reason for event in events]
    assert reasons == {None: ["WorkerUnreadable"], 0: []}


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


def spoil(worker: SimulatedPod, name: str, value: float) -> None:
    worker.metrics = replace(worker.metrics, **{name: value})


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
    [said] = [each for decision in world.decisions for each in decision.events if each.reason == "CountersUnusable"]
    assert (said.kind, "job-g3-0" in said.message) == ("Warning", True)
    # Usable again, it is taken in, and the job is well.
    worker = world.workers["job-g3-0"]
    worker.metrics = replace(worker.metrics, steps=0.0, own_seconds=0.0, own_seconds_squared=0.0)
    world.run(8)
    assert not condition(world.decisions[-1]).status
    assert excess(world) < 1.05


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


def test_dry_run_publishes_the_first_plan_and_then_only_explains() -> None:
    world = hetero_world(dry_run=True)
    decision = world.run(1)[0]
    assert decision.plan is None
    assert decision.reason.startswith("dry run, nothing changes: job-g2-0 takes")
    assert [event.reason for event in decision.events] == ["DryRun"]


def test_worker_without_samples_neither_holds_decisions_up_nor_moves_them() -> None:
    groups = tuple(Group(f"g{rank}", 1, batch_min=0) for rank in range(3))
    world = World(Job("job", groups, 2), {"job-g0-0": 1.0, "job-g1-0": 1.0}).start()
    assert world.plan.batch_sizes == (1, 1, 0)
    world.train(10)
    idle = world.workers["job-g2-0"]
    idle.metrics = replace(idle.metrics, steps=0.0, own_seconds=0.0, own_seconds_squared=0.0)
    decision = world.tick()
    assert "the best split saves" in decision.reason


def test_steps_under_an_older_plan_do_not_count() -> None:
    world = hetero_world()
    world.train(10)
    world.tick()
    decision = world.tick()
    assert decision.plan is None
    assert "plan 2 is not followed yet by job-g0-0 (training, plan 1)" in decision.reason
