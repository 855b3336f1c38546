"""A global batch that grows keeps the time of a step: who joins brings what it finishes in it, and takes it along."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain.contract import MEMBERS_MAY_END
from heterotrain_operator.core.batching.growth import grown
from heterotrain_operator.core.model import Group, Growth, Job
from heterotrain_operator.core.state import Remembered
from unit.core.jobs import A, C, elastic_world, ends, resize, settled, told
from unit.core.traces import World


def test_joiners_bring_what_their_group_finishes_up_to_the_maximum_and_never_below_the_own_batch() -> None:
    growth = Growth(96, 300, (("cpu", 2), ("gpu", 1)))
    shares = {"cpu": 16.0, "gpu": 64.0}
    for cpu, gpu, batch in ((2, 1, 96), (4, 1, 128), (2, 2, 160), (0, 3, 192), (9, 9, 300), (1, 1, 96), (0, 0, 96)):
        assert grown(growth, {"cpu": cpu, "gpu": gpu}, shares) == batch
    assert grown(growth, {"cpu": 2, "gpu": 1, "new": 1}, shares) == 136, "nothing is known of it: the mean, 40"
    assert grown(growth, {"cpu": 2, "gpu": 2}, shares, unit=48) == 144
    assert grown(growth, {"cpu": 90}, shares, unit=32) == 288
    assert grown(replace(growth, base=()), {"cpu": 90}, shares) == 96


@given(
    st.integers(1, 4096),
    st.integers(0, 4096),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 2**53)),
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 4096)),
    st.dictionaries(st.sampled_from("abcd"), st.floats(0, 1e6)),
)
def test_any_batch_is_within_its_bounds(
    own: int, more: int, base: dict[str, int], counts: dict[str, int], shares: dict[str, float]
) -> None:
    found = grown(Growth(own, own + more, tuple(base.items())), counts, shares)
    assert own <= found <= own + more


def batch_of(world: World) -> int:
    assert world.plan is not None and len(world.plan.members) == sum(group.replicas for group in world.job.groups)
    return world.plan.global_batch_size


@pytest.mark.parametrize("forgetful", [False, True])
def test_an_edit_of_replicas_grows_the_batch_and_shrinks_it_again(forgetful: bool) -> None:
    world = elastic_world(2, growth=Growth(192, 500))
    world.forgetful = forgetful
    before = max(world.true_seconds())
    for replicas, batch in ((3, 288), (4, 384), (6, 500), (5, 480), (2, 192), (1, 192)):
        resize(world, replicas)
        settled(world)
        assert batch_of(world) == batch, replicas
        if batch < 500 and replicas > 1:
            assert max(world.true_seconds()) == pytest.approx(before, rel=0.02), "a step takes as long as before"
    assert any("192 -> 288 samples per step" in each for each in told(world.decisions, "GenerationChanged"))


def test_who_is_lost_takes_its_samples_along_until_another_has_its_place() -> None:
    world = elastic_world(2, growth=Growth(192))
    resize(world, 4)
    settled(world)
    ends(world, C)
    batches = [settled(world, 1).plan.global_batch_size for _ in range(8)]
    assert 288 in batches and batches[-1] == 384
    assert batch_of(world) == 384


def test_unlike_workers_bring_their_balanced_batches_and_rebalancing_keeps_the_sum() -> None:
    groups = (Group("a", 2), Group("b", 1))
    world = World(
        Job("job", groups, global_batch=120, growth=Growth(120, 4096)),
        {f"job-b-{index}": 0.25 for index in range(4)},
        fixed=0.0,
        protocol=MEMBERS_MAY_END,
    )
    world.start().run(6)
    world.job = replace(world.job, groups=(groups[0], replace(groups[1], replicas=2)))
    settled(world)
    world.run(6)
    assert batch_of(world) == pytest.approx(200, abs=4), "20, 20 and 80, and 80 more"
    assert world.imbalance() < 1.1
    world.job = replace(world.job, growth=None)
    world.run(2)
    assert batch_of(world) == 120, "without growth it is the job's own again"
    assert world.memory.grown.grown_from == ()


def test_workers_that_all_start_again_have_the_batch_of_as_many_as_there_are() -> None:
    world = elastic_world(2, growth=Growth(192))
    world.protocol = 1
    resize(world, 4)
    for worker in [*world.workers]:
        ends(world, worker)
    settled(world, 10)
    assert batch_of(world) == 384
    assert A in world.workers


def test_garbage_in_what_the_batch_has_grown_from_is_none() -> None:
    memory = Remembered.from_json('{"schema": 1, "grown_from": [["a", 2], ["b"], ["c", -1], [7, 7], ["d", 1.5], 3]}')
    assert memory.grown.grown_from == (("a", 2),)
