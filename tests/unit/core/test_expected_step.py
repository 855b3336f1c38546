"""The step ends with the slowest of many: where workers' noise differs for sure, the expected step is what counts."""

from __future__ import annotations

import random
from statistics import fmean

import pytest

from heterotrain_operator.core.batching.likeness import noise_of
from heterotrain_operator.core.batching.policies import POLICIES, Proposal, Seat
from heterotrain_operator.core.batching.policies.optimal import MOST_RAISED
from heterotrain_operator.core.memory.batching import Batching
from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.core.prediction import PREDICTORS, Prediction
from heterotrain_operator.core.prediction.batch_cost import BatchCost
from heterotrain_operator.core.prediction.noise import Variation, variations_of
from heterotrain_operator.core.prediction.step_time import Estimate, StepTime
from heterotrain_operator.core.split.allocation import Line
from heterotrain_operator.core.split.expected import alike, best_caution, expected_step
from heterotrain_operator.core.worker_memory import WorkerMemory
from unit.core.traces import World, hetero_job

GROUP = Group(name="cpu", replicas=1)
UNKNOWN = BatchCost()
UNLIKE = (0.02, 0.3, 0.06, 0.1, 0.02, 0.2, 0.04, 0.3)


def drawn_step(means: list[float], variations: list[float], draws: int = 4000) -> float:
    """The mean of the slowest of gamma-distributed own times."""
    rng = random.Random(1)
    return fmean(
        max(mean * rng.gammavariate(1 / cv**2, cv**2) for mean, cv in zip(means, variations, strict=True))
        for _ in range(draws)
    )


@pytest.mark.parametrize(
    "variations", [[0.1] * 3, [0.1] * 32, list(UNLIKE), [0.02] * 31 + [0.3]], ids=["3", "32", "unlike", "one"]
)
def test_expected_step_is_that_of_many_draws(variations: list[float]) -> None:
    means = [1 + 0.01 * rank for rank in range(len(variations))]
    assert expected_step(means, variations) == pytest.approx(drawn_step(means, variations), rel=0.025)


def test_step_of_one_worker_is_its_own_time() -> None:
    assert expected_step([0.0, 0.25, 0.0], [0.1, 0.1, 0.3]) == pytest.approx(0.25, rel=1e-3)
    assert expected_step([], []) == expected_step([0.0], [0.1]) == 0.0


def test_many_workers_are_reckoned_in_classes_as_well_as_one_by_one() -> None:
    few = [1 + 0.003 * rank for rank in range(20)]
    noise = [0.05, 0.2] * 10
    assert expected_step(few + [1e-3] * 20, noise * 2) == pytest.approx(expected_step(few, noise), rel=0.005)


def test_nobody_is_held_back_where_all_are_as_noisy() -> None:
    assert best_caution([1.0] * 8, [0.1] * 8) < 0.25


def test_nobody_is_held_back_where_nobody_can_take_more() -> None:
    assert best_caution([0.0] * 4, [0.1, 0.1, 0.3, 0.3]) == 0.0


def test_noisy_workers_are_held_back_where_that_makes_the_step_shorter() -> None:
    noise = alike(UNLIKE)
    caution = best_caution([1.0] * 8, noise)
    held = [1 / (1 + caution * each) for each in noise]
    level = len(held) / sum(held)
    assert drawn_step([level * each for each in held], noise) <= 0.95 * drawn_step([1.0] * 8, noise)


def test_variations_that_chance_explains_are_drawn_together() -> None:
    variations, differ = variations_of([(0.10**2, 30), (0.12**2, 30), (0.09**2, 30)])
    assert not differ
    assert max(variations) == pytest.approx(min(variations), rel=1e-6)


def test_variations_that_differ_for_sure_are_told_apart() -> None:
    variations, differ = variations_of([(0.02**2, 60), (0.05**2, 60), (0.3**2, 60)])
    assert differ
    assert variations == pytest.approx([0.02, 0.05, 0.3], rel=0.15)


def test_worker_of_whom_nothing_is_known_counts_as_usual() -> None:
    variations, differ = variations_of([(0.02**2, 60), (0.3**2, 60), (0.0, 0)])
    assert differ
    assert 0.05 < variations[2] < 0.12


def test_few_steps_tell_no_variations_apart() -> None:
    assert variations_of([(0.02**2, 10), (0.3**2, 10)])[1] is False
    assert variations_of([]) == ([], False)


def test_variation_is_remembered_over_plans_and_follows_changes() -> None:
    known = Variation().learned(StepTime(mean_seconds=0.1, variance=1e-4, steps=100.0, roughness=80.0))
    assert known == Variation(100)
    known = known.learned(StepTime(mean_seconds=0.1, variance=9e-4, steps=50.0, roughness=80.0))
    assert 200 < known.thousandths < 300
    assert known.learned(StepTime()) == known


