"""Batches in multiples: every split keeps them where that is possible, and says why where it is not."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from heterotrain_operator.api.availability import known_policies
from heterotrain_operator.clusters.simulated.laws import Padded, TimeLaw
from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.core.split.allocation import Line, split_min_max, split_proportionally, waterfill
from heterotrain_operator.core.split.multiples import Bounds, divide_each_other, in_multiples, infeasible, unreachable
from unit.core.multiples import Problem, feasible, holds, multiples
from unit.core.traces import World

LINES = st.builds(Line, st.floats(-2, 2), st.floats(1e-3, 1))


def possible(problem: Problem) -> bool:
    """By trying all."""
    total, bounds, each = problem
    choices = [
        (low,) if low == high else [batch for batch in range(low, high + 1) if batch % multiple == 0]
        for (low, high), multiple in zip(bounds, each, strict=True)
    ]
    return any(sum(split) == total for split in itertools.product(*choices))


@given(feasible(), st.data())
def test_every_split_keeps_sum_bounds_and_multiples(problem: Problem, data: st.DataObject) -> None:
    total, bounds, each = problem
    lines = data.draw(st.lists(LINES, min_size=len(bounds), max_size=len(bounds)))
    weights = data.draw(st.lists(st.floats(0, 100), min_size=len(bounds), max_size=len(bounds)))
    assert infeasible(total, bounds, each) is None
    assert holds(split_proportionally(weights, total, bounds, each), problem)
    assert holds(split_min_max([line.at for line in lines], total, bounds, multiples=each), problem)
    assert holds(waterfill(lines, total, bounds, each), problem)


@given(feasible(workers=4, units=4), st.data())
def test_waterfilling_in_multiples_is_near_the_best_of_all(problem: Problem, data: st.DataObject) -> None:
    total, bounds, each = problem
    lines = data.draw(st.lists(LINES, min_size=len(bounds), max_size=len(bounds)))
    choices = [
        (low,) if low == high else [batch for batch in range(low, high + 1) if batch % multiple == 0]
        for (low, high), multiple in zip(bounds, each, strict=True)
    ]
    assume(len(list(itertools.islice(itertools.product(*choices), 20_000))) < 20_000)

    def seconds(split: tuple[int, ...]) -> float:
        return max((line.at(batch) for line, batch in zip(lines, split, strict=True) if batch), default=0.0)

    best = min(seconds(split) for split in itertools.product(*choices) if sum(split) == total)
    found = seconds(waterfill(lines, total, bounds, each))
    if len(set(each)) == 1:
        assert found == pytest.approx(best, rel=1e-9)
    else:  # what the coarse ones get is rounded, so one unit of one worker may be elsewhere
        assert found <= best + max(line.seconds_per_sample * unit for line, unit in zip(lines, each, strict=True))


@given(
    st.integers(1, 4).flatmap(multiples),
    st.integers(1, 60),
    st.data(),
)
def test_what_is_called_unreachable_is_so_and_nothing_else(each: list[int], total: int, data: st.DataObject) -> None:
    pair = st.tuples(st.integers(0, 24), st.integers(0, 24)).map(lambda ends: (min(ends), max(ends)))
    bounds: list[Bounds] = data.draw(st.lists(pair, min_size=len(each), max_size=len(each)))
    assert (unreachable(total, bounds, each) == "") == possible((total, bounds, each))


def test_multiples_of_one_change_nothing() -> None:
    lines = [Line(0.02, 0.01), Line(0.02, 0.02), Line(0.02, 0.04)]
    assert waterfill(lines, 192, [(1, 192)] * 3, [1, 1, 1]) == waterfill(lines, 192, [(1, 192)] * 3)


def test_the_remainder_goes_to_who_takes_any_number() -> None:
    lines = [Line(0.0, 0.001), Line(0.0, 0.001), Line(0.0, 0.004)]
    batches = waterfill(lines, 201, [(1, 201)] * 3, [16, 16, 1])
    assert batches[0] % 16 == batches[1] % 16 == 0
    assert sum(batches) == 201


@pytest.mark.parametrize(
    ("total", "bounds", "each", "why"),
    [
        (100, [(16, 96), (16, 96)], [16, 16], "no batches in multiples of 16 within their bounds add up to 100"),
        (40, [(0, 40), (0, 40)], [6, 4], "of the multiples 4, 6 each must divide the next"),
        (40, [(17, 30), (0, 40)], [16, 1], "there is no multiple of 16 between 17 and 30"),
        (50, [(32, 64), (1, 10)], [32, 1], "no batches in multiples of 1, 32 within their bounds add up to 50"),
    ],
)
def test_what_cannot_be_reached_is_said(total: int, bounds: list[Bounds], each: list[int], why: str) -> None:
    assert unreachable(total, bounds, each) == why
    with pytest.raises(ValueError, match=r"multiple|global batch"):
        split_proportionally([1.0] * len(bounds), total, bounds, each)


def test_one_batch_alone_is_not_rounded() -> None:
    assert in_multiples((67, 67), 16) == (67, 67)
    assert in_multiples((1, 67), 16) == (16, 64)
    assert divide_each_other([1, 8, 32])
    assert not divide_each_other([8, 12])


class PaddedWorld(World):
    """Own times are those of the next multiple of the group's."""

    def law(self) -> TimeLaw:
        return Padded(super().law(), 16)


