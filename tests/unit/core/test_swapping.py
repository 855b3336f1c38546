"""Between the plan that swaps a straggler and its newcomer and the step at which all go over to it."""

from __future__ import annotations

import pytest

from heterotrain_operator.core.model import Stragglers
from unit.core.replacing import (
    NEWCOMER,
    SLOW,
    fails,
    is_warm,
    members,
    prepares,
    reasons,
    slowed,
    swapping,
    until_created,
    world,
)


@pytest.mark.parametrize("forgetful", [False, True])
@pytest.mark.parametrize("how", ["kill", "preempt", "fatal", "delete", "vanish"])
def test_straggler_whose_newcomer_fails_before_the_switch_stays_a_member(how: str, forgetful: bool) -> None:
    made = swapping()
    made.forgetful = forgetful
    uid, before = made.workers[SLOW].uid, made.created
    fails(made, how)
    decision = made.tick()
    assert decision.phase == "Running"
    assert sorted(members(decision.plan)) == [f"job-a-{index}" for index in range(6)]
    assert decision.create == ()
    assert SLOW not in decision.delete
    assert decision.plan is not None
    assert decision.plan.continues > 0
    assert reasons([decision]) == ["ReplacementFailed"]
    assert decision.plan.batch_sizes[-1] < min(decision.plan.batch_sizes[:-1]), "it is as slow as it was"
    decisions = made.run(12)
    assert reasons(decisions) == ["WorkerReplaced"], "another newcomer takes the place"
    assert len(members(made.plan)) == 6
    assert SLOW not in members(made.plan)
    assert made.workers.keys() - set(members(made.plan)) <= {NEWCOMER if how == "delete" else ""}
    assert (made.created, made.memory.budget.restarts, made.memory.pending) == (before + 1, 0, ())
    assert uid not in {pod.uid for pod in made.workers.values()}


def test_two_stragglers_whose_newcomers_fail_together_get_one_each() -> None:
    made = world(Stragglers(action="Replace", cooldown_seconds=0, max_replacements=4), replicas=8)
    stragglers, newcomers = {"job-a-2", "job-a-3"}, ("job-a-8", "job-a-9")
    slowed(made, *stragglers)
    while not made.workers.keys() >= set(newcomers):
        made.run(1)
        for name in made.workers.keys() & set(newcomers):
            prepares(made, name)
    for name in newcomers:
        is_warm(made, name)
    while not stragglers.isdisjoint(members(made.plan)):
        decision = made.tick()
    assert decision.plan is not None
    assert set(newcomers) <= set(members(made.plan))
    for name in newcomers:
        fails(made, "kill", name)
    made.tick()
    assert stragglers <= set(members(made.plan))
    assert len({entry.index for entry in made.memory.remedies.replacing}) == 2
    decisions = made.run(30)
    assert reasons(decisions, "WorkerReplaced") == ["WorkerReplaced"] * 2
    assert len(members(made.plan)) == 8
    assert stragglers.isdisjoint(members(made.plan))


def test_straggler_stays_where_no_newcomer_is_ever_followed() -> None:
    made = world(Stragglers(action="Replace", cooldown_seconds=1e6), backoff_limit=1)
    training = made.cluster.training
    publish = type(training).publish
    there = {f"job-a-{index}" for index in range(6)}
    vars(training)["publish"] = lambda plan: publish(training, plan) if set(members(plan)) <= there else None
    slowed(made)
    decisions = []
    for _ in range(120):
        made.train(2)
        decisions.append(made.tick(5))
        assert decisions[-1].phase == "Running"
    assert reasons(decisions) == ["ReplacingStraggler", "ReplacementFailed", "ReplacementGivenUp"]
    assert made.workers.keys() == set(members(made.plan)) == there
    assert made.memory.budget.restarts == 0


def test_place_of_straggler_and_newcomer_that_both_fail_is_filled_once() -> None:
    made = swapping()
    fails(made, "kill")
    fails(made, "kill", SLOW)
    made.run(8)
    assert len(members(made.plan)) == 6
    assert made.created == 8
    assert made.memory.remedies.replacing == ()


def test_swap_begins_with_what_is_known_of_the_place_and_not_with_equal_batches() -> None:
    made = world(replicas=4)
    made.workers["job-a-0"].scale *= 0.5
    made.workers["job-a-1"].scale *= 0.5
    made.run(20)
    slowed(made, "job-a-3")
    decisions = made.run(20)
    swap = next(each for each in decisions if each.plan is not None and "job-a-4" in members(each.plan))
    assert swap.plan is not None
    batches = dict(zip(members(swap.plan), swap.plan.batch_sizes, strict=True))
    # The newcomer is expected to be as fast as the straggler was when it was healthy: half as fast as the first two.
    assert batches["job-a-4"] == pytest.approx(batches["job-a-2"], rel=0.25)
    assert batches["job-a-4"] < 0.75 * batches["job-a-0"]


@pytest.mark.parametrize(("scale", "share"), [(2.0, 0.5), (1.0, 1.0), (0.25, 1.0)])
def test_swap_gives_a_newcomer_the_batch_that_fits_its_warm_up_but_no_more_than_a_healthy_worker(
    scale: float, share: float
) -> None:
    made = world()
    slowed(made, factor=6.0)
    until_created(made)
    made.workers[NEWCOMER].scale = scale
    is_warm(made, seconds=scale * (0.002 + 0.032))
    swap = made.run(1)[-1]
    assert swap.plan is not None
    batches = dict(zip(members(swap.plan), swap.plan.batch_sizes, strict=True))
    assert batches[NEWCOMER] == pytest.approx(share * batches["job-a-0"], rel=0.2)