def seat(rank: int, variation: float, steps: float, cost: BatchCost = UNKNOWN) -> Seat:
    """One of several equally fast workers, measured at 64 samples."""
    estimate = Estimate(0.064, (variation * 0.064) ** 2, steps)
    known = WorkerMemory(step_time=StepTime().with_estimate(estimate), batch_cost=cost)
    return Seat(f"w-{rank}", GROUP, 64, (1, 512), estimate, estimate, known)


def proposed(variations: tuple[float, ...], steps: float, believed: float = 1.0) -> Proposal:
    job = Job(name="job", groups=(GROUP,), global_batch=64 * len(variations))
    seats = [seat(rank, variation, steps) for rank, variation in enumerate(variations)]
    return POLICIES["Optimal"].propose(job, seats, Batching(believed=believed))


def test_optimal_gives_noisy_workers_fewer_samples() -> None:
    batches = proposed(UNLIKE, 100).batches
    assert batches is not None
    assert max(batches[1], batches[7]) < 60
    assert min(batches[0], batches[4]) > 66


def test_caution_that_is_not_believed_moves_nobody() -> None:
    assert proposed(UNLIKE, 100, believed=0.0).batches is None


def test_what_a_split_for_noise_saves_counts_as_far_as_it_is_believed() -> None:
    half_noisy = (0.02, 0.4) * 16
    assert 0 < proposed(half_noisy, 1000, believed=0.5).saving <= 0.5 * proposed(half_noisy, 1000).saving


def test_split_is_never_said_to_save_more_than_with_all_belief() -> None:
    """The noisiest could take all samples, the steadiest has a long fixed part and as many as it may, and so has the
    third: without caution for noise a few samples more would be moved.
    """
    cases = [(48, 480, 0.1145, 0.0, 0.42), (43, 43, 0.0891, 0.85, 0.0186), (31, 31, 0.1334, 0.0, 0.105)]
    found = []
    for rank, (batch, most, seconds, share, variation) in enumerate(cases):
        estimate = Estimate(seconds, (variation * seconds) ** 2, 100_000)
        known = WorkerMemory(step_time=StepTime().with_estimate(estimate))
        line = Prediction(Line(share * seconds, (1 - share) * seconds / batch), is_sure=True)
        found.append(Seat(f"w-{rank}", GROUP, batch, (1, most), estimate, memory=known, predicted=line))
    assert noise_of([each.memory for each in found])[1]
    for believed in (1.0, 0.3):
        proposal = POLICIES["Optimal"].propose(Job("job", (GROUP,), 122), found, Batching(believed=believed))
        assert proposal.batches is None


def test_what_is_saved_by_speeds_counts_however_little_the_caution_is_believed() -> None:
    found = [seat(rank, variation, 1000) for rank, variation in enumerate(UNLIKE)]
    slow = found[0].estimate
    assert slow is not None
    found[0] = found[0]._replace(estimate=slow.scaled(2.0))
    proposal = POLICIES["Optimal"].propose(Job("job", (GROUP,), 512), found, Batching(believed=0.01))
    assert proposal.batches is not None
    assert proposal.batches[0] < 40
    assert proposal.saving > 0.2


def test_split_for_noise_raises_nobody_far_beyond_its_speed() -> None:
    """By its line, more samples cost the first worker next to nothing, and it could take 120."""
    affine = PREDICTORS["EMA"]
    flat = affine.learn(affine.learn(BatchCost(), 64, Estimate(0.064, 1e-8, 1e6)), 32, Estimate(0.062, 1e-8, 1e6))
    found = [seat(rank, variation, 300, flat if rank == 0 else UNKNOWN) for rank, variation in enumerate(UNLIKE)]
    batches = POLICIES["Optimal"].propose(Job("job", (GROUP,), 512), found, Batching()).batches
    assert batches is not None
    assert batches[0] == MOST_RAISED * 64


@pytest.mark.parametrize(("variations", "steps"), [(UNLIKE, 10), ((0.1,) * 8, 1000), ((0.04, 0.05) * 4, 1000)])
def test_optimal_keeps_equal_means_together_where_noise_may_be_equal_or_costs_little(
    variations: tuple[float, ...], steps: float
) -> None:
    assert proposed(variations, steps).batches is None


@pytest.mark.parametrize("seed", range(3))
def test_steps_of_workers_of_unlike_noise_get_shorter_than_with_equal_means(seed: int) -> None:
    noise_of = {f"g{rank}": variation for rank, variation in enumerate(UNLIKE)}
    job = hetero_job("Optimal", [1.0] * len(UNLIKE), global_batch=512)
    world = World(job, noise_of=noise_of, seed=seed).start()
    equal = drawn_step(world.true_seconds(), list(UNLIKE))
    decisions = world.run(60)
    assert drawn_step(world.true_seconds(), list(UNLIKE)) <= 0.965 * equal
    assert not [decision for decision in decisions if "taken back" in decision.reason]
    assert len([decision for decision in decisions if decision.plan is not None]) <= 3
