"""Until a newcomer is warm that is to replace a straggler: nothing changes for those that train."""

from __future__ import annotations

from dataclasses import replace

from heterotrain_operator.core.lifecycle.prior import place_of
from heterotrain_operator.core.model import Group, Stragglers
from unit.core.replacing import (
    NEWCOMER,
    SLOW,
    created,
    is_warm,
    members,
    prepares,
    reasons,
    slowed,
    until_created,
    world,
)


def test_nothing_changes_before_the_newcomer_is_warm() -> None:
    made = world()
    slowed(made)
    until_created(made)
    prepares(made)
    before = members(made.plan)
    decisions = made.run(5)
    assert members(made.plan) == before
    assert created(decisions) == []
    assert [each.delete for each in decisions] == [()] * 5
    assert decisions[-1].replacing == ((SLOW, NEWCOMER),)


def test_replacement_that_dies_while_it_warms_leaves_all_as_it_was() -> None:
    made = world(Stragglers(action="Replace", cooldown_seconds=60), backoff_limit=0)
    slowed(made)
    until_created(made)
    prepares(made)
    made.run(2)
    before = members(made.plan)
    made.workers[NEWCOMER].end_for_good("no such device")
    decisions = made.run(3)
    assert reasons(decisions[:1]) == ["ReplacementGivenUp"]
    assert all(each.phase == "Running" for each in decisions)
    assert members(made.plan) == before
    assert NEWCOMER not in made.workers
    assert made.memory.budget.restarts == 0
    assert made.memory.pending == ()


def test_another_newcomer_is_tried_as_often_as_places_are_then_the_straggler_stays() -> None:
    made = world(Stragglers(action="Replace", cooldown_seconds=1e6), backoff_limit=2)
    slowed(made)
    decisions = until_created(made)
    for _ in range(40):
        for name, pod in made.workers.items():
            if name not in members(made.plan) and pod.exit_code is None:
                pod.end(1)
        made.train(5)
        decisions.append(made.tick(5))
    assert reasons(decisions) == ["ReplacingStraggler", "ReplacementFailed", "ReplacementFailed", "ReplacementGivenUp"]
    assert len(created(decisions)) == 3
    assert SLOW in members(made.plan)
    assert made.memory.remedies.replacements == 1


def test_newcomer_that_never_starts_is_given_up_after_the_startup_deadline() -> None:
    settings = Stragglers(action="Replace", cooldown_seconds=60)
    made = world(settings, backoff_limit=0, startup_deadline_seconds=100.0, progress_timeout_seconds=1e6)
    slowed(made)
    until_created(made)
    prepares(made)
    made.tick(60)
    assert NEWCOMER in made.workers
    decision = made.tick(60)
    assert NEWCOMER in decision.delete
    assert reasons([decision]) == ["ReplacementGivenUp"]


def test_newcomer_whose_warm_up_shows_no_gain_goes_and_the_straggler_stays() -> None:
    made = world(Stragglers(action="Replace", cooldown_seconds=1e6))
    slowed(made)
    until_created(made)
    is_warm(made, seconds=4 * (0.002 + 0.032))
    decisions = made.run(3)
    assert reasons(decisions) == ["ReplacementGivenUp"]
    assert "warm-up" in next(e.message for each in decisions for e in each.events if e.reason == "ReplacementGivenUp")
    assert SLOW in members(made.plan)
    assert NEWCOMER not in made.workers


def test_newcomer_at_the_straggler_s_place_is_taken_for_as_slow_unless_its_warm_up_shows_otherwise() -> None:
    for seconds, joins in ((None, False), (0.034, True)):
        made = world(Stragglers(action="Replace", cooldown_seconds=1e6))
        slowed(made)
        until_created(made)
        made.workers[NEWCOMER].node = "node-2"
        place = place_of(made.workers[NEWCOMER].seen())
        rows = [row._replace(place=place) if rank == 2 else row for rank, row in enumerate(made.memory.workers)]
        made.memory = replace(made.memory, workers=tuple(rows))
        is_warm(made, seconds=seconds)
        made.run(6)
        assert (NEWCOMER in members(made.plan)) is joins


def test_name_of_a_newcomer_that_goes_is_not_free_before_it_is_gone() -> None:
    made = world()
    slowed(made)
    until_created(made)
    prepares(made)
    made.job = replace(made.job, groups=(Group("a", 7),), stragglers=Stragglers(action="Report"))
    decision = made.tick()
    assert NEWCOMER in decision.delete
    assert [key.name for key in decision.create] == ["job-a-7"]


def test_straggler_that_recovers_stays_and_the_newcomer_goes() -> None:
    made = world()
    slowed(made)
    until_created(made)
    prepares(made)
    made.workers[SLOW].scale /= 4
    decisions = made.run(15)
    assert reasons(decisions, "StragglerRecovered", "ReplacementGivenUp") == [
        "StragglerRecovered",
        "ReplacementGivenUp",
    ]
    assert NEWCOMER not in made.workers


def test_newcomer_has_an_index_that_nobody_had_before_it() -> None:
    made = world()
    slowed(made)
    made.run(20)
    assert SLOW not in made.workers
    slowed(made, "job-a-4")
    assert [key.name for each in until_created(made) for key in each.create] == ["job-a-7"], "and not the free 2"


def test_newcomer_takes_the_place_of_a_straggler_that_dies_meanwhile() -> None:
    made = world()
    slowed(made)
    until_created(made)
    prepares(made)
    made.workers[SLOW].end(137)
    made.run(1)
    is_warm(made)
    made.run(6)
    assert len(members(made.plan)) == 6
    assert SLOW not in members(made.plan)
    assert made.created == 7, "and no other one is created"
    assert made.memory.remedies.replacing == ()


def test_newcomer_whose_swap_no_split_allows_is_kept_and_swapped_once_one_does() -> None:
    made = world()
    slowed(made)
    until_created(made)
    prepares(made)
    group = replace(made.job.groups[0], batch_min=32)  # as many as the global batch holds
    made.job = replace(made.job, groups=(replace(group, replicas=7),))
    made.tick()
    is_warm(made, seconds=0.034)
    decisions = made.run(3)
    assert f"{NEWCOMER} cannot take the place of {SLOW} yet" in decisions[-1].reason
    stored = made.memory.remedies.replacing
    decisions += made.run(3)
    assert made.memory.remedies.replacing == stored, "nothing is written again and again"
    assert (reasons(decisions), created(decisions)) == ([], [])
    assert NEWCOMER in made.workers
    assert SLOW in members(made.plan)
    made.job = replace(made.job, groups=(group,))
    assert reasons(made.run(6)) == ["WorkerReplaced"]
