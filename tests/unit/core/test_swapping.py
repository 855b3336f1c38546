"""A straggler and its newcomer between the plan that swaps them and the switch, and replacements that are given up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain_operator.core.model import Decision
from heterotrain_operator.core.state import Remembered
from unit.core.jobs import (
    NEWCOMER,
    SLOW,
    A,
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

STORY = ("ReplacingStraggler", "ReplacementFailed", "ReplacementGivenUp", "WorkerReplaced")


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
