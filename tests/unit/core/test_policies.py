"""Each policy's own rules, asked directly; the papers' own to the letter, on numbers worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain_operator.clusters.simulated.laws import Affine, MemoryCliff, TimeLaw
from heterotrain_operator.core.batching.policies import POLICIES, Promise, Proposal, Seat
from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.core.prediction import PREDICTORS, Prediction
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.prediction.throughput_cap import ThroughputCap, capped, raised
from heterotrain_operator.core.remembered.batching import Batching
from heterotrain_operator.core.remembered_worker import RememberedWorker
from heterotrain_operator.core.split.allocation import Line
from unit.core.traces import World, hetero_job, hetero_world, seat

GROUP = Group(name="cpu", replicas=1)


def propose(policy: str, seats: list[Seat], stage: int = 0, **changes: object) -> Proposal:
    job = Job(name="job", groups=(GROUP,), global_batch=sum(s.batch for s in seats), policy=policy)
    return POLICIES[policy].propose(replace(job, **changes), seats, Batching(stage=stage))


def first(policy: str, *groups: Group) -> tuple[tuple[int, ...], str]:
    job = Job(name="job", groups=groups, global_batch=192, policy=policy)
    make = POLICIES[policy].first
    assert make is not None
    split = make(job, [Seat(group.name, group, 0, (0, 192)) for group in groups])
    return split.batches, split.reason


@pytest.mark.parametrize(
    ("policy", "groups", "batches", "reason"),
    [
        ("Uniform", [GROUP] * 3, (64, 64, 64), "equal shares"),
        ("Static", [Group("a", 1, cpu_limit=1.0), Group("b", 1, cpu_limit=0.5)], (128, 64), "CPU limit"),
        ("Static", [Group("a", 1, "gpu", flops=3e12, cpu_limit=1), Group("b", 1, flops=1e12)], (144, 48), "flops"),
        ("Static", [Group("a", 1, flops=3e12), Group("b", 1, flops=1e12)], (144, 48), "flops"),
        ("Static", [Group("a", 1, "gpu", flops=3e12), Group("b", 1)], (96, 96), "groups b state no flops"),
        # Taming, section IV-B: a GPU has 0.813 of all operations; and III-B, K * b0 * X_k / sum(X) for 3 * 64 samples.
        ("Static", [Group("a", 1, "gpu", flops=0.813e12), Group("b", 1, flops=0.187e12)], (156, 36), "flops"),
        ("Static", [Group(str(cores), 1, cpu_limit=cores) for cores in (9, 12, 18)], (44, 59, 89), "CPU limit"),
    ],
)
def test_first_batches_are_equal_or_shared_by_cores_or_by_flops_where_devices_mix(
    policy: str, groups: list[Group], batches: tuple[int, ...], reason: str
) -> None:
    found, why = first(policy, *groups)
    assert found == batches
    assert reason in why


@pytest.mark.parametrize(
    ("seats", "changes", "batches"),
    [
        ([seat(0.1, 64), seat(0.104, 64)], {}, None),  # within the dead-band
        ([seat(0.1, 64), seat(0.13, 64)], {}, (72, 56)),
        ([seat(0.1, 64), seat(0.2, 64), seat(0.4, 64)], {}, (110, 55, 27)),  # by the mean over the own time, rescaled
        ([seat(0.1, 64, variation=0.15), seat(0.12, 64, variation=0.15)], {}, None),  # noise could explain it
        ([seat(0.1, 64, (1, 64)), seat(0.4, 64, (64, 192))], {}, None),  # bounds let them not change
        ([seat(0.1, 90), seat(0.1, 90), seat(0.9, 12, (12, 192))], {}, None),  # rescaling would undo it
        ([seat(0.1, 64, (1, 70)), seat(0.2, 64), seat(0.4, 64)], {}, (70, 81, 41)),  # rescaled within bounds
        ([seat(0.1, 64), seat(0.3, 64)], {"fixed_global_batch": False}, (128, 43)),  # not rescaled
        ([seat(0.1, 100, (0, 192)), seat(None, 0, (0, 192))], {}, (99, 1)),  # one without samples is raised
    ],
)
def test_proportional_keeps_dead_band_noise_and_bounds(
    seats: list[Seat], changes: dict[str, bool], batches: tuple[int, ...] | None
) -> None:
    assert propose("Proportional", seats, **changes).batches == batches


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


def test_proportional_promises_a_step_no_slower_than_the_one_before_if_it_has_as_many_samples() -> None:
    seats = [seat(0.1, 64), seat(0.4, 64)]
    assert propose("Proportional", seats).promise == Promise(0.4)
    assert propose("Proportional", seats, fixed_global_batch=False).promise is None


@pytest.mark.parametrize(
    ("seats", "batches"),
    [
        ([seat(0.064, 64), seat(0.065, 64)], None),  # less than two per cent
        ([seat(0.064, 64), seat(0.068, 64)], (66, 62)),
        ([seat(0.1, 64, variation=0.15), seat(0.13, 64, variation=0.15)], None),  # noise could explain it
        ([seat(0.1, 64, (1, 74)), seat(0.6, 64, variation=0.5), seat(0.7, 64, variation=0.5)], (74, 64, 54)),
        ([seat(0.1, 64, (1, 74)), seat(0.55, 64, variation=0.5), seat(0.7, 64, variation=0.5)], None),
        ([seat(0.064, 64), seat(0.256, 64), seat(None, 0, (0, 192))], (103, 25, 0)),  # of which nothing is known
    ],
)
def test_optimal_moves_only_for_a_saving_that_is_worth_it_beyond_noise(
    seats: list[Seat], batches: tuple[int, ...] | None
) -> None:
    proposal = propose("Optimal", seats)
    assert proposal.batches == batches
    assert batches is not None or "repay a move beyond noise" in proposal.reason


def test_optimal_lets_no_batch_grow_beyond_four_times_in_one_plan() -> None:
    seats = [seat(0.01, 64), *[seat(1.0, 64) for _ in range(9)]]
    proposal = propose("Optimal", seats)
    assert proposal.batches[0] == 192, "bounded by the user"
    proposal = propose("Optimal", [s._replace(bounds=(1, 640)) for s in seats])
    assert proposal.batches[0] == 256


@pytest.mark.parametrize(("variation", "least"), [(0.3, 31), (0.02, 1)])
def test_optimal_leaves_a_worker_most_of_its_samples_where_its_time_is_not_sure(variation: float, least: int) -> None:
    """A fit of noisy times said that most of its time is there without samples, too."""
    line = Line(0.16, 0.001)
    predictor = replace(PREDICTORS["EMA"], predict=lambda known, batch, estimate: Prediction(line, True))
    slow = seat(0.26, 100, variation=variation, predictor=predictor)
    proposal = propose("Optimal", [slow, *[seat(0.1, 100, variation=0.02) for _ in range(3)]])
    assert proposal.batches[0] == least


def averaged(smoothed: float, batch: int, **rest: object) -> Seat:
    """A worker whose mean over ten steps is far from its moving average, and no longer counts."""
    made = Seat("w", GROUP, batch, (1, 192), Estimate(9.0, 1.0, 10), smoothed_seconds=smoothed)
    return made._replace(**rest)


def test_batches_are_multiplied_by_mean_over_moving_average_and_rescaled() -> None:
    """The mean is 0.2 s: (64 * 2, 64, 64 * 2/3) = (128, 64, 42.7) is 234.7, and 192 of these (104.7, 52.4, 34.9)."""
    assert propose("PapersProportional", [averaged(0.1, 64), averaged(0.2, 64), averaged(0.3, 64)]).batches == (
        105,
        52,
        35,
    )


@pytest.mark.parametrize(
    ("dead_band", "seconds", "moves"),
    [(0.05, 0.109, False), (0.05, 0.112, True), (0.10, 0.119, False), (0.10, 0.122, True)],
)
def test_papers_dead_band_is_the_jobs_whatever_the_noise(dead_band: float, seconds: float, moves: bool) -> None:
    """At 0.109 s the mean is 0.1045 s, and the greatest change 0.1045 / 0.1 - 1 = 4.5 %; at 0.112 s it is 6 %."""
    seats = [averaged(0.1, 64), averaged(seconds, 64)]
    assert (propose("PapersProportional", seats, dead_band=dead_band).batches is not None) is moves


def test_papers_control_may_change_the_global_batch_within_the_bounds() -> None:
    """The mean is 0.2 s: (64 * 2, 64, 64 * 2/3) = (128, 64, 42.7), and 96 bounds the first."""
    seats = [averaged(0.1, 64), averaged(0.2, 64), averaged(0.3, 64)]
    free = propose("PapersProportional", seats, fixed_global_batch=False)
    assert free.batches == (128, 64, 43)
    bounded = [each._replace(bounds=(12, 96)) for each in seats]
    assert propose("PapersProportional", bounded, fixed_global_batch=False).batches == (96, 64, 43)


def test_throughput_that_fell_once_after_a_raise_bounds_the_batch_for_good() -> None:
    known = raised(ThroughputCap(), 64, 100, Estimate(0.064, 0.0, 10))
    assert capped(known, 100, 0.0999).cap == 0
    known = capped(known, 100, 0.1001)
    assert known.cap == 64
    assert capped(known, 64, 0.01).cap == 64


def test_learned_bound_holds_when_the_batches_are_rescaled_too_if_all_together_hold_the_global_batch() -> None:
    """The first is slower than before it was raised, so 48 bounds it: (48, 42.7), and the second takes what it may."""
    cap = ThroughputCap(raised_from=48, raised_throughput=1000.0)
    seats = [averaged(0.1, 64, memory=RememberedWorker(throughput_cap=cap)), averaged(0.2, 64)]
    second = seats[1]._replace(smoothed_seconds=0.3)
    proposal = propose("PapersProportional", [seats[0], second])
    assert proposal.memories[0].throughput_cap == ThroughputCap(cap=48)
    assert proposal.batches == (48, 80)
    # Where it may take no more than 64 samples, (48, 64 * 0.2 / 0.3 = 42.67) is rescaled by 128 / 90.67 and clipped.
    assert propose("PapersProportional", [seats[0], second._replace(bounds=(1, 64))]).batches == (68, 60)


class CliffWorld(World):
    """Each sample beyond 90 takes ten times as long, as where memory is swapped."""

    def law(self) -> TimeLaw:
        return MemoryCliff(Affine(self.fixed, self.per_sample), 90, 10.0)


def test_papers_control_stays_at_the_batch_whose_raise_lowered_throughput() -> None:
    world = CliffWorld(hetero_job("PapersProportional", (1, 8, 8)), {f"job-g{rank}-0": 8.0 for rank in (1, 2)}).start()
    assert [decision.plan.batch_sizes[0] for decision in world.run(2)] == [130, 64]
    world.run(20)
    assert world.plan.batch_sizes == (64, 64, 64)


def test_papers_control_moves_at_boundaries_of_epochs_only() -> None:
    world = hetero_world("PapersProportional", noise=0.2, apply_at="epoch")
    moves = [interval for interval, each in enumerate(world.run(30)) if each.plan is not None]
    assert moves
    assert all(interval % 10 == 9 for interval in moves), "an epoch of the simulation has ten intervals"


def again(seats: list[Seat], proposal: Proposal, **changes: object) -> list[Seat]:
    """The same workers with what the policy remembers of them."""
    pairs = zip(seats, proposal.memories, strict=True)
    return [each._replace(memory=memory)._replace(**changes) for each, memory in pairs]


def test_papers_control_waits_for_the_end_of_an_epoch() -> None:
    seats = [averaged(0.1, 32, epoch=3), averaged(0.3, 32, epoch=3)]
    first = propose("PapersProportional", seats, apply_at="epoch")
    assert first.batches is None
    seats = again(seats, first)
    assert propose("PapersProportional", seats, apply_at="epoch").batches is None
    seats = again(seats, first, epoch=4)
    second = propose("PapersProportional", seats, apply_at="epoch")
    assert second.batches == (48, 16)
    assert propose("PapersProportional", again(seats, second), apply_at="epoch").batches is None
