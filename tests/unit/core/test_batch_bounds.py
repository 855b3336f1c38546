"""Bounds of batches in jobs: multiples, several passes, and as many samples as workers report to need."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain.contract import Plan
from heterotrain_operator.api.availability import known_policies
from heterotrain_operator.clusters.simulated.laws import Padded, TimeLaw
from heterotrain_operator.core.batching.bounds import bounded_below, bounds_in_passes
from heterotrain_operator.core.batching.policies import POLICIES
from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.core.prediction.memory_model import MemoryUse
from heterotrain_operator.core.remembered_worker import RememberedWorker
from heterotrain_operator.core.split.passes import at_once
from unit.core.traces import World, hetero_job


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


@pytest.mark.parametrize(
    ("policy", "fixed"), [*((policy, True) for policy in known_policies()), ("Proportional", False), ("Profile", False)]
)
def test_every_plan_of_every_policy_keeps_the_multiple(policy: str, fixed: bool) -> None:
    world = padded_world(policy, multiple=16)
    world.job = replace(world.job, fixed_global_batch=fixed)
    for _ in range(12):
        assert world.plan.global_batch_size == 192 or not fixed
        assert all(member.batch_size % 16 == 0 for member in world.plan.members)
        world.run(1)


def test_a_multiple_that_is_set_while_running_repairs_the_plan_and_says_why() -> None:
    world = padded_world("Optimal", multiple=1)
    world.run(6)
    world.job = replace(world.job, groups=tuple(replace(group, multiple_of=16) for group in world.job.groups))
    decision = world.tick()
    assert "which is no multiple of 16" in decision.reason
    assert all(member.batch_size % 16 == 0 for member in decision.plan.members)
    world.run(6)
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


def assert_held(plan: Plan | None, total: int, most: dict[str, int]) -> None:
    assert plan.global_batch_size == total
    assert all(at_once(member) <= most[member.group] for member in plan.members)


@pytest.mark.parametrize("policy", known_policies())
def test_workers_that_hold_too_little_are_told_to_take_several_passes(policy: str) -> None:
    groups = (Group("large", 1, batch_max=40, cpu_limit=1.0), Group("small", 2, batch_max=10, cpu_limit=0.5))
    world = World(Job("job", groups, 192, policy=policy)).start()
    assert_held(world.plan, 192, {"large": 40, "small": 10})
    world.run(6)
    assert_held(world.plan, 192, {"large": 40, "small": 10})
    # Four passes are enough for all, so nobody takes a fifth.
    assert all(member.batch_size <= 4 * {"large": 40, "small": 10}[member.group] for member in world.plan.members)


SCALES = (1.0, 20.0, 40.0)
NAMES = [f"job-g{rank}-0" for rank in range(len(SCALES))]
HELD = st.lists(st.integers(0, 40).flatmap(lambda low: st.tuples(st.just(low), st.integers(low, 90))), min_size=1)


def needy_world(policy: str, least: int = 8, **changes: object) -> World:
    """60 samples for a fast worker and two slow ones, to whom a balanced split would give 4 and 2 or fewer."""
    made = World(hetero_job(policy, SCALES, **{"global_batch": 60, **changes}), dict(zip(NAMES, SCALES, strict=True)))
    made.leasts = dict.fromkeys(NAMES, least)
    return made


def batches_seen(made: World, intervals: int = 10) -> list[tuple[int, ...]]:
    """Of all plans from the first one on."""
    made.start()
    found = []
    for _ in range(intervals):
        found.append(made.plan.batch_sizes)
        made.run(1)
    return found


def with_group(job: Job, rank: int, **changes: object) -> Job:
    groups = list(job.groups)
    groups[rank] = replace(groups[rank], **changes)
    return replace(job, groups=tuple(groups))


@pytest.mark.parametrize("policy", POLICIES)
def test_no_plan_gives_a_worker_fewer_samples_than_it_reports_to_need(policy: str) -> None:
    assert all(min(batches) >= 8 for batches in batches_seen(needy_world(policy)))


@pytest.mark.parametrize("policy", ["Proportional", "Optimal"])
def test_slow_workers_end_at_what_they_need_and_the_fast_one_takes_the_rest(policy: str) -> None:
    assert batches_seen(needy_world(policy))[-1] == (44, 8, 8)
    assert min(batches_seen(needy_world(policy, least=1))[-1]) < 4, "without the report they get less"


def test_global_batch_that_is_too_small_for_all_leaves_the_users_bounds() -> None:
    assert batches_seen(needy_world("Optimal", least=21)) == batches_seen(needy_world("Optimal", least=1))
    assert min(batches_seen(needy_world("Optimal", least=20))[-1]) == 20


@pytest.mark.parametrize(
    ("changes", "last"), [({"batch_min": 12}, (40, 8, 12)), ({"batch_max": 4}, (48, 8, 4))], ids=["minimum", "maximum"]
)
def test_users_own_bounds_win(changes: dict[str, int], last: tuple[int, ...]) -> None:
    made = needy_world("Optimal")
    made.job = with_group(made.job, 2, **changes)
    assert batches_seen(made)[-1] == last


def test_what_memory_holds_wins() -> None:
    job = hetero_job("Optimal", SCALES, global_batch=60)
    known = [RememberedWorker(least_batch=8)] * 3
    known[1] = known[1]._replace(memory_use=MemoryUse(failed_batch=6))
    assert bounds_in_passes(job, ["g0", "g1", "g2"], known) == [(8, 60), (5, 5), (8, 60)]


def test_plan_that_gives_too_little_is_repaired_at_once_and_says_why() -> None:
    made = needy_world("Optimal", least=1)
    batches_seen(made)
    for worker in made.workers.values():
        worker.least_batch = 8
    made.tick()
    assert made.plan.batch_sizes == (44, 8, 8)
    [said] = [d.reason for d in made.decisions if "trains badly" in d.reason]
    assert "bounds are [8, 60] (at least 8 samples, since it reports that its model trains badly with" in said


@given(HELD, st.integers(1, 500), st.data())
def test_raised_bounds_hold_whatever_held_before(
    bounds: list[tuple[int, int]], total: int, data: st.DataObject
) -> None:
    leasts = [data.draw(st.integers(-5, 2000)) for _ in bounds]
    raised = bounded_below(total, bounds, leasts)
    assert [high for _, high in raised] == [high for _, high in bounds]
    assert all(low <= new <= high for (low, high), (new, _) in zip(bounds, raised, strict=True))
    if sum(low for low, _ in bounds) <= total:
        assert sum(low for low, _ in raised) <= total
