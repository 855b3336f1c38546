"""Stragglers are acted on: one by fault is replaced by a newcomer that is faster, and nobody waits for that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heterotrain.contract import MEMBERS_MAY_END
from heterotrain_operator.core.lifecycle.prior import place_of
from heterotrain_operator.core.model import Decision, Group, Job, Stragglers
from heterotrain_operator.core.stragglers.verdict import Remedy
from unit.core.jobs import (
    NEWCOMER,
    SLOW,
    E,
    created,
    ends,
    is_warm,
    names,
    reasons,
    replacing,
    slowed,
    straggler_world,
    told,
    until_created,
)
from unit.core.traces import World

STORY = ("ReplacingStraggler", "ReplacementFailed", "ReplacementGivenUp", "WorkerReplaced")
PATIENT = Stragglers(action="Replace", cooldown_seconds=1e6)


def story(decisions: list[Decision]) -> list[str]:
    return reasons(decisions, *STORY)


# --- when --------------------------------------------------------------------------------------------------------


def test_straggler_by_fault_is_replaced_by_one_plan_and_nobody_starts_again() -> None:
    made = straggler_world()
    before = {name: pod.uid for name, pod in made.workers.items() if name != SLOW}
    decisions = slowed(made).run(20)
    assert story(decisions) == ["ReplacingStraggler", "WorkerReplaced"]
    swap = next(each.plan for each in decisions if each.plan is not None and NEWCOMER in names(each.plan))
    assert SLOW not in names(swap)
    assert swap.continues > 0
    assert {name: pod.uid for name, pod in made.workers.items() if name != NEWCOMER} == before
    assert (made.memory.budget.restarts, made.memory.remedies.replacing, decisions[-1].stragglers) == (0, (), ())
    changes = made.memory.transitions
    assert (changes.swaps, changes.joins, changes.leaves) == (1, 0, 0)
    assert 0 < changes.transition_seconds < 5
    last = slowed(made, E, factor=1.5).run(20)
    ahead = next(v.outlooks for each in last for v in each.stragglers if v.outlooks is not None)
    assert ahead.replacement_seconds < 7, "a replacement costs what changes have"
    assert created(last) == ["job-a-7"], "an index that nobody had, and not the free 2"


def test_newcomer_is_created_only_after_two_intervals_in_a_row_in_which_it_would_gain() -> None:
    made = slowed(straggler_world())
    counts = []
    while not made.run(1)[-1].create:
        counts.append(made.memory.workers[2].evidence.advised)
    assert counts[-2:] == [1, 2]
    assert max(counts[:-2]) <= 1
    assert made.decisions[-2].stragglers[0].remedy is made.decisions[-3].stragglers[0].remedy is Remedy.REPLACE


@pytest.mark.parametrize(
    ("action", "changes", "hindrance"),
    [
        ("Ignore", {}, ""),
        ("Report", {}, ""),
        ("Rebalance", {}, ""),
        ("Replace", {"dry_run": True}, "dry run"),
        ("Replace", {"protocol": 1}, "cannot change while it trains"),
    ],
)
def test_nobody_is_replaced_where_the_user_does_not_want_it_or_it_cannot_be(
    action: str, changes: dict[str, Any], hindrance: str
) -> None:
    made = slowed(straggler_world(Stragglers(action=action, cooldown_seconds=0), **changes))
    made.memory = replace(made.memory, start=replace(made.memory.start, start_seconds=33.0))
    decisions = made.run(20)
    assert created(decisions) == []
    assert made.plan is not None
    assert (SLOW in names(made.plan), made.memory.budget.restarts) == (True, 0)
    if hindrance:
        [verdict] = decisions[-1].stragglers
        assert hindrance in verdict.hindrance
    if "protocol" in changes:
        assert made.plan.batch_sizes[2] < min(batch for rank, batch in enumerate(made.plan.batch_sizes) if rank != 2)
        assert verdict.outlooks is not None
        assert verdict.outlooks.replacement_seconds == 33.0, "a whole start"
    if action == "Report":
        assert [each.plan for each in decisions] == [
            each.plan for each in slowed(straggler_world(Stragglers())).run(20)
        ]


@pytest.mark.parametrize(("peers", "replaced"), [(0, False), (2, True)])
def test_worker_that_always_was_too_slow_is_replaced_only_where_others_of_its_group_are_faster(
    peers: int, replaced: bool
) -> None:
    groups = (Group("a", 3), Group("c", 1 + peers, batch_min=32))
    job = Job("job", groups, 192, stragglers=Stragglers(action="Replace", cooldown_seconds=0))
    made = World(job, {"job-c-0": 6.0}, noise=0.03, seed=1, protocol=MEMBERS_MAY_END).start()
    assert bool(created(made.run(25))) is replaced


# --- how often ---------------------------------------------------------------------------------------------------


def test_no_more_are_replaced_than_the_budget_allows() -> None:
    made = slowed(straggler_world(Stragglers(action="Replace", cooldown_seconds=0, max_replacements=1)))
    decisions = slowed(made, E, factor=3.0).run(40)
    assert story(decisions) == ["ReplacingStraggler", "WorkerReplaced"]
    [verdict] = decisions[-1].stragglers
    assert verdict.worker == E
    assert "no replacement is left" in verdict.hindrance


def test_two_replacements_are_as_far_apart_as_the_cooldown() -> None:
    made = slowed(straggler_world(Stragglers(action="Replace", cooldown_seconds=600)))
    decisions = slowed(made, E, factor=3.0).run(40)
    assert reasons(decisions, "ReplacingStraggler") == ["ReplacingStraggler"]
    made.now += 600
    assert reasons(made.run(4), "ReplacingStraggler") == ["ReplacingStraggler"]


# --- until the newcomer is warm nothing changes for those that train ---------------------------------------------


def test_nothing_changes_before_the_newcomer_is_warm_also_if_the_operator_starts_again() -> None:
    made = replacing()
    made.forgetful = True
    before = names(made.plan)
    decisions = made.run(5)
    assert names(made.plan) == before
    assert [(each.create, each.delete) for each in decisions] == [((), ())] * 5
    assert decisions[-1].replacing == ((SLOW, NEWCOMER),)
    is_warm(made)
    decisions = made.run(6)
    assert (created(decisions), story(decisions)) == ([], ["WorkerReplaced"])


@pytest.mark.parametrize("limit", [0, 2])
def test_another_newcomer_is_tried_as_often_as_places_are_then_the_straggler_stays(limit: int) -> None:
    made = slowed(straggler_world(PATIENT, backoff_limit=limit))
    decisions = until_created(made)
    for _ in range(40):
        for name, pod in made.workers.items():
            if name not in names(made.plan) and pod.exit_code is None:
                pod.end_for_good("no such device")
        made.train(5)
        decisions.append(made.tick(5))
    assert story(decisions) == ["ReplacingStraggler", *["ReplacementFailed"] * limit, "ReplacementGivenUp"]
    assert len(created(decisions)) == limit + 1
    assert {each.phase for each in decisions} == {"Running"}
    assert made.workers.keys() == set(names(made.plan)) == {f"job-a-{index}" for index in range(6)}
    assert (made.memory.remedies.replacements, made.memory.pending, made.memory.budget.restarts) == (1, (), 0)


def test_newcomer_that_never_starts_is_given_up_after_the_startup_deadline() -> None:
    made = replacing(PATIENT, backoff_limit=0, startup_deadline_seconds=100.0, progress_timeout_seconds=1e6)
    made.tick(60)
    assert NEWCOMER in made.workers
    decision = made.tick(60)
    assert NEWCOMER in decision.delete
    assert story([decision]) == ["ReplacementGivenUp"]


@pytest.mark.parametrize(
    ("at_its_place", "seconds", "joins"),
    [(False, 4 * 0.034, False), (True, None, False), (True, 0.034, True), (False, None, True)],
)
def test_newcomer_that_shows_no_gain_goes_and_the_straggler_stays(
    at_its_place: bool, seconds: float | None, joins: bool
) -> None:
    made = replacing(PATIENT)
    if at_its_place:
        made.workers[NEWCOMER].node = "node-2"
        place = place_of(made.workers[NEWCOMER].seen())
        rows = [row._replace(place=place) if rank == 2 else row for rank, row in enumerate(made.memory.workers)]
        made.memory = replace(made.memory, workers=tuple(rows))
    is_warm(made, seconds=seconds)
    decisions = made.run(6)
    assert ((NEWCOMER in names(made.plan)), (SLOW in names(made.plan))) == (joins, not joins)
    if not joins:
        assert story(decisions) == ["ReplacementGivenUp"]
        assert ("warm-up" in told(decisions, *STORY)[0]) is (seconds is not None)
        assert NEWCOMER not in made.workers


def test_straggler_that_recovers_stays_and_the_newcomer_goes() -> None:
    made = replacing()
    made.workers[SLOW].scale /= 4
    decisions = made.run(15)
    assert reasons(decisions, "StragglerRecovered", *STORY) == ["StragglerRecovered", "ReplacementGivenUp"]
    assert NEWCOMER not in made.workers


def test_newcomer_takes_the_place_of_a_straggler_that_dies_meanwhile() -> None:
    made = replacing()
    ends(made, SLOW)
    made.run(1)
    is_warm(made)
    made.run(6)
    assert (len(names(made.plan)), SLOW in names(made.plan)) == (6, False)
    assert (made.created, made.memory.remedies.replacing) == (7, ()), "and no other one is created"


def test_newcomer_whose_swap_no_split_allows_is_kept_and_swapped_once_one_does() -> None:
    made = replacing()
    group = replace(made.job.groups[0], batch_min=32)  # as many as the global batch holds
    made.job = replace(made.job, groups=(replace(group, replicas=7),))
    made.tick()
    is_warm(made, seconds=0.034)
    decisions = made.run(3)
    assert f"{NEWCOMER} cannot take the place of {SLOW} yet" in decisions[-1].reason
    stored = made.memory.remedies.replacing
    decisions += made.run(3)
    assert made.memory.remedies.replacing == stored, "nothing is written again and again"
    assert (story(decisions), created(decisions)) == ([], [])
    assert NEWCOMER in made.workers
    assert SLOW in names(made.plan)
    made.job = replace(made.job, groups=(group,))
    assert story(made.run(6)) == ["WorkerReplaced"]
