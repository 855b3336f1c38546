"""Stragglers are acted on: one by fault is replaced by a newcomer that is faster, and nobody waits for that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain.contract import MEMBERS_MAY_END
from heterotrain_operator.core.model import Group, Job, Stragglers
from heterotrain_operator.core.stragglers.verdict import Remedy
from unit.core.replacing import NEWCOMER, SLOW, created, members, reasons, slowed, world
from unit.core.traces import World

# --- when ---------------------------------------------------------------------------------------------------------


def test_straggler_by_fault_is_replaced_by_one_plan_and_nobody_starts_again() -> None:
    made = world()
    before = {name: pod.uid for name, pod in made.workers.items()}
    slowed(made)
    decisions = made.run(20)
    assert reasons(decisions) == ["ReplacingStraggler", "WorkerReplaced"]
    swap = next(each for each in decisions if each.plan is not None and NEWCOMER in members(each.plan))
    assert SLOW not in members(swap.plan)
    assert swap.plan is not None
    assert swap.plan.continues > 0
    assert {name: pod.uid for name, pod in made.workers.items() if name != NEWCOMER} == {
        name: uid for name, uid in before.items() if name != SLOW
    }
    assert made.memory.budget.restarts == 0
    assert made.memory.remedies.replacing == ()
    assert made.decisions[-1].stragglers == ()


def test_newcomer_is_created_only_after_two_intervals_in_a_row_in_which_it_would_gain() -> None:
    made = world()
    slowed(made)
    counts = []
    while not made.run(1)[-1].create:
        counts.append(made.memory.workers[2].evidence.advised)
    assert counts[-2:] == [1, 2]
    assert max(counts[:-2]) <= 1
    assert made.decisions[-2].stragglers[0].remedy is made.decisions[-3].stragglers[0].remedy is Remedy.REPLACE


def test_gain_that_is_gone_in_one_interval_counts_from_the_beginning() -> None:
    made = world()
    slowed(made)
    while not any(row.evidence.advised for row in made.memory.workers):
        made.run(1)
    assert created(made.run(1)) == []
    rows = [row._replace(evidence=row.evidence._replace(named=0)) for row in made.memory.workers]
    made.memory = replace(made.memory, workers=tuple(rows))
    made.workers[SLOW].scale /= 4
    assert created(made.run(15)) == []
    assert not any(row.evidence.advised for row in made.memory.workers)


@pytest.mark.parametrize("limit", [0.5, 0.25])
def test_worker_that_its_limit_slows_is_never_replaced(limit: float) -> None:
    made = world()
    for worker in made.workers.values():
        worker.cpu_limit = 1.0
    made.run(4)
    made.workers[SLOW].cpu_limit = limit
    slowed(made, factor=1 / limit)
    assert created(made.run(25)) == []


@pytest.mark.parametrize("action", ["Ignore", "Report", "Rebalance"])
def test_nobody_is_replaced_where_the_user_does_not_want_it(action: str) -> None:
    made = world(Stragglers(action=action, cooldown_seconds=0))
    slowed(made)
    assert created(made.run(20)) == []
    assert SLOW in members(made.plan)


def test_job_decides_as_before_unless_the_field_says_otherwise() -> None:
    silent, plain = world(Stragglers(action="Report")), world(Stragglers())
    for each in (silent, plain):
        slowed(each)
    assert [each.plan for each in silent.run(15)] == [each.plan for each in plain.run(15)]


def test_dry_run_replaces_nobody_and_says_so() -> None:
    made = world(dry_run=True)
    slowed(made)
    decisions = made.run(20)
    assert created(decisions) == []
    assert "dry run" in decisions[-1].stragglers[0].hindrance


def test_workers_that_meet_only_at_their_start_keep_their_straggler_and_are_balanced() -> None:
    made = world(protocol=1)
    slowed(made)
    decisions = made.run(20)
    assert created(decisions) == []
    [verdict] = decisions[-1].stragglers
    assert "cannot change while it trains" in verdict.hindrance
    assert made.plan is not None
    assert made.plan.batch_sizes[2] < min(batch for rank, batch in enumerate(made.plan.batch_sizes) if rank != 2)
    assert made.memory.budget.restarts == 0


@pytest.mark.parametrize(("peers", "replaced"), [(0, False), (2, True)])
def test_worker_that_always_was_too_slow_is_replaced_only_where_others_of_its_group_are_faster(
    peers: int, replaced: bool
) -> None:
    groups = (Group("a", 3), Group("c", 1 + peers, batch_min=32))
    settings = Stragglers(action="Replace", cooldown_seconds=0)
    job = Job("job", groups, 192, stragglers=settings)
    made = World(job, {"job-c-0": 6.0}, noise=0.03, seed=1, protocol=MEMBERS_MAY_END).start()
    decisions = made.run(25)
    assert bool(created(decisions)) is replaced


def test_restart_is_counted_as_no_change_of_members() -> None:
    made = world()
    made.job = replace(made.job, groups=(Group("a", 7),))
    made.tick()
    made.tick()
    assert made.memory.transitions.switching == "join"
    for pod in made.workers.values():
        pod.end(137)
    for _ in range(8):
        made.train(2)
        made.tick(5)
    assert made.memory.budget.restarts == 1
    assert (made.memory.transitions.joins, made.memory.transitions.switching) == (0, "")


def test_straggler_that_is_about_to_leave_is_not_deleted_while_the_job_ends() -> None:
    made = world()
    slowed(made)
    while not (made.plan is not None and NEWCOMER in members(made.plan)):
        made.run(1)
    made.workers["job-a-0"].end(0, finished=True)  # before anybody has gone over
    assert SLOW not in made.tick().delete


# --- how often ----------------------------------------------------------------------------------------------------


def test_no_more_are_replaced_than_the_budget_allows() -> None:
    made = world(Stragglers(action="Replace", cooldown_seconds=0, max_replacements=1))
    slowed(made)
    slowed(made, "job-a-4", factor=3.0)
    decisions = made.run(40)
    assert reasons(decisions) == ["ReplacingStraggler", "WorkerReplaced"]
    [verdict] = decisions[-1].stragglers
    assert verdict.worker == "job-a-4"
    assert "no replacement is left" in verdict.hindrance


def test_two_replacements_are_as_far_apart_as_the_cooldown() -> None:
    made = world(Stragglers(action="Replace", cooldown_seconds=600))
    slowed(made)
    slowed(made, "job-a-4", factor=3.0)
    decisions = made.run(40)
    assert reasons(decisions, "ReplacingStraggler") == ["ReplacingStraggler"]
    made.now += 600
    assert reasons(made.run(4), "ReplacingStraggler") == ["ReplacingStraggler"]


def test_without_a_cooldown_stragglers_are_replaced_beside_one_another() -> None:
    made = world()
    slowed(made, SLOW, "job-a-4")
    made.run(25)
    assert members(made.plan)[:4] == ["job-a-0", "job-a-1", "job-a-3", "job-a-5"]
    assert len(members(made.plan)) == 6


# --- what changes cost ----------------------------------------------------------------------------------------------


def test_standstill_of_a_change_is_measured_and_is_what_a_replacement_costs() -> None:
    made = world()
    slowed(made)
    made.run(20)
    assert (made.memory.transitions.swaps, made.memory.transitions.joins, made.memory.transitions.leaves) == (1, 0, 0)
    assert 0 < made.memory.transitions.transition_seconds < 5
    slowed(made, "job-a-4", factor=1.5)
    last = made.run(20)
    ahead = next(v.outlooks for each in last for v in each.stragglers if v.outlooks is not None)
    assert ahead.replacement_seconds < 7


def test_replacement_costs_a_whole_start_where_workers_only_meet_at_their_start() -> None:
    made = world(protocol=1)
    made.memory = replace(made.memory, start=replace(made.memory.start, start_seconds=33.0))
    slowed(made)
    [verdict] = made.run(15)[-1].stragglers
    assert verdict.outlooks is not None
    assert verdict.outlooks.replacement_seconds == 33.0
