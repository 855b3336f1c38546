"""Stragglers are acted on: replaced by a newcomer that is faster, or removed where the others gain; nobody waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heterotrain.contract import MEMBERS_MAY_END
from heterotrain_operator.core.lifecycle.prior import place_of
from heterotrain_operator.core.model import Decision, Group, Job, Stragglers
from heterotrain_operator.core.remembered.sizes import Resize
from heterotrain_operator.core.state import Remembered
from heterotrain_operator.core.stragglers.verdict import Remedy
from unit.core.jobs import (
    NEWCOMER,
    SLOW,
    A,
    B,
    C,
    D,
    E,
    created,
    ends,
    is_warm,
    names,
    reasons,
    replacing,
    slowed,
    straggler_world,
    swapping,
    told,
    until_created,
)
from unit.core.traces import World

STORY = ("ReplacingStraggler", "ReplacementFailed", "ReplacementGivenUp", "WorkerReplaced")
PATIENT = Stragglers(action="Replace", cooldown_seconds=1e6)


def story(decisions: list[Decision]) -> list[str]:
    return reasons(decisions, *STORY)


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
    assert (SLOW in names(made.plan), made.memory.budget.restarts) == (True, 0)
    if hindrance:
        [verdict] = decisions[-1].stragglers
        assert hindrance in verdict.hindrance
    if "protocol" in changes:
        assert made.plan.batch_sizes[2] < min(batch for rank, batch in enumerate(made.plan.batch_sizes) if rank != 2)
        assert verdict.outlooks.replacement_seconds == 33.0, "a whole start"
    if action == "Report":
        assert [each.plan for each in decisions] == [
            each.plan for each in slowed(straggler_world(Stragglers(action="Ignore"))).run(20)
        ]


@pytest.mark.parametrize(("peers", "replaced"), [(0, False), (2, True)])
def test_worker_that_always_was_too_slow_is_replaced_only_where_others_of_its_group_are_faster(
    peers: int, replaced: bool
) -> None:
    groups = (Group("a", 3), Group("c", 1 + peers, batch_min=32))
    job = Job("job", groups, 192, stragglers=Stragglers(action="Replace", cooldown_seconds=0))
    made = World(job, {"job-c-0": 6.0}, noise=0.03, seed=1, protocol=MEMBERS_MAY_END).start()
    assert bool(created(made.run(25))) is replaced


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


@pytest.mark.parametrize("forgetful", [False, True])
@pytest.mark.parametrize("how", ["kill", "preempt", "fatal", "delete", "vanish"])
def test_straggler_whose_newcomer_fails_before_the_switch_stays_a_member(how: str, forgetful: bool) -> None:
    made = swapping()
    made.forgetful = forgetful
    uid, before = made.workers[SLOW].uid, made.created
    ends(made, NEWCOMER, how)
    decision = made.tick()
    plan = decision.plan
    assert (decision.phase, sorted(names(plan))) == ("Running", [f"job-a-{index}" for index in range(6)])
    assert (decision.create, SLOW in decision.delete, plan.continues > 0) == ((), False, True)
    assert story([decision]) == ["ReplacementFailed"]
    assert plan.batch_sizes[-1] < min(plan.batch_sizes[:-1]), "it is as slow as it was"
    assert story(made.run(12)) == ["WorkerReplaced"], "another newcomer takes the place"
    assert (len(names(made.plan)), SLOW in names(made.plan)) == (6, False)
    assert made.workers.keys() - set(names(made.plan)) <= {NEWCOMER if how == "delete" else ""}
    assert (made.created, made.memory.budget.restarts, made.memory.pending) == (before + 1, 0, ())
    assert uid not in {pod.uid for pod in made.workers.values()}


def test_place_of_straggler_and_newcomer_that_both_fail_is_filled_once() -> None:
    made = swapping()
    ends(made, NEWCOMER)
    ends(made, SLOW)
    made.run(8)
    assert (len(names(made.plan)), made.created, made.memory.remedies.replacing) == (6, 8, ())


@pytest.mark.parametrize(("scale", "share"), [(2.0, 0.5), (1.0, 1.0), (0.25, 1.0)])
def test_swap_gives_a_newcomer_the_batch_that_fits_its_warm_up_but_no_more_than_a_healthy_worker(
    scale: float, share: float
) -> None:
    made = slowed(straggler_world(), factor=6.0)
    until_created(made)
    made.workers[NEWCOMER].scale = scale
    is_warm(made, seconds=scale * (0.002 + 0.032))
    plan = made.run(1)[-1].plan
    batches = dict(zip(names(plan), plan.batch_sizes, strict=True))
    assert batches[NEWCOMER] == pytest.approx(share * batches[A], rel=0.2)


def test_straggler_that_is_about_to_leave_is_not_deleted_while_the_job_ends() -> None:
    made = swapping()
    ends(made, A, "finish")  # before anybody has gone over
    assert SLOW not in made.tick().delete


@pytest.mark.parametrize("how", ["memory lost", "suspended", "finished", "members stay"])
def test_newcomer_goes_once_it_cannot_replace_anybody(how: str) -> None:
    made = replacing()
    for name, pod in made.workers.items():
        if how == "finished" and name != NEWCOMER:
            pod.end(0, finished=True)
        elif how == "members stay" and name != NEWCOMER:
            pod.protocol = 1
    if how == "memory lost":
        made.memory = Remembered.initial()
    made.job = replace(made.job, suspend=how == "suspended")
    decided = made.tick()
    assert NEWCOMER in decided.delete or (how == "memory lost" and NEWCOMER in made.tick().delete)
    assert decided.replacing == made.memory.remedies.replacing == ()
    assert decided.phase == {"suspended": "Suspended", "finished": "Succeeded"}.get(how, "Running")
    assert story([decided]) == (["ReplacementGivenUp"] if how in ("finished", "members stay") else [])
    if how == "members stay":
        assert told([decided], *STORY) == [f"{SLOW} stays: the members can no longer change while they train"]
    assert story([made.tick(), made.tick()]) == []


def test_newcomer_after_whose_joining_members_can_no_longer_change_has_replaced_the_straggler() -> None:
    made = swapping()
    first = len(made.decisions)
    for pod in made.workers.values():
        pod.protocol = 1
    made.run(3)
    assert story(made.decisions[first:]) == ["WorkerReplaced"]
    assert made.memory.remedies.replacing == ()
    assert NEWCOMER in names(made.plan)


REMOVE = Stragglers(action="Remove")


def world(
    *, least: int = 16, min_replicas: int = 1, protocol: int = MEMBERS_MAY_END, settings: Stragglers = REMOVE
) -> World:
    """Four alike workers, each of which has at least so many of the 128 samples."""
    group = Group("a", 4, batch_min=least, min_replicas=min_replicas)
    made = World(Job("job", (group,), 128, stragglers=settings), noise=0.03, seed=2, protocol=protocol).start()
    made.run(12)
    return made


def removed(made: World, intervals: int = 20, factor: float = 6) -> list[Decision]:
    """The third worker becomes a straggler."""
    made.workers[C].scale *= factor
    return made.run(intervals)


def removals(decisions: list[Decision]) -> list[str]:
    return told(decisions, "WorkerRemoved")


@pytest.mark.parametrize("forgetful", [False, True])
def test_straggler_that_holds_the_others_up_at_its_least_batch_is_removed_and_not_created_again(
    forgetful: bool,
) -> None:
    made = world()
    made.forgetful = forgetful
    assert made.decisions[-1].resized == ()
    decisions = removed(made)
    [said] = removals(decisions)
    assert "without it" in said
    assert list(made.workers) == names(made.plan) == [A, B, D]
    assert made.plan.global_batch_size == 128
    assert max(made.true_seconds()) < 6 * (0.002 + 0.016) / 2
    assert (made.created, made.memory.budget.restarts, decisions[-1].resized) == (4, 0, (("a", -1),))
    ends(made, D)
    made.run(6)
    assert (len(names(made.plan)), made.created) == (3, 5), "one that dies beside it is replaced"
    assert made.memory.sizes.removed == (Resize("a", 4, -1),)


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({"least": 1}, 2),
        ({"min_replicas": 4}, 6),
        ({"protocol": 1}, 6),
        *(
            ({"settings": Stragglers(action=each, max_replacements=0)}, 6)
            for each in ("Report", "Rebalance", "Replace")
        ),
    ],
    ids=["the others are no faster", "the group's least", "members stay", "Report", "Rebalance", "Replace"],
)
def test_straggler_stays_where_that_does_not_gain_or_may_not_be(changes: dict[str, object], factor: float) -> None:
    made = world(**changes)
    decisions = removed(made, 25, factor)
    assert decisions[-1].stragglers
    assert (removals(decisions), len(names(made.plan))) == ([], 4)
    if "protocol" in changes:
        assert "cannot change while it trains" in decisions[-1].stragglers[0].hindrance


@pytest.mark.parametrize(("least", "gone"), [(3, [B]), (2, [B, D])])
def test_of_two_stragglers_as_many_are_removed_one_after_the_other_as_the_group_can_do_without(
    least: int, gone: list[str]
) -> None:
    made = world(min_replicas=least)
    made.workers[B].scale *= 8
    made.workers[D].scale *= 4
    decisions = made.run(40)
    assert [each.split()[0] for each in removals(decisions)] == gone
    assert names(made.plan) == [name for name in (A, B, C, D) if name not in gone]
    assert made.created == 4
    assert made.memory.sizes.removed == (Resize("a", 4, -len(gone)),)


@pytest.mark.parametrize("how", ["edited", "no longer to be removed", "all start again"])
def test_place_comes_back(how: str) -> None:
    made = world()
    removed(made)
    assert len(names(made.plan)) == 3
    if how == "edited":
        made.job = replace(made.job, groups=(replace(made.job.groups[0], replicas=5),))
    elif how == "no longer to be removed":
        made.job = replace(made.job, stragglers=Stragglers(action="Report"))
        assert made.tick().resized == ()
    else:
        for pod in made.workers.values():
            pod.end(137)
    for _ in range(8):
        made.train(2)
        made.tick(5)
    assert len(names(made.plan)) == (5 if how == "edited" else 4)
    assert made.memory.sizes.removed == ()


def test_name_of_a_newcomer_that_goes_is_not_free_before_it_is_gone() -> None:
    made = replacing()
    made.job = replace(made.job, groups=(Group("a", 7),), stragglers=Stragglers(action="Report"))
    decision = made.tick()
    assert NEWCOMER in decision.delete
    assert created([decision]) == ["job-a-7"]
