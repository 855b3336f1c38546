"""Workers get as many samples as they report that their model needs, where other bounds allow it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_operator.core.batching.bounds import bounded_below, bounds_in_passes, why_no_fewer, with_least_batch
from heterotrain_operator.core.batching.policies import POLICIES
from heterotrain_operator.core.model import Job, WorkerMetrics
from heterotrain_operator.core.prediction.memory_model import MemoryUse
from heterotrain_operator.core.split.passes import at_once
from heterotrain_operator.core.worker_memory import WorkerMemory
from unit.core.traces import World, hetero_job

SCALES = (1.0, 20.0, 40.0)
NAMES = [f"job-g{rank}-0" for rank in range(len(SCALES))]
BOUNDS = st.lists(st.integers(0, 40).flatmap(lambda low: st.tuples(st.just(low), st.integers(low, 90))), min_size=1)


def world(policy: str, least: int = 8, **changes: object) -> World:
    """60 samples for a fast worker and two slow ones, to whom a balanced split would give 4 and 2 or fewer."""
    made = World(hetero_job(policy, SCALES, **{"global_batch": 60, **changes}), dict(zip(NAMES, SCALES, strict=True)))
    made.leasts = dict.fromkeys(NAMES, least)
    return made


def batches_seen(made: World, intervals: int = 10) -> list[tuple[int, ...]]:
    """Of all plans from the first one on."""
    made.start()
    found = []
    for _ in range(intervals):
        assert made.plan is not None
        found.append(made.plan.batch_sizes)
        made.run(1)
    return found


def with_group(job: Job, rank: int, **changes: object) -> Job:
    groups = list(job.groups)
    groups[rank] = replace(groups[rank], **changes)  # type: ignore[arg-type]  # names and types are the tests' care
    return replace(job, groups=tuple(groups))


@pytest.mark.parametrize("policy", POLICIES)
def test_no_plan_gives_a_worker_fewer_samples_than_it_reports_to_need(policy: str) -> None:
    assert all(min(batches) >= 8 for batches in batches_seen(world(policy)))


@pytest.mark.parametrize("policy", ["Proportional", "Optimal"])
def test_slow_workers_end_at_what_they_need_and_the_fast_one_takes_the_rest(policy: str) -> None:
    assert batches_seen(world(policy))[-1] == (44, 8, 8)
    assert min(batches_seen(world(policy, least=1))[-1]) < 4, "without the report they get less"


def test_first_plan_obeys_it_too() -> None:
    made = world("Static")
    cores = zip(made.job.groups, (2.0, 0.1, 0.05), strict=True)
    made.job = replace(made.job, groups=tuple(replace(group, cpu_limit=cpu) for group, cpu in cores), initial="Static")
    assert batches_seen(made, 1) == [(44, 8, 8)]


def test_worker_that_needs_nothing_is_not_bounded_by_the_others() -> None:
    made = world("Optimal")
    made.leasts[NAMES[2]] = 1
    assert batches_seen(made)[-1][1] == 8
    assert batches_seen(made)[-1][2] < 4


def test_global_batch_that_is_too_small_for_all_leaves_the_users_bounds() -> None:
    assert batches_seen(world("Optimal", least=21)) == batches_seen(world("Optimal", least=1))
    assert min(batches_seen(world("Optimal", least=20))[-1]) == 20


def test_users_own_greater_minimum_stays() -> None:
    made = world("Optimal")
    made.job = with_group(made.job, 2, batch_min=12)
    assert batches_seen(made)[-1] == (40, 8, 12)


def test_users_maximum_wins() -> None:
    made = world("Optimal")
    made.job = with_group(made.job, 2, batch_max=4)
    assert all(batches[2] <= 4 for batches in batches_seen(made))


def test_what_memory_holds_wins() -> None:
    job = hetero_job("Optimal", SCALES, global_batch=60)
    known = [WorkerMemory(least_batch=8)] * 3
    known[1] = known[1]._replace(memory_use=MemoryUse(failed_batch=6))
    assert bounds_in_passes(job, ["g0", "g1", "g2"], known) == [(8, 60), (5, 5), (8, 60)]


def test_passes_are_not_smaller_than_needed_where_workers_hold_that_much() -> None:
    made = world("Optimal", global_batch=200)
    for rank in range(3):
        made.job = with_group(made.job, rank, batch_max=20)
    batches_seen(made)
    assert made.plan is not None
    assert all(at_once(member) >= 8 for member in made.plan.members)


def test_plan_that_gives_too_little_is_repaired_at_once_and_says_why() -> None:
    made = world("Optimal", least=1)
    batches_seen(made)
    for worker in made.workers.values():
        worker.least_batch = 8
    made.tick()
    assert made.plan is not None
    assert made.plan.batch_sizes == (44, 8, 8)
    [said] = [d.reason for d in made.decisions if "trains badly" in d.reason]
    assert "bounds are [8, 60] (at least 8 samples, since it reports that its model trains badly with" in said
    before = len(made.decisions)
    made.run(5)
    assert all(decision.plan is None for decision in made.decisions[before:])


def test_it_is_remembered_while_a_worker_does_not_answer_and_after_reading_the_memory_back() -> None:
    known = with_least_batch(WorkerMemory(), WorkerMetrics(plan_version=0, least_batch_size=8))
    assert known.least_batch == 8
    assert with_least_batch(known, None) == known
    whole, torn = world("Optimal"), world("Optimal")
    torn.forgetful = True
    assert batches_seen(whole) == batches_seen(torn)
    assert [worker.least_batch for worker in torn.memory.workers] == [8, 8, 8]


def test_one_sample_is_no_bound_and_costs_no_memory() -> None:
    assert with_least_batch(WorkerMemory(), WorkerMetrics(plan_version=0)) == WorkerMemory()
    after = with_least_batch(WorkerMemory(least_batch=8), WorkerMetrics(plan_version=0, least_batch_size=-3))
    assert after == WorkerMemory()


@given(BOUNDS, st.integers(1, 500), st.data())
def test_raised_bounds_hold_whatever_held_before(
    bounds: list[tuple[int, int]], total: int, data: st.DataObject
) -> None:
    leasts = [data.draw(st.integers(-5, 2000)) for _ in bounds]
    raised = bounded_below(total, bounds, leasts)
    assert [high for _, high in raised] == [high for _, high in bounds]
    assert all(low <= new <= high for (low, high), (new, _) in zip(bounds, raised, strict=True))
    if sum(low for low, _ in bounds) <= total:
        assert sum(low for low, _ in raised) <= total


@pytest.mark.parametrize(("users", "low", "said"), [(1, 8, True), (12, 12, False), (1, 1, False), (1, 5, True)])
def test_bound_is_explained_only_where_it_rests_on_the_report(users: int, low: int, said: bool) -> None:
    why = why_no_fewer(8, users, low)
    assert why.startswith(f"at least {low} samples, since it reports") is said
    assert bool(why) is said
