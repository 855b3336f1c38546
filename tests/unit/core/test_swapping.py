"""A straggler and its newcomer between the plan that swaps them and the switch, and replacements that are given up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain_operator.core.model import Decision, Group, Stragglers
from heterotrain_operator.core.state import Remembered
from unit.core.jobs import (
    NEWCOMER,
    SLOW,
    A,
    E,
    ends,
    is_warm,
    names,
    prepares,
    reasons,
    replacing,
    slowed,
    straggler_world,
    swapping,
    told,
    until_created,
)

STORY = ("ReplacingStraggler", "ReplacementFailed", "ReplacementGivenUp", "WorkerReplaced")
PATIENT = Stragglers(action="Replace", cooldown_seconds=1e6)


def story(decisions: list[Decision]) -> list[str]:
    return reasons(decisions, *STORY)


# --- between the plan that swaps the two and the step at which all go over ---------------------------------------


@pytest.mark.parametrize("forgetful", [False, True])
@pytest.mark.parametrize("how", ["kill", "preempt", "fatal", "delete", "vanish"])
def test_straggler_whose_newcomer_fails_before_the_switch_stays_a_member(how: str, forgetful: bool) -> None:
    made = swapping()
    made.forgetful = forgetful
    uid, before = made.workers[SLOW].uid, made.created
    ends(made, NEWCOMER, how)
    decision = made.tick()
    plan = decision.plan
    assert plan is not None
    assert (decision.phase, sorted(names(plan))) == ("Running", [f"job-a-{index}" for index in range(6)])
    assert (decision.create, SLOW in decision.delete, plan.continues > 0) == ((), False, True)
    assert story([decision]) == ["ReplacementFailed"]
    assert plan.batch_sizes[-1] < min(plan.batch_sizes[:-1]), "it is as slow as it was"
    assert story(made.run(12)) == ["WorkerReplaced"], "another newcomer takes the place"
    assert (len(names(made.plan)), SLOW in names(made.plan)) == (6, False)
    assert made.workers.keys() - set(names(made.plan)) <= {NEWCOMER if how == "delete" else ""}
    assert (made.created, made.memory.budget.restarts, made.memory.pending) == (before + 1, 0, ())
    assert uid not in {pod.uid for pod in made.workers.values()}


def test_two_stragglers_whose_newcomers_fail_together_get_one_each() -> None:
    made = straggler_world(Stragglers(action="Replace", cooldown_seconds=0, max_replacements=4), replicas=8)
    stragglers, newcomers = {"job-a-2", "job-a-3"}, ("job-a-8", "job-a-9")
    slowed(made, *stragglers)
    while not made.workers.keys() >= set(newcomers):
        made.run(1)
        for name in made.workers.keys() & set(newcomers):
            prepares(made, name)
    for name in newcomers:
        is_warm(made, name)
    while not stragglers.isdisjoint(names(made.plan)):
        made.tick()
    assert set(newcomers) <= set(names(made.plan))
    for name in newcomers:
        ends(made, name)
    made.tick()
    assert stragglers <= set(names(made.plan))
    assert len({entry.index for entry in made.memory.remedies.replacing}) == 2
    assert reasons(made.run(30), "WorkerReplaced") == ["WorkerReplaced"] * 2
    assert len(names(made.plan)) == 8
    assert stragglers.isdisjoint(names(made.plan))


def test_straggler_stays_where_no_newcomer_is_ever_followed() -> None:
    made = straggler_world(PATIENT, backoff_limit=1)
    training, there = made.cluster.training, {f"job-a-{index}" for index in range(6)}
    publish = type(training).publish
    vars(training)["publish"] = lambda plan: publish(training, plan) if set(names(plan)) <= there else None
    slowed(made)
    decisions = []
    for _ in range(120):
        made.train(2)
        decisions.append(made.tick(5))
        assert decisions[-1].phase == "Running"
    assert story(decisions) == ["ReplacingStraggler", "ReplacementFailed", "ReplacementGivenUp"]
    assert made.workers.keys() == set(names(made.plan)) == there


def test_place_of_straggler_and_newcomer_that_both_fail_is_filled_once() -> None:
    made = swapping()
    ends(made, NEWCOMER)
    ends(made, SLOW)
    made.run(8)
    assert (len(names(made.plan)), made.created, made.memory.remedies.replacing) == (6, 8, ())


def test_swap_begins_with_what_is_known_of_the_place_and_not_with_equal_batches() -> None:
    made = straggler_world(replicas=4)
    for name in (A, "job-a-1"):
        made.workers[name].scale *= 0.5
    made.run(20)
    decisions = slowed(made, "job-a-3").run(20)
    plan = next(each.plan for each in decisions if each.plan is not None and E in names(each.plan))
    batches = dict(zip(names(plan), plan.batch_sizes, strict=True))
    # The newcomer is expected to be as fast as the straggler was when it was healthy: half as fast as the first two.
    assert batches[E] == pytest.approx(batches["job-a-2"], rel=0.25)
    assert batches[E] < 0.75 * batches[A]


@pytest.mark.parametrize(("scale", "share"), [(2.0, 0.5), (1.0, 1.0), (0.25, 1.0)])
def test_swap_gives_a_newcomer_the_batch_that_fits_its_warm_up_but_no_more_than_a_healthy_worker(
    scale: float, share: float
) -> None:
    made = slowed(straggler_world(), factor=6.0)
    until_created(made)
    made.workers[NEWCOMER].scale = scale
    is_warm(made, seconds=scale * (0.002 + 0.032))
    plan = made.run(1)[-1].plan
    assert plan is not None
    batches = dict(zip(names(plan), plan.batch_sizes, strict=True))
    assert batches[NEWCOMER] == pytest.approx(share * batches[A], rel=0.2)


def test_straggler_that_is_about_to_leave_is_not_deleted_while_the_job_ends() -> None:
    made = swapping()
    ends(made, A, "finish")  # before anybody has gone over
    assert SLOW not in made.tick().delete


# --- when replacements are given up whatever the newcomer does ---------------------------------------------------


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


def test_restart_is_counted_as_no_change_of_members() -> None:
    made = straggler_world()
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
