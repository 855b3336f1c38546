"""A split for the workers' noise is on trial: whole steps, as the workers measure them, bear it out or do not."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from statistics import fmean

import pytest

from heterotrain_operator.clusters.simulated.noise import Replayed
from heterotrain_operator.core.batching.caution import BELIEF_KEPT, LONGEST_WAIT, TRIAL_WINDOWS, tried
from heterotrain_operator.core.batching.policies import Proposal, Seat
from heterotrain_operator.core.batching.policy import Promise
from heterotrain_operator.core.batching.rollback import promised
from heterotrain_operator.core.memory.batching import Batching, Promises
from heterotrain_operator.core.model import Group, WorkerMetrics
from heterotrain_operator.core.prediction.step_time import Estimate, StepTime
from heterotrain_operator.core.prediction.whole_steps import LEAST_WINDOWS, LONGEST_HISTORY, WholeSteps, observed
from heterotrain_operator.core.state import Memory
from heterotrain_operator.core.worker_memory import WorkerMemory
from unit.core.traces import World, hetero_job

GROUP = Group("g", 2)


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


def test_few_windows_tell_no_error_of_whole_steps() -> None:
    assert after(*[0.2, 0.21] * 2, steps=5).estimate(3) is not None
    assert after(*[0.2] * (LEAST_WINDOWS - 1)).estimate(3) is None
    assert WholeSteps().estimate(0) is None


def test_whole_steps_have_the_mean_of_all_and_the_error_that_windows_show() -> None:
    found = after(*[0.19, 0.21] * 8).estimate(3)
    assert found is not None
    assert found.mean_seconds == pytest.approx(0.2, rel=0.01)
    assert found.relative_error == pytest.approx(0.05 / math.sqrt(LONGEST_HISTORY), rel=0.1)


def test_windows_of_more_steps_count_for_more() -> None:
    known = after(*[0.2] * 4)
    assert after(0.202, known=known, steps=40).whole_mean == pytest.approx(0.201)


def test_older_windows_fade() -> None:
    known = after(*[0.2, 0.202] * 200)
    assert known.whole_windows == LONGEST_HISTORY
    assert known.whole_steps == pytest.approx(10 * LONGEST_HISTORY, rel=0.05)
    found = after(*[0.205, 0.207] * 200, known=known)
    assert found.whole_mean == pytest.approx(0.206, rel=1e-3)


def test_steps_of_another_time_begin_anew() -> None:
    known = after(*[0.2, 0.204] * 4, 0.4)
    assert (known.whole_windows, known.whole_mean) == (1, pytest.approx(0.4))
    assert known.estimate(3) is None


def test_another_plan_begins_anew() -> None:
    known = after(*[0.2, 0.204] * 4)
    assert known.estimate(4) is None
    assert observed(known, 4, [counters(10, 3.0)]) == WholeSteps(4, 10, 3.0, 0.3, 0.0, 10, 1)


def test_counters_that_begin_again_do_not_stop_it() -> None:
    known = observed(after(*[0.2, 0.204] * 4), 3, [counters(10, 2.0)])
    assert (known.whole_counted, known.whole_windows) == (10, 1)


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
        known = WorkerMemory(step_time=StepTime().with_estimate(estimate), replaced_batch=64)
        found.append(Seat(f"w-{rank}", GROUP, batch, (1, 127), estimate, estimate, known))
    return found


def on_trial(seconds: float, *, believed: float = 1.0, back_gap: float = 0.0, back_steps: float = 0.0) -> Memory:
    """Of a plan whose whole steps take so long, where those before took 0.2 s: 0.11 s longer than expected, for
    communication. Of the present split 0.088 s are expected.
    """
    trial = Promises(trial_seconds=0.2, trial_gap=0.11, trial_steps=100.0, back_gap=back_gap, back_steps=back_steps)
    return Memory(
        plan_version=3,
        promises=trial,
        batching=Batching(believed=believed),
        whole_steps=after(*[0.99 * seconds, 1.01 * seconds] * 3),
    )


KEPT = Proposal(None, "kept")
MOVED = Proposal((100, 28), "moved", saving=0.1, promise=Promise(0.08, expected=True))


def test_split_for_noise_that_made_no_step_shorter_is_taken_back_by_half_and_stays_on_trial() -> None:
    memory, proposal = tried(on_trial(0.215), seats(), MOVED)
    assert proposal.batches == (76, 52)
    assert "whole steps take 215 ms, and took 200 ms before the last split for the workers' noise" in proposal.reason
    assert memory.batching.believed == 1.0
    memory = promised(replace(memory, workers=tuple(seat.memory for seat in seats())), proposal.promise, (88, 40))
    assert memory.promises.back_steps > 0
    assert memory.promises.back_gap == pytest.approx(0.215 - 0.09, abs=0.003)


@pytest.mark.parametrize("seconds", [0.17, 0.198])
def test_split_for_noise_that_made_steps_shorter_stays(seconds: float) -> None:
    memory, proposal = tried(on_trial(seconds), seats(), KEPT)
    assert proposal == KEPT
    assert memory.batching.believed == 1.0


@pytest.mark.parametrize(("slower", "batches"), [(1.3, None), (1.0, (76, 52))])
def test_steps_that_got_longer_with_own_times_do_not_speak_against_a_split(
    slower: float, batches: tuple[int, ...] | None
) -> None:
    present = [
        seat._replace(memory=seat.memory._replace(step_time=StepTime().with_estimate(seat.estimate.scaled(slower))))
        for seat in seats()
        if seat.estimate is not None
    ]
    assert tried(on_trial(0.227), present, KEPT)[1].batches == batches


def test_trial_ends_where_nothing_speaks_against_the_split() -> None:
    memory = on_trial(0.18)
    assert tried(memory, seats(), KEPT)[0].promises.trial_steps > 0
    memory = replace(memory, whole_steps=after(*[0.179, 0.181] * (TRIAL_WINDOWS // 2)))
    assert tried(memory, seats(), KEPT)[0].promises == Promises()


def test_without_windows_enough_nothing_is_judged() -> None:
    memory = replace(on_trial(0.3), whole_steps=after(0.3, 0.302, 0.304))
    assert tried(memory, seats(), KEPT) == (memory, KEPT)
    assert tried(memory, seats(), MOVED) == (memory, MOVED)


def test_batches_stay_until_it_is_known_what_half_of_the_way_back_regains() -> None:
    memory = replace(on_trial(0.3, back_gap=0.13, back_steps=40.0), whole_steps=after(0.3, 0.302))
    _, proposal = tried(memory, seats(), MOVED)
    assert proposal.batches is None
    assert "until it is known what was regained" in proposal.reason


def test_batches_do_not_wait_for_ever_for_steps_that_tell_nothing() -> None:
    memory = replace(on_trial(0.3, back_gap=0.13, back_steps=40.0), whole_steps=after(0.3, 0.302))
    proposals = []
    for _ in range(LONGEST_WAIT + 1):
        memory, proposal = tried(memory, seats(), MOVED)
        proposals.append(proposal)
    assert [proposal == MOVED for proposal in proposals] == [False] * LONGEST_WAIT + [True]
    assert memory.promises.trial_steps == 0


@pytest.mark.parametrize("foreign", [(1001.0, 1001 * 80_000.0), (1001.0, 200.0 + 1e-9)])
def test_windows_beyond_reason_tell_nothing(foreign: tuple[float, float]) -> None:
    known = observed(WholeSteps(), 3, [counters(1000, 200.0)])
    assert observed(known, 3, [counters(*foreign)]) == known


def test_what_is_known_of_whole_steps_reads_back_as_it_was_written() -> None:
    foreign = Memory(whole_steps=WholeSteps(3, 0.0, 0.0, 8e4, 5e9, 1e12, 1))
    memory = replace(foreign, whole_steps=observed(foreign.whole_steps, 3, [counters(10, 2.0)])).rounded()
    assert Memory.from_json(memory.to_json()) == memory


def test_what_all_workers_share_is_in_both_sides_of_a_trial() -> None:
    """0.11 of the 0.2 s are communication, which does not get shorter with own times."""
    promises = on_trial(0.2).promises.scaled(0.5)
    assert promises.trial_seconds == pytest.approx(0.155)
    assert promises.trial_gap == 0.11


@pytest.mark.parametrize("seconds", [0.128, 0.032])
def test_jumps_end_a_trial_and_begin_whole_steps_anew(seconds: float) -> None:
    world = World(hetero_job("Optimal", [1.0, 1.0]), seed=1).start()
    world.run(8)
    assert world.memory.whole_steps.whole_windows > LEAST_WINDOWS
    world.memory = replace(world.memory, promises=replace(world.memory.promises, trial_steps=40.0))
    world.scales["job-g0-0"] = seconds / 0.064
    for pod in world.workers.values():
        pod.scale = world.scales.get(pod.name, 1.0)
    world.run(1)
    assert world.memory.promises.trial_steps == 0
    assert world.memory.whole_steps.whole_windows <= 1


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
    memory, proposal = tried(on_trial(seconds, back_gap=0.15, back_steps=40.0), seats(), KEPT)
    assert memory.batching.believed == pytest.approx(believed)
    assert proposal.batches == batches
    assert memory.promises.trial_steps == 0


def test_what_was_proposed_with_the_belief_before_a_conviction_waits_to_be_proposed_again() -> None:
    memory, proposal = tried(on_trial(0.2, back_gap=0.15, back_steps=40.0), seats(), MOVED)
    assert memory.batching.believed == pytest.approx(BELIEF_KEPT)
    assert proposal.batches is None
    assert tried(memory, seats(), MOVED)[1] == MOVED
    no_split_for_noise = replace(MOVED, promise=Promise(0.08))
    assert tried(on_trial(0.2, back_gap=0.15, back_steps=40.0), seats(), no_split_for_noise)[1] == no_split_for_noise


def test_disbelief_fades() -> None:
    memory = Memory(batching=Batching(believed=BELIEF_KEPT))
    for _ in range(3000):
        memory, _ = tried(memory, seats(), KEPT)
    assert memory.batching.believed == 1.0


@pytest.mark.parametrize("seconds", [0.08, 0.0])
def test_split_for_noise_goes_on_trial_with_whole_steps_and_what_was_expected_of_them(seconds: float) -> None:
    workers = tuple(seat.memory for seat in seats())
    memory = Memory(plan_version=3, workers=workers, whole_steps=after(*[0.198, 0.202] * 4))
    promises = promised(memory, Promise(seconds, expected=True), (64, 64)).promises
    assert (promises.trial_seconds, promises.trial_steps) == (pytest.approx(0.2), 80)
    assert promises.trial_gap == pytest.approx(0.2 - 0.09, abs=0.003)
    assert promises.promised_seconds == seconds
    assert (promises.replaced_seconds > 0) is (seconds > 0)
    unmeasured = replace(memory, whole_steps=WholeSteps())
    assert promised(unmeasured, Promise(seconds, expected=True), (64, 64)).promises.trial_steps == 0


def test_jumps_begin_whole_steps_anew() -> None:
    known = after(*[0.2, 0.204] * 4)
    assert known.restarted().estimate(3) is None
    assert after(0.3, known=known.restarted()).whole_mean == pytest.approx(0.3)


def shapes_of_noise() -> Replayed:
    """Own times of two kinds of workers: those of one vary far but within bounds, and those of the other less, but one
    in ten takes 2.2 times as long.
    """
    random = Random(5)
    bounded = tuple(random.choice((0.3, 1.0, 1.7)) for _ in range(97))
    seldom_long = tuple(2.2 if random.random() < 0.1 else random.uniform(0.7, 1.05) for _ in range(211))
    return Replayed((bounded, seldom_long))


def whole_step(world: World) -> float:
    """A whole step under the active plan, in seconds."""
    [metrics, *_] = [pod.metrics for pod in world.workers.values() if pod.metrics is not None]
    return (metrics.own_seconds + metrics.wait_seconds) / metrics.steps


@pytest.mark.parametrize("seed", range(3))
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
