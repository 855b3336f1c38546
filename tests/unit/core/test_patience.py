"""Small gains are taken each time that the evidence has grown."""

from __future__ import annotations

from statistics import fmean

import pytest

from heterotrain_operator.core.batching.policy import Proposal, Seat
from heterotrain_operator.core.batching.rebalance import evidence_of, greatest_of, with_patience
from heterotrain_operator.core.model import Group
from heterotrain_operator.core.prediction.step_time import Estimate
from unit.core.traces import hetero_world

BETTER = Proposal((60, 68), "moving 4 samples", saving=0.05)
KEPT = Proposal(None, "batches stay", likely=BETTER)


def seats(steps: float, inflation: float = 1.0, workers: int = 2) -> list[Seat]:
    """Workers whose steps vary by 20 %, measured for so long."""
    estimate = Estimate(0.1, 0.02**2, steps, inflation)
    return [Seat(name, Group(name, 1), 64, (1, 128), estimate) for name in map(str, range(workers))]


def asked(rested_on: float, seats: list[Seat], proposal: Proposal, *, urgent: bool = False) -> Proposal:
    return with_patience(rested_on, evidence_of(seats), seats, proposal, urgent=urgent)


@pytest.mark.parametrize(("steps", "rested_on", "taken"), [(150, 100, True), (149, 100, False), (15, 1, False)])
def test_gain_that_noise_might_explain_is_taken_once_the_evidence_has_grown(
    steps: float, rested_on: float, taken: bool
) -> None:
    """5 % are 3 standard errors of 150 steps, and 0.97 of 15."""
    proposal = asked(rested_on, seats(steps), KEPT)
    assert proposal is (BETTER if taken else KEPT)


@pytest.mark.parametrize(("workers", "taken"), [(8, True), (32, False)])
def test_of_more_workers_the_slowest_seems_slower_by_chance(workers: int, taken: bool) -> None:
    """5 % are 1.1 standard errors of 20 steps."""
    assert asked(1, seats(20, workers=workers), KEPT) is (BETTER if taken else KEPT)
    assert greatest_of(32) > 1.4 * greatest_of(8) > 0


def test_batches_that_no_estimates_chose_leave_only_for_what_is_sure() -> None:
    assert asked(0.0, seats(1000), KEPT) is KEPT


def test_steps_that_are_alike_count_as_fewer() -> None:
    assert asked(100, seats(150, inflation=1.1), KEPT) is KEPT


@pytest.mark.parametrize(("steps", "urgent", "taken"), [(90, True, True), (90, False, False), (100, True, False)])
def test_straggler_is_rebalanced_once_its_jump_has_cut_the_evidence_down_if_that_is_urgent(
    steps: float, urgent: bool, taken: bool
) -> None:
    """And not again before the evidence has grown, since the split rests on what there was."""
    proposal = asked(100, seats(steps), KEPT, urgent=urgent)
    assert proposal is (BETTER if taken else KEPT)


def test_nothing_likely_and_what_is_decided_stay_as_they_are() -> None:
    decided = Proposal((1, 127), "moved")
    assert asked(1, seats(100), decided) is decided
    nothing = Proposal(None, "batches stay")
    assert asked(1, seats(100), nothing) is nothing


def test_noise_of_forty_per_cent_keeps_no_wrong_split_and_causes_few_plans() -> None:
    plans, over = [], []
    for seed in range(6):
        world = hetero_world(scales=(1, 1.5, 2, 4), noise=0.4, seed=seed, global_batch=512)
        world.run(30)
        before = len([each for each in world.decisions if each.plan is not None])
        steps = []
        for _ in range(60):
            world.run(1)
            steps.append(max(world.true_seconds()))
        plans.append(len([each for each in world.decisions if each.plan is not None]) - before)
        over.append(fmean(steps) / best_seconds())
    assert fmean(plans) <= 2
    assert fmean(over) <= 1.05


def best_seconds() -> float:
    """The best step of that job: workers at 1, 1.5, 2 and 4 times 2 ms and 1 ms a sample."""
    return (512 + 4 * 2) * 0.001 / (1 + 1 / 1.5 + 1 / 2 + 1 / 4)
