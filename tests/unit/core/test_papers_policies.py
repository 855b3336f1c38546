"""The papers' own rules, which others are compared with: to the letter, on numbers worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain_operator.api.availability import known_policies
from heterotrain_operator.core.batching.policies import POLICIES, Proposal, Seat
from heterotrain_operator.core.memory.batching import Batching
from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.prediction.throughput_cap import ThroughputCap, capped, raised
from heterotrain_operator.core.worker_memory import WorkerMemory
from unit.core.traces import hetero_world

GROUP = Group(name="cpu", replicas=1)


def seat(smoothed: float, batch: int, **rest: object) -> Seat:
    """A worker whose mean over ten steps is far from its moving average, and no longer counts."""
    made = Seat("w", GROUP, batch, (1, 192), Estimate(9.0, 1.0, 10), smoothed_seconds=smoothed)
    return made._replace(**rest)  # type: ignore[arg-type]  # names and types are the tests' care


def propose(policy: str, seats: list[Seat], **changes: object) -> Proposal:
    job = Job(name="job", groups=(GROUP,), global_batch=sum(each.batch for each in seats), policy=policy)
    return POLICIES[policy].propose(replace(job, **changes), seats, Batching())  # type: ignore[arg-type]  # as above


def again(seats: list[Seat], proposal: Proposal, **changes: object) -> list[Seat]:
    """The same workers with what the policy remembers of them."""
    pairs = zip(seats, proposal.memories, strict=True)
    return [each._replace(memory=memory)._replace(**changes) for each, memory in pairs]  # type: ignore[arg-type]  # too


def test_papers_policies_are_no_choice_for_a_manifest() -> None:
    assert {"PapersProportional", "OmniLearn"} <= POLICIES.keys() - set(known_policies())


def test_papers_policies_wait_for_whole_intervals_however_unequal_workers_are() -> None:
    world = hetero_world("PapersProportional", scales=(1, 8))
    world.train(world.job.interval - 1)
    assert world.tick().plan is None
    world.train(1)
    assert world.tick().plan is not None


def test_batches_are_multiplied_by_mean_over_moving_average_and_rescaled() -> None:
    """The mean is 0.2 s: (64 * 2, 64, 64 * 2/3) = (128, 64, 42.7) is 234.7, and 192 of these (104.7, 52.4, 34.9)."""
    assert propose("PapersProportional", [seat(0.1, 64), seat(0.2, 64), seat(0.3, 64)]).batches == (105, 52, 35)


@pytest.mark.parametrize(("seconds", "moves"), [(0.109, False), (0.112, True)])
def test_dead_band_is_five_per_cent_whatever_the_noise(seconds: float, moves: bool) -> None:
    """At 0.109 s the mean is 0.1045 s, and the greatest change 0.1045 / 0.1 - 1 = 4.5 %; at 0.112 s it is 6 %."""
    assert (propose("PapersProportional", [seat(0.1, 64), seat(seconds, 64)]).batches is not None) is moves


def test_throughput_that_fell_once_after_a_raise_bounds_the_batch_for_good() -> None:
    known = raised(ThroughputCap(), 64, 100, Estimate(0.064, 0.0, 10))
    assert capped(known, 100, 0.0999).cap == 0
    known = capped(known, 100, 0.1001)
    assert known.cap == 64
    assert capped(known, 64, 0.01).cap == 64


def test_learned_bound_clips_before_the_batches_are_rescaled() -> None:
    """The first is slower than before it was raised, so 48 bounds it: (48, 42.7) is 90.7, and 128 of these (68, 60)."""
    cap = ThroughputCap(raised_from=48, raised_throughput=1000.0)
    seats = [seat(0.1, 64, memory=WorkerMemory(throughput_cap=cap)), seat(0.2, 64)]
    proposal = propose("PapersProportional", [seats[0], seats[1]._replace(smoothed_seconds=0.3)])
    assert proposal.memories[0].throughput_cap == ThroughputCap(cap=48)
    # (48, 64 * 0.2 / 0.3 = 42.67) is rescaled by 128 / 90.67.
    assert proposal.batches == (68, 60)


def test_omnilearn_waits_for_the_end_of_an_epoch() -> None:
    seats = [seat(0.1, 32, epoch=3), seat(0.3, 32, epoch=3)]
    first = propose("OmniLearn", seats)
    assert first.batches is None
    seats = again(seats, first)
    assert propose("OmniLearn", seats).batches is None
    seats = again(seats, first, epoch=4)
    second = propose("OmniLearn", seats)
    assert second.batches == (48, 16)
    assert propose("OmniLearn", again(seats, second)).batches is None


def ended_epoch(*pairs: tuple[float, int]) -> list[Seat]:
    """Workers of (moving average, batch) whose first epoch has ended."""
    return [seat(smoothed, batch, epoch=1, memory=WorkerMemory(noted=1)) for smoothed, batch in pairs]


@pytest.mark.parametrize(("seconds", "moves"), [(0.122, True), (0.119, False)])
def test_omnilearns_dead_band_is_ten_per_cent(seconds: float, moves: bool) -> None:
    """The greatest change is 0.111 / 0.1 - 1 = 11 %, or 9.5 %."""
    assert (propose("OmniLearn", ended_epoch((0.1, 32), (seconds, 32))).batches is not None) is moves


def test_omnilearn_clips_to_its_own_bounds_which_rescaling_leaves_again() -> None:
    """The mean is 0.4 s: 64 * 4 is clipped to 96, and 64 * 0.4 / 0.7 = 36.57; 128 of these are (92.7, 35.3)."""
    assert propose("OmniLearn", ended_epoch((0.1, 64), (0.7, 64))).batches == (93, 35)
    # Of four workers (96, 32, 32, 32) is 192 of 400 samples: the first gets 200, more than 96.
    batches = propose("OmniLearn", ended_epoch((0.1, 100), (1.0, 100), (1.0, 100), (1.0, 100))).batches
    assert batches is not None
    assert batches[0] > 96


def test_omnilearn_moves_at_boundaries_of_epochs_only() -> None:
    world = hetero_world("OmniLearn", noise=0.2)
    moves = [interval for interval, each in enumerate(world.run(60)) if each.plan is not None]
    assert moves
    assert all(interval % 10 == 9 for interval in moves), "an epoch of the simulation has ten intervals"


@pytest.mark.parametrize(
    ("policy", "follows"), [("PapersProportional", False), ("OmniLearn", False), ("Optimal", True)]
)
def test_papers_policies_follow_no_limit_before_it_is_measured(policy: str, follows: bool) -> None:
    world = hetero_world(policy, scales=(1, 1))
    for worker in world.workers.values():
        worker.cpu_limit = 1.0
    world.run(2)
    world.workers["job-g0-0"].cpu_limit = 0.5
    world.train(3)
    assert (world.tick().plan is not None) is follows
