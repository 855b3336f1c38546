"""Each policy's own rules, asked directly."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain_operator.core.batching.policies import POLICIES, PROFILE_PLANS, Promise, Proposal, Seat
from heterotrain_operator.core.memory.batching import Batching
from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.core.prediction import PREDICTORS, Prediction
from heterotrain_operator.core.prediction.batch_cost import BatchCost
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.split.allocation import Line
from heterotrain_operator.core.split.multiples import Bounds
from heterotrain_operator.core.worker_memory import WorkerMemory

GROUP = Group(name="cpu", replicas=1)


def seat(seconds: float | None, batch: int, bounds: Bounds = (1, 192), variation: float = 0.0, **rest: object) -> Seat:
    """A worker measured over ten steps."""
    estimate = None if seconds is None else Estimate(seconds, (variation * seconds) ** 2, 10)
    made = Seat(f"w-{batch}", GROUP, batch, bounds, estimate, estimate)
    return made._replace(**rest)  # type: ignore[arg-type]  # names and types are the tests' care


def propose(policy: str, seats: list[Seat], stage: int = 0, **changes: object) -> Proposal:
    job = Job(name="job", groups=(GROUP,), global_batch=sum(s.batch for s in seats), policy=policy)
    return POLICIES[policy].propose(replace(job, **changes), seats, Batching(stage=stage))  # type: ignore[arg-type]  # as above


def first(policy: str, groups: list[Group], global_batch: int = 192) -> tuple[tuple[int, ...], str]:
    job = Job(name="job", groups=tuple(groups), global_batch=global_batch, policy=policy)
    make = POLICIES[policy].first
    assert make is not None
    split = make(job, [Seat(group.name, group, 0, (0, global_batch)) for group in groups])
    return split.batches, split.reason


def test_uniform_gives_equal_batches() -> None:
    assert first("Uniform", [GROUP] * 3, 190)[0] == (64, 63, 63)
    assert propose("Uniform", [seat(1.0, 100), seat(2.0, 92)]).batches == (96, 96)


@pytest.mark.parametrize(
    ("groups", "batches"),
    [
        ([Group("a", 1, cpu_limit=1.0), Group("b", 1, cpu_limit=0.5)], (128, 64)),
        ([Group("a", 1, "gpu", flops=3e12, cpu_limit=1), Group("b", 1, flops=1e12, cpu_limit=1)], (144, 48)),
        ([Group("a", 1, flops=3e12), Group("b", 1, flops=1e12)], (144, 48)),
    ],
)
def test_static_shares_by_cores_or_by_flops_where_devices_mix(groups: list[Group], batches: tuple[int, ...]) -> None:
    assert first("Static", groups)[0] == batches


def test_static_without_the_figures_is_uniform_and_says_so() -> None:
    batches, reason = first("Static", [Group("a", 1, "gpu", flops=3e12), Group("b", 1, cpu_limit=1.0)])
    assert batches == (96, 96)
    assert "groups b state no flops" in reason


def test_proportional_multiplies_by_mean_over_own_time_and_rescales() -> None:
    proposal = propose("Proportional", [seat(0.1, 64), seat(0.2, 64), seat(0.4, 64)])
    assert proposal.batches == (110, 55, 27)
    assert "w-64 takes 400 ms at 64 samples, the median is 200 ms; moving 46 samples to w-64" in proposal.reason


def test_proportional_without_a_fixed_global_batch_does_not_rescale() -> None:
    proposal = propose("Proportional", [seat(0.1, 64), seat(0.3, 64)], fixed_global_batch=False)
    assert proposal.batches == (128, 43)


@pytest.mark.parametrize(("seconds", "moves"), [(0.104, False), (0.13, True)])
def test_proportional_keeps_batches_within_the_dead_band(seconds: float, moves: bool) -> None:
    proposal = propose("Proportional", [seat(0.1, 64), seat(seconds, 64)])
    assert (proposal.batches is not None) is moves
    assert proposal.reason


def test_proportional_applies_the_dead_band_to_the_clipped_change() -> None:
    # Both would change far, but their bounds let them not.
    assert propose("Proportional", [seat(0.1, 64, (1, 64)), seat(0.4, 64, (64, 192))]).batches is None


def test_proportional_does_not_publish_a_change_that_rescaling_undoes() -> None:
    # The slow worker cannot go lower: the fast ones would be raised alike and scaled back.
    assert propose("Proportional", [seat(0.1, 90), seat(0.1, 90), seat(0.9, 12, (12, 192))]).batches is None


def test_proportional_hands_out_within_bounds_after_rescaling() -> None:
    proposal = propose("Proportional", [seat(0.1, 64, (1, 70)), seat(0.2, 64), seat(0.4, 64)])
    assert proposal.batches == (70, 81, 41)


@pytest.mark.parametrize("seconds", [0.8, 8.0, 86_400.0])
def test_proportional_leaves_the_shares_of_the_others_however_long_one_worker_takes(seconds: float) -> None:
    batches = propose("Proportional", [seat(0.1, 64), seat(0.2, 64), seat(seconds, 64)]).batches
    assert batches is not None
    assert batches[0] / batches[1] == pytest.approx(2, rel=0.05)


def test_proportional_waits_where_noise_could_explain_the_change() -> None:
    noisy = [seat(0.1, 64, variation=0.15), seat(0.12, 64, variation=0.15)]
    assert propose("Proportional", noisy).batches is None


def test_proportional_raises_a_worker_without_samples() -> None:
    proposal = propose("Proportional", [seat(0.1, 100, (0, 192)), seat(None, 0, (0, 192))])
    assert proposal.batches is not None
    assert proposal.batches[1] >= 1


def seen_to_grow_by(power: float, seconds: float, batch: int) -> Seat:
    """A worker whose own time is known to grow by `power` per cent where its batch grows by one."""
    slope = power * seconds / batch
    line = Line(seconds - slope * batch, slope)
    predictor = replace(PREDICTORS["EMA"], predict=lambda known, batch, estimate: Prediction(line, True))
    return seat(seconds, batch, predictor=predictor)


@pytest.mark.parametrize(("power", "batches"), [(0.5, (102, 26)), (1.0, (102, 26)), (2.0, (85, 43))])
def test_proportional_moves_less_where_times_are_seen_to_grow_faster_than_batches(
    power: float, batches: tuple[int, int]
) -> None:
    """At the square 64 * sqrt(0.25 / 0.1) = 101.2 and 64 * sqrt(0.25 / 0.4) = 50.6 are scaled to 128 samples."""
    seats = [seen_to_grow_by(power, 0.1, 64), seen_to_grow_by(power, 0.4, 64)]
    assert propose("Proportional", seats).batches == batches


def test_proportional_promises_a_step_no_slower_than_the_one_before() -> None:
    proposal = propose("Proportional", [seat(0.1, 64), seat(0.4, 64)])
    assert proposal.promise == Promise(0.4)


def test_proportional_promises_nothing_of_a_step_of_other_samples() -> None:
    assert propose("Proportional", [seat(0.1, 64), seat(0.3, 64)], fixed_global_batch=False).promise is None


def test_optimal_moves_to_the_split_that_ends_all_together() -> None:
    proposal = propose("Optimal", [seat(0.064, 64), seat(0.128, 64), seat(0.256, 64)])
    assert proposal.batches == (110, 55, 27)
    assert "saves 57 % of the step" in proposal.reason


@pytest.mark.parametrize(("seconds", "moves"), [(0.065, False), (0.068, True)])
def test_optimal_moves_only_for_a_saving_above_two_per_cent(seconds: float, moves: bool) -> None:
    assert (propose("Optimal", [seat(0.064, 64), seat(seconds, 64)]).batches is not None) is moves


def test_optimal_waits_where_noise_could_explain_the_saving() -> None:
    proposal = propose("Optimal", [seat(0.1, 64, variation=0.15), seat(0.13, 64, variation=0.15)])
    assert proposal.batches is None
    assert "repay a move beyond noise" in proposal.reason


@pytest.mark.parametrize(("most", "moves"), [(66, False), (76, True), (192, True)])
def test_optimal_waits_for_no_noise_where_bounds_keep_the_fast_worker_from_taking_more(most: int, moves: bool) -> None:
    fast, slow = seat(0.1, 64, (1, most), variation=0.2), seat(0.7, 64, variation=0.5)
    assert (propose("Optimal", [fast, slow]).batches is not None) is moves


def test_optimal_waits_for_noise_where_one_of_those_that_gain_may_be_slow() -> None:
    seats = [seat(0.1, 64, (1, 74)), seat(0.6, 64, variation=0.5), seat(0.7, 64, variation=0.5)]
    assert propose("Optimal", seats).batches == (74, 64, 54)
    seats[1] = seat(0.55, 64, variation=0.5)
    assert propose("Optimal", seats).batches is None


def test_optimal_lets_no_batch_grow_beyond_four_times_in_one_plan() -> None:
    seats = [seat(0.01, 64), *[seat(1.0, 64) for _ in range(9)]]
    proposal = propose("Optimal", seats)
    assert proposal.batches is not None
    assert proposal.batches[0] == 192, "bounded by the user"
    proposal = propose("Optimal", [s._replace(bounds=(1, 640)) for s in seats])
    assert proposal.batches is not None
    assert proposal.batches[0] == 256


@pytest.mark.parametrize(("variation", "least"), [(0.3, 31), (0.02, 1)])
def test_optimal_leaves_a_worker_most_of_its_samples_where_its_time_is_not_sure(variation: float, least: int) -> None:
    """A fit of noisy times said that most of its time is there without samples, too."""
    line = Line(0.16, 0.001)
    predictor = replace(PREDICTORS["EMA"], predict=lambda known, batch, estimate: Prediction(line, True))
    slow = seat(0.26, 100, variation=variation, predictor=predictor)
    proposal = propose("Optimal", [slow, *[seat(0.1, 100, variation=0.02) for _ in range(3)]])
    assert proposal.batches is not None
    assert proposal.batches[0] == least


def test_optimal_leaves_a_worker_of_which_nothing_is_known() -> None:
    proposal = propose("Optimal", [seat(0.064, 64), seat(0.256, 64), seat(None, 0, (0, 192))])
    assert proposal.batches is not None
    assert proposal.batches[2] == 0


def test_optimal_gives_samples_again_to_a_worker_that_became_fast() -> None:
    cost = BatchCost(speed=0.1, sum_w=100, sum_wb=6400, sum_wbb=6400 * 64, sum_wy=100, sum_wby=6400)
    known = WorkerMemory(batch_cost=cost)
    proposal = propose("Optimal", [seat(0.2, 128, (0, 192)), seat(None, 0, (0, 192), memory=known)])
    assert proposal.batches == (64, 64)


def test_profile_runs_five_plans_of_different_sizes_and_then_rests() -> None:
    seats = [seat(0.064, 64), seat(0.128, 64), seat(0.256, 64, (20, 192))]
    plans = [tuple(s.batch for s in seats)]
    stage = 0
    while (proposal := propose("Profile", seats, stage, global_batch=192)).batches is not None:
        assert proposal.stage is not None
        memories = proposal.memories or tuple(s.memory for s in seats)
        stage = proposal.stage
        plans.append(proposal.batches)
        seats = [
            s._replace(batch=batch, memory=memory)
            for s, batch, memory in zip(seats, proposal.batches, memories, strict=True)
        ]
    assert plans == [(64, 64, 64), (110, 55, 27), (66, 33, 20), (143, 72, 35), (88, 44, 22)]
    assert len(plans) == PROFILE_PLANS


def test_one_worker_keeps_the_whole_batch() -> None:
    for name in POLICIES:
        proposal = propose(name, [seat(0.1, 64, (1, 64))], stage=PROFILE_PLANS - 1)
        assert proposal.batches in (None, (64,))
