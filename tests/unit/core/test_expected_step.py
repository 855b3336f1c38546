"""The step ends with the slowest of many: where workers' noise differs for sure, the expected step is what counts.

A split for the workers' noise is on trial: whole steps, as the workers measure them, bear it out or do not.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from statistics import fmean

import pytest

from heterotrain_operator.clusters.simulated.noise import Replayed
from heterotrain_operator.core.batching.policies import POLICIES, Proposal, Seat
from heterotrain_operator.core.batching.policies.optimal import MOST_RAISED
from heterotrain_operator.core.batching.policy import Promise
from heterotrain_operator.core.batching.rollback import BELIEF_KEPT, LONGEST_WAIT, TRIAL_WINDOWS, apply_trial, promised
from heterotrain_operator.core.model import Group, Job, WorkerMetrics
from heterotrain_operator.core.prediction import PREDICTORS
from heterotrain_operator.core.prediction.batch_cost import BatchCost
from heterotrain_operator.core.prediction.noise import variations_of
from heterotrain_operator.core.prediction.step_time import Estimate, StepTime
from heterotrain_operator.core.prediction.whole_steps import WholeSteps, observed
from heterotrain_operator.core.remembered.batching import Batching, Promises
from heterotrain_operator.core.remembered_worker import RememberedWorker
from heterotrain_operator.core.split.expected import best_caution, expected_step
from heterotrain_operator.core.state import Remembered
from unit.core.traces import World, hetero_job, seat

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


@pytest.mark.parametrize(
    ("known", "differ", "found"),
    [
        ([(0.10, 30), (0.12, 30), (0.09, 30)], False, [0.103] * 3),  # chance explains it
        ([(0.02, 60), (0.05, 60), (0.3, 60)], True, [0.02, 0.05, 0.3]),
        ([(0.02, 60), (0.3, 60), (0.0, 0)], True, [0.02, 0.3, 0.08]),  # one of whom nothing is known
        ([(0.02, 10), (0.3, 10)], False, [0.077] * 2),  # few steps
    ],
)
def test_variations_are_told_apart_where_chance_cannot_explain_them(
    known: list[tuple[float, int]], differ: bool, found: list[float]
) -> None:
    assert variations_of([(variation**2, steps) for variation, steps in known]) == (
        pytest.approx(found, rel=0.15),
        differ,
    )


def noisy_seat(variation: float, steps: float, cost: BatchCost = UNKNOWN) -> Seat:
    """One of several equally fast workers, measured at 64 samples."""
    made = seat(0.064, 64, (1, 512), variation=variation, steps=steps)
    step_time = StepTime().with_estimate(made.estimate)
    return made._replace(memory=RememberedWorker(step_time=step_time, batch_cost=cost))


def proposed(variations: tuple[float, ...], steps: float, believed: float = 1.0) -> Proposal:
    job = Job(name="job", groups=(GROUP,), global_batch=64 * len(variations))
    seats = [noisy_seat(variation, steps) for variation in variations]
    return POLICIES["Optimal"].propose(job, seats, Batching(noise_caution_weight=believed))


def test_optimal_gives_noisy_workers_fewer_samples_as_far_as_that_is_believed() -> None:
    batches = proposed(UNLIKE, 100).batches
    assert max(batches[1], batches[7]) < 60
    assert min(batches[0], batches[4]) > 66
    assert proposed(UNLIKE, 100, believed=0.0).batches is None
    half_noisy = (0.02, 0.4) * 16
    assert 0 < proposed(half_noisy, 1000, believed=0.5).saving <= 0.5 * proposed(half_noisy, 1000).saving


def test_split_for_noise_raises_nobody_far_beyond_its_speed() -> None:
    """By its line, more samples cost the first worker next to nothing, and it could take 120."""
    affine = PREDICTORS["EMA"]
    flat = affine.learn(affine.learn(BatchCost(), 64, Estimate(0.064, 1e-8, 1e6)), 32, Estimate(0.062, 1e-8, 1e6))
    found = [noisy_seat(variation, 300, flat if rank == 0 else UNKNOWN) for rank, variation in enumerate(UNLIKE)]
    batches = POLICIES["Optimal"].propose(Job("job", (GROUP,), 512), found, Batching()).batches
    assert batches[0] == MOST_RAISED * 64


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_steps_of_workers_of_unlike_noise_get_shorter_than_with_equal_means(seed: int) -> None:
    noise_of = {f"g{rank}": variation for rank, variation in enumerate(UNLIKE)}
    job = hetero_job("Optimal", [1.0] * len(UNLIKE), global_batch=512)
    world = World(job, noise_of=noise_of, seed=seed).start()
    equal = drawn_step(world.true_seconds(), list(UNLIKE))
    decisions = world.run(60)
    assert drawn_step(world.true_seconds(), list(UNLIKE)) <= 0.965 * equal
    assert not [decision for decision in decisions if "taken back" in decision.reason]
    assert len([decision for decision in decisions if decision.plan is not None]) <= 3


def counters(steps: float, seconds: float, own: float = 0.5) -> WorkerMetrics:
    """Of a worker that has measured so many steps, which took so long, `own` of it for its own part."""
    return WorkerMetrics(3, steps=steps, own_seconds=own * seconds, wait_seconds=(1 - own) * seconds)


def after(*windows: float, known: WholeSteps | None = None, steps: int = 10) -> WholeSteps:
    """What is known after windows of so many steps, whose steps took so long each."""
    known = known or WholeSteps()
    counted, total = known.whole_counted, known.whole_counted_seconds
    for seconds in windows:
        counted, total = counted + steps, total + steps * seconds
        known = observed(known, 3, [counters(counted, total), counters(counted, total, own=0.9)])
    return known


def test_steps_of_another_time_or_plan_and_counters_that_begin_again_begin_anew() -> None:
    known = after(*[0.2, 0.204] * 4)
    slower = after(0.4, known=known)
    assert (slower.whole_windows, slower.whole_mean) == (1, pytest.approx(0.4))
    assert observed(known, 4, [counters(10, 3.0)]) == WholeSteps(4, 10, 3.0, 0.3, 0.0, 10, 1)
    again = observed(known, 3, [counters(10, 2.0)])
    assert (again.whole_counted, again.whole_windows) == (10, 1)
    assert after(0.3, known=known.restarted()).whole_mean == pytest.approx(0.3)
    for foreign in ((1001.0, 1001 * 80_000.0), (1001.0, 200.0 + 1e-9)):  # beyond reason
        known = observed(WholeSteps(), 3, [counters(1000, 200.0)])
        assert observed(known, 3, [counters(*foreign)]) == known


@pytest.mark.parametrize(
    "foreign",
    [
        counters(math.nan, 1.0),
        counters(10, math.inf),
        counters(10, -5.0),
        counters(1e300, 1.0),
        counters(10, 10 * 50_000.0),
    ],
)
def test_what_one_worker_says_alone_is_not_believed(foreign: WorkerMetrics) -> None:
    found = observed(WholeSteps(), 3, [counters(10, 2.0), foreign, counters(10, 2.02), None])
    assert found.whole_mean == pytest.approx(0.202, rel=0.011)
    assert observed(WholeSteps(), 3, [None, counters(0, 0.0)]) == WholeSteps()


def seats() -> list[Seat]:
    """A steady worker and a noisy one, that had 64 samples each before the split for their noise."""
    found = []
    for rank, (batch, variation) in enumerate([(88, 0.02), (40, 0.3)]):
        estimate = Estimate(batch * 1e-3, (variation * batch * 1e-3) ** 2, 100)
        known = RememberedWorker(step_time=StepTime().with_estimate(estimate), replaced_batch=64)
        found.append(Seat(f"w-{rank}", GROUP, batch, (1, 127), estimate, estimate, known))
    return found


def on_trial(seconds: float, *, believed: float = 1.0, back_gap: float = 0.0, back_steps: float = 0.0) -> Remembered:
    """Of a plan whose whole steps take so long, where those before took 0.2 s: 0.11 s longer than expected, for
    communication. Of the present split 0.088 s are expected.
    """
    trial = Promises(trial_seconds=0.2, trial_gap=0.11, trial_steps=100.0, back_gap=back_gap, back_steps=back_steps)
    return Remembered(
        plan_version=3,
        promises=trial,
        batching=Batching(noise_caution_weight=believed),
        whole_steps=after(*[0.99 * seconds, 1.01 * seconds] * 3),
    )


KEPT = Proposal(None, "kept")
MOVED = Proposal((100, 28), "moved", saving=0.1, promise=Promise(0.08, expected=True))


def test_split_for_noise_that_made_no_step_shorter_is_taken_back_by_half_and_stays_on_trial() -> None:
    memory, proposal = apply_trial(on_trial(0.215), seats(), MOVED)
    assert proposal.batches == (76, 52)
    assert "whole steps take 215 ms, and took 200 ms before the last split for the workers' noise" in proposal.reason
    assert memory.batching.noise_caution_weight == 1.0
    memory = promised(replace(memory, workers=tuple(seat.memory for seat in seats())), proposal.promise, (88, 40))
    assert memory.promises.back_steps > 0
    assert memory.promises.back_gap == pytest.approx(0.215 - 0.09, abs=0.003)


@pytest.mark.parametrize(("slower", "batches"), [(1.3, None), (1.0, (76, 52))])
def test_steps_that_got_longer_with_own_times_do_not_speak_against_a_split(
    slower: float, batches: tuple[int, ...] | None
) -> None:
    present = [
        seat._replace(memory=seat.memory._replace(step_time=StepTime().with_estimate(seat.estimate.scaled(slower))))
        for seat in seats()
        if seat.estimate is not None
    ]
    assert apply_trial(on_trial(0.227), present, KEPT)[1].batches == batches


def test_batches_wait_for_what_half_of_the_way_back_regains_but_not_for_ever() -> None:
    memory = replace(on_trial(0.3, back_gap=0.13, back_steps=40.0), whole_steps=after(0.3, 0.302))
    proposals = []
    for _ in range(LONGEST_WAIT + 1):
        memory, proposal = apply_trial(memory, seats(), MOVED)
        proposals.append(proposal)
    assert "until it is known what was regained" in proposals[0].reason
    assert [proposal == MOVED for proposal in proposals] == [False] * LONGEST_WAIT + [True]
    assert memory.promises.trial_steps == 0


@pytest.mark.parametrize(
    ("seconds", "believed", "batches"),
    [(0.235, 1.0, None), (0.215, BELIEF_KEPT, (64, 64)), (0.2, BELIEF_KEPT, None)],
)
def test_only_what_the_way_back_regains_convicts_a_split(
    seconds: float, believed: float, batches: tuple[int, ...] | None
) -> None:
    """Steps took 0.04 s longer than whole steps before let expect. Where half of the way back regains nothing, it was
    not the split; where it does, but not all, the rest is taken back, too; and where it does regain all, it stays.
    """
    memory, proposal = apply_trial(on_trial(seconds, back_gap=0.15, back_steps=40.0), seats(), KEPT)
    assert memory.batching.noise_caution_weight == pytest.approx(believed)
    assert proposal.batches == batches
    assert memory.promises.trial_steps == 0


def shapes_of_noise() -> Replayed:
    """Own times of two kinds of workers: those of one vary far but within bounds, and those of the other less, but one
    in ten takes 2.2 times as long.
    """
    chance = random.Random(5)
    bounded = tuple(chance.choice((0.3, 1.0, 1.7)) for _ in range(97))
    seldom_long = tuple(2.2 if chance.random() < 0.1 else chance.uniform(0.7, 1.05) for _ in range(211))
    return Replayed((bounded, seldom_long))


def whole_step(world: World) -> float:
    """A whole step under the active plan, in seconds."""
    [metrics, *_] = [pod.metrics for pod in world.workers.values() if pod.metrics is not None]
    return (metrics.own_seconds + metrics.wait_seconds) / metrics.steps


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_shapes_of_noise_that_nobody_expects_make_no_step_longer_for_good(seed: int) -> None:
    """Those of seldom long times end the steps. By their variations alone they get more samples, as if the others did,
    and steps take an eighth longer.
    """
    job = hetero_job("Optimal", [1.0] * 48, global_batch=64 * 48)
    world = World(job, noise=shapes_of_noise(), seed=seed).start()
    equal = fmean(whole_step(world) for _ in range(10) if world.run(1))
    decisions = world.run(100)
    assert [each for each in decisions if "is taken back" in each.reason]
    assert whole_step(world) <= 1.07 * equal


def test_nobody_is_held_back_where_all_are_as_noisy_or_nobody_can_take_more() -> None:
    assert best_caution([1.0] * 8, [0.1] * 8) < 0.25
    assert best_caution([0.0] * 4, [0.1, 0.1, 0.3, 0.3]) == 0.0


def test_trial_ends_where_nothing_speaks_against_the_split() -> None:
    memory = on_trial(0.18)
    assert apply_trial(memory, seats(), KEPT)[0].promises.trial_steps > 0
    memory = replace(memory, whole_steps=after(*[0.179, 0.181] * (TRIAL_WINDOWS // 2)))
    assert apply_trial(memory, seats(), KEPT)[0].promises == Promises()


@pytest.mark.parametrize("seconds", [0.17, 0.198])
def test_split_for_noise_that_made_steps_shorter_stays(seconds: float) -> None:
    memory, proposal = apply_trial(on_trial(seconds), seats(), KEPT)
    assert proposal == KEPT
    assert memory.batching.noise_caution_weight == 1.0