def padded_world(policy: str, *, multiple: int, noise: float = 0.05, total: int = 192) -> PaddedWorld:
    scales = (1.0, 1.5, 2.0, 4.0)
    groups = tuple(Group(f"g{rank}", 1, cpu_limit=1 / scale, multiple_of=multiple) for rank, scale in enumerate(scales))
    job = Job("job", groups, total, policy=policy)
    by_name = {f"job-g{rank}-0": scale for rank, scale in enumerate(scales)}
    return PaddedWorld(job, by_name, noise=noise, fixed=0.01).start()


def best_padded_seconds(world: PaddedWorld) -> float:
    assert world.plan is not None
    workers = [world.workers[member.name] for member in world.plan.members]
    times = [lambda batch, each=worker: each.scale * each.law.seconds(batch) for worker in workers]
    total = world.plan.global_batch_size
    return max(time_of(b) for time_of, b in zip(times, split_min_max(times, total, [(1, total)] * 4), strict=True))


@pytest.mark.parametrize("policy", known_policies())
def test_every_plan_of_every_policy_keeps_the_multiple(policy: str) -> None:
    world = padded_world(policy, multiple=16)
    for _ in range(12):
        assert world.plan is not None
        assert world.plan.global_batch_size == 192
        assert all(member.batch_size % 16 == 0 for member in world.plan.members)
        world.run(1)


@pytest.mark.parametrize("policy", ["Proportional", "Profile"])
def test_free_global_batches_are_of_multiples_too(policy: str) -> None:
    world = padded_world(policy, multiple=16)
    world.job = replace(world.job, fixed_global_batch=False)
    for _ in range(12):
        world.run(1)
        assert world.plan is not None
        assert all(member.batch_size % 16 == 0 for member in world.plan.members)


@pytest.mark.parametrize("total", [192, 256, 512])
def test_on_padded_times_the_multiple_reaches_the_best_split(total: int) -> None:
    world = padded_world("Optimal", multiple=16, total=total)
    world.run(30)
    assert max(world.true_seconds()) <= 1.001 * best_padded_seconds(world)


def test_a_multiple_that_is_set_while_running_repairs_the_plan_and_says_why() -> None:
    world = padded_world("Optimal", multiple=1)
    world.run(6)
    world.job = replace(world.job, groups=tuple(replace(group, multiple_of=16) for group in world.job.groups))
    decision = world.tick()
    assert decision.plan is not None
    assert "which is no multiple of 16" in decision.reason
    assert all(member.batch_size % 16 == 0 for member in decision.plan.members)
    world.run(6)
    assert world.plan is not None
    assert all(member.batch_size % 16 == 0 for member in world.plan.members)


def test_a_multiple_that_the_global_batch_cannot_hold_degrades_the_job_and_leaves_its_plan() -> None:
    world = padded_world("Optimal", multiple=1, total=200)
    world.run(3)
    world.job = replace(world.job, groups=tuple(replace(group, multiple_of=16) for group in world.job.groups))
    decision = world.tick()
    assert decision.plan is None
    degraded = next(c for c in decision.conditions if c.type == "Degraded")
    assert degraded.status
    assert "no batches in multiples of 16 within their bounds add up to 200" in degraded.message


def test_a_job_whose_multiples_do_not_fit_never_starts_and_says_why() -> None:
    groups = tuple(Group(f"g{rank}", 1, multiple_of=32) for rank in range(3))
    world = World(Job("job", groups, 100))
    world.tick()
    assert "in multiples of 32" in world.tick().reason
    assert world.plan is None


def test_a_restart_rounds_what_was_no_multiple() -> None:
    world = padded_world("Optimal", multiple=1)
    world.run(4)
    world.job = replace(world.job, groups=tuple(replace(group, multiple_of=16) for group in world.job.groups))
    world.workers["job-g0-0"].end(1, message="killed")
    for _ in range(8):
        world.tick(5)
    assert world.plan is not None
    assert world.plan.generation == 2
    assert all(member.batch_size % 16 == 0 for member in world.plan.members)
