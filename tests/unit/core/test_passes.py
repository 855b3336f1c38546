"""A global batch that the workers do not hold at once is computed in several passes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain.contract import Plan
from heterotrain_operator.api.availability import known_policies
from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.core.split.passes import at_once, in_passes
from unit.core.traces import World, hetero_world

BOUNDS = st.lists(
    st.integers(0, 20).flatmap(lambda low: st.tuples(st.just(low), st.integers(max(low, 1), 60))), min_size=1
)


@given(held=BOUNDS, total=st.integers(1, 5000))
def test_in_passes_any_global_batch_has_room_and_what_fits_at_once_is_left_alone(
    held: list[tuple[int, int]], total: int
) -> None:
    bounds = in_passes(total, held)
    assert sum(high for _, high in bounds) >= total
    assert [low for low, _ in bounds] == [low for low, _ in held]
    assert all(high >= before for (_, high), (_, before) in zip(bounds, held, strict=True))
    if sum(high for _, high in held) >= total:
        assert bounds == held


def assert_held(plan: Plan | None, total: int, most: dict[str, int]) -> None:
    assert plan is not None
    assert plan.global_batch_size == total
    assert all(at_once(member) <= most[member.group] for member in plan.members)


@pytest.mark.parametrize("policy", known_policies())
def test_workers_that_hold_too_little_are_told_to_take_several_passes(policy: str) -> None:
    groups = (Group("large", 1, batch_max=40, cpu_limit=1.0), Group("small", 2, batch_max=10, cpu_limit=0.5))
    world = World(Job("job", groups, 192, policy=policy)).start()
    assert_held(world.plan, 192, {"large": 40, "small": 10})
    world.run(6)
    assert_held(world.plan, 192, {"large": 40, "small": 10})
    assert world.plan is not None
    # Four passes are enough for all, so nobody takes a fifth.
    assert all(member.batch_size <= 4 * {"large": 40, "small": 10}[member.group] for member in world.plan.members)


def test_bounds_lowered_below_the_global_batch_make_the_same_workers_take_passes() -> None:
    world = hetero_world()
    world.run(3)
    world.job = replace(world.job, groups=tuple(replace(group, batch_max=60) for group in world.job.groups))
    world.tick()
    assert_held(world.plan, 192, {group.name: 60 for group in world.job.groups})


def test_where_the_global_batch_fits_nobody_takes_passes() -> None:
    world = hetero_world()
    world.run(6)
    assert world.plan is not None
    assert not any(member.micro_batch_size for member in world.plan.members)
