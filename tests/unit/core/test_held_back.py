"""What holds a worker back is its speed, and what it computes the cost of its batch, even where both change at once."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from heterotrain_operator.core.batching.measuring import _taken
from heterotrain_operator.core.lifecycle.refill import _without_its_worker
from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.core.prediction.causes import held_back, remembered, shows_another_speed, window_closed
from heterotrain_operator.core.prediction.predictors.ema import PREDICTOR
from heterotrain_operator.core.prediction.resource_use import Cause, ResourceUse, Spent, spent_in
from heterotrain_operator.core.prediction.roughness import FIRST as ROUGHNESS_AT_FIRST
from heterotrain_operator.core.prediction.step_time import Estimate, StepTime, window_of
from heterotrain_operator.core.worker_memory import WorkerMemory
from unit.core.metered import MeteredWorld

FIRST, SECOND = "job-g1-0", "job-g2-0"
LIMIT = 0.8
"""Cores; a worker that computes for 0.8 s in each second gets all of it."""

KINDS = ("cpu_throttled_seconds", "cpu_wait_seconds")


def interfered(kind: str, *, exports: bool = True, noise: float = 0.0, seed: int = 0) -> MeteredWorld:
    """A neighbour beside one worker, then beside another; the first leaves as batches move because of the second, so
    that the new plan's first window shows another batch and another speed at once.
    """
    world = MeteredWorld("Optimal", noise=noise, seed=seed)
    world.exports = exports
    for worker in world.workers.values():
        worker.cpu_limit = LIMIT
    world.run(4)
    world.disturb(2.5, kind, FIRST)
    world.run(6)
    world.disturb(2.5, kind, SECOND)
    assert world.run(1)[0].plan is not None
    world.disturb(1.0, name=FIRST)
    return world


def imbalance(world: MeteredWorld) -> float:
    """The slowest worker's own time over the quickest one's."""
    return max(world.true_seconds()) / min(world.true_seconds())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_neighbour_that_leaves_as_batches_move_is_seen_to_have_left(kind: str, seed: int) -> None:
    """Without the counters, its speed counts as the cost of its new batch, and the next plan is worse."""
    seen, unseen = interfered(kind, noise=0.05, seed=seed), interfered(kind, exports=False, noise=0.05, seed=seed)
    for world in (seen, unseen):
        world.run(1)
    assert imbalance(seen) < 1.12
    assert imbalance(unseen) > 1.4


def test_how_windows_varied_before_a_neighbour_came_says_nothing_of_those_beside_it() -> None:
    """Or a job with rough first steps would leave batches as they are for long."""
    world = MeteredWorld("Optimal", noise=0.05)
    for worker in world.workers.values():
        worker.cpu_limit = LIMIT
    world.run(6)
    rough = [known._replace(step_time=known.step_time._replace(roughness=400.0)) for known in world.memory.workers]
    world.memory = replace(world.memory, workers=tuple(rough))
    world.disturb(6.0, "cpu_throttled_seconds", FIRST)
    world.run(1)
    after = [known.step_time.roughness for known in world.memory.workers]
    assert after[1] == 100 * ROUGHNESS_AT_FIRST
    assert min(after[0], after[2]) > 300


@pytest.mark.parametrize("first_steps", [3, 6, 8, 9])
def test_neighbour_beside_which_steps_vary_by_a_third_is_answered_within_three_intervals(first_steps: int) -> None:
    """Also where it comes within a window, of a job whose own times are rough."""
    waited = []
    for seed in range(8):
        world, random = MeteredWorld("Optimal", noise=0.05, seed=seed), Random(seed)
        for worker in world.workers.values():
            worker.cpu_limit = LIMIT
        world.run(2)
        rough = [each._replace(step_time=each.step_time._replace(roughness=260.0)) for each in world.memory.workers]
        world.memory = replace(world.memory, workers=tuple(rough))
        world.train(first_steps)
        steps = first_steps
        while world.decisions[-1].plan is None and steps < 100:
            world.disturb(2.2 * max(random.gauss(1.0, 0.35), 0.4), "cpu_throttled_seconds", FIRST)
            world.train(1)
            steps += 1
            if steps % 10 == 0:
                world.tick()
        waited.append(steps)
    assert max(waited) <= 30


@pytest.mark.parametrize("kind", KINDS)
def test_neighbour_that_comes_as_batches_move_is_named(kind: str) -> None:
    world = interfered(kind)
    world.run(3)
    world.disturb(1.0, name=SECOND)
    assert world.run(1)[0].plan is not None
    world.disturb(2.5, kind, FIRST)
    reason = world.run(1)[0].reason
    held = "its unchanged CPU limit held it back" if kind == KINDS[0] else "it waited for a CPU"
    assert f"{FIRST} went from" in reason
    assert held in reason
    assert world.cause == (Cause.CPU_LIMIT if kind == KINDS[0] else Cause.NEIGHBOUR)


HELD = ResourceUse(held=250)
"""Under a limit of 0.4 cores that binds: 2.5 seconds for one of CPU time."""


def shown(
    known: ResourceUse,
    now: float,
    ratio: float,
    *,
    cpu_limit: float = 0.4,
    threads: float | None = 1.0,
    at_new_batch: bool = True,
) -> bool:
    """Whether a window shows another speed."""
    return shows_another_speed(known, now, ratio=ratio, cpu_limit=cpu_limit, threads=threads, at_new_batch=at_new_batch)


@pytest.mark.parametrize(
    ("now", "ratio", "at_new_batch", "is_shown"),
    [
        (6.0, 1.8, False, True),
        (6.0, 1.8, True, True),  # longer than the limit alone can do
        (3.5, 1.8, True, False),  # windows vary by that much
        (6.0, 1.1, True, False),  # it was held back, but not in its steps
        (6.0, 0.7, True, False),
        (1.1, 0.5, True, False),  # its smaller batch may leave quota over
        (0.0, 1.8, True, False),  # not known
    ],
)
def test_speed_is_told_from_what_a_limit_does(now: float, ratio: float, at_new_batch: bool, is_shown: bool) -> None:
    assert shown(HELD, now, ratio, at_new_batch=at_new_batch) is is_shown


@pytest.mark.parametrize(("cpu_limit", "now"), [(0.4, 2.5), (0.8, 1.6), (0.1, 10.0)])
def test_worker_that_saved_up_quota_and_does_so_no_more_is_as_fast_as_before(cpu_limit: float, now: float) -> None:
    """It waited for others, or read its samples, half of the time, and was held back little for what it computed."""
    assert not shown(ResourceUse(held=100), min(now, 1 / cpu_limit), 1.5, cpu_limit=cpu_limit)


def test_several_threads_are_held_back_for_longer_than_one() -> None:
    known = ResourceUse(held=100)
    assert not shown(known, 2.0, 1.8, cpu_limit=2.0, threads=4.0)
    assert shown(known, 4.0, 1.8, cpu_limit=2.0, threads=4.0)
    assert not shown(known, 4.0, 1.8, cpu_limit=2.0, threads=None), "a trainer that does not say how many"


def test_worker_that_shared_its_limit_and_has_it_alone_now_is_of_another_speed() -> None:
    assert shown(HELD._replace(held=600), 2.5, 0.5)


def test_without_a_limit_whoever_is_held_back_waits_for_others() -> None:
    assert shown(HELD, 1.0, 0.5, cpu_limit=0.0, threads=None)


def test_new_limit_shows_no_other_speed_than_its_own() -> None:
    assert not shown(HELD._replace(cause=int(Cause.LIMIT_CHANGED)), 6.0, 1.8, at_new_batch=False)


def window(seconds: float, steps: float = 10.0) -> Estimate:
    return Estimate(seconds, 0.0, steps)


@pytest.mark.parametrize("threads", [1, 4, 8])
@pytest.mark.parametrize("slower", [1.0, 2.0, 3.0])
def test_threads_that_wait_side_by_side_are_held_back_as_one_is(threads: int, slower: float) -> None:
    """Each computes for 0.1 s of a step, and waits for the rest of it."""
    found = held_back(Spent(0.1 * threads, 0.0, 0.1 * (slower - 1)), window(0.1 * slower), 4.0)
    assert found == pytest.approx(slower)


def test_what_reads_and_sleeps_is_not_held_back() -> None:
    assert held_back(Spent(0.1, 0.0, 0.0), window(0.5), 0.4) == 1.0


@pytest.mark.parametrize(
    ("spent", "cpu_limit"),
    [
        (None, 0.4),
        (Spent(0.0, 0.0, 0.0), 0.4),
        (Spent(0.1, None, 0.1), 0.4),  # what the limit held back is not counted
        (Spent(0.1, 0.1, None), 0.4),
        (Spent(0.1, 0.1, 0.0), 0.0),  # there is a limit that is not known
    ],
)
def test_by_how_much_is_not_known_unless_everything_is_counted(spent: Spent | None, cpu_limit: float) -> None:
    assert held_back(spent, window(0.2), cpu_limit) == 0.0


def test_absurd_counters_are_bounded() -> None:
    found = held_back(Spent(1e-9, 1e9, 1e9), window(1e4), 0.4)
    assert found == 1000.0
    assert remembered(HELD, HELD, found, jumped=False).held == 5000


def test_after_a_jump_the_past_is_forgotten() -> None:
    """Or the window after it, at the same speed and a new batch, would show a speed again."""
    assert not shown(remembered(HELD, HELD, 8.0, jumped=True), 8.0, 1.5)


def test_what_is_not_known_of_a_window_leaves_what_is_remembered() -> None:
    assert remembered(HELD, ResourceUse(cpu=3), 0.0, jumped=False) == ResourceUse(cpu=3, held=250)


def test_who_comes_to_a_workers_place_inherits_nothing_of_what_held_that_one_back() -> None:
    known = WorkerMemory(resource_use=HELD._replace(cause=int(Cause.CPU_LIMIT)))
    assert known.unmeasured().resource_use == ResourceUse(cause=int(Cause.CPU_LIMIT), held=250)
    assert _without_its_worker(known).resource_use == ResourceUse()


def jump(before: float, now: float, **totals: float) -> tuple[WorkerMetrics, Estimate, Estimate]:
    """A plan's first window of ten steps, in which own time went from one to another; with totals of the CPU."""
    metrics = WorkerMetrics(1, steps=10.0, own_seconds=10 * now, observed_seconds=10 * now, **totals)  # type: ignore[arg-type]  # all are floats
    return metrics, window(now), window(before, 100.0)


def cause_of(known: ResourceUse, cpu_limit: float, before: float, now: float, **totals: float) -> tuple[int, str]:
    metrics, newest, earlier = jump(before, now, **totals)
    use, words = window_closed(
        known,
        metrics,
        newest,
        before=earlier,
        jumped=True,
        at_new_batch=True,
        on_cpu=True,
        held_otherwise=True,
        cpu_limit=cpu_limit,
    )
    return use.cause, words


def test_neighbour_is_not_taken_for_a_limit_that_held_the_worker_back_before() -> None:
    totals = {"cpu_seconds": 1.0, "cpu_throttled_seconds": 1.5, "cpu_wait_seconds": 1.4}
    cause, words = cause_of(HELD, 0.4, 0.25, 0.39, **totals)
    assert (cause, words) == (Cause.NEIGHBOUR, "it waited for a CPU 36 % of the time: a neighbour")


def test_waiting_of_several_threads_is_compared_with_what_each_was_held_back() -> None:
    totals = {"cpu_seconds": 4.0, "cpu_throttled_seconds": 4.0, "cpu_wait_seconds": 2.5}
    assert cause_of(HELD, 2.0, 0.2, 0.45, **totals)[0] == Cause.NEIGHBOUR


def test_script_that_does_more_still_does_so_when_a_neighbour_leaves() -> None:
    known = HELD._replace(held=600, cause=int(Cause.COMPUTATION))
    totals = {"cpu_seconds": 1.0, "cpu_throttled_seconds": 1.5, "cpu_wait_seconds": 0.0}
    cause, words = cause_of(known, 0.4, 0.6, 0.25, **totals)
    assert cause == Cause.COMPUTATION
    assert words == "it waits for a CPU 0 % of the time now"


def test_first_window_counts_all_of_its_cpu_time_however_much_that_is() -> None:
    metrics, newest, _ = jump(5.0, 6.5, cpu_seconds=1040.0, cpu_throttled_seconds=104.0, cpu_wait_seconds=0.0)
    assert spent_in(ResourceUse(), metrics, newest) == Spent(104.0, 10.4, 0.0)


def test_window_in_which_several_threads_pass_their_baseline_again_is_not_told() -> None:
    metrics = WorkerMetrics(
        1, steps=40.0, own_seconds=260.0, observed_seconds=260.0, cpu_seconds=2080.0, computing_threads=8.0
    )
    assert spent_in(ResourceUse(cpu=1), metrics, window(6.5, 20.0)) is None
    assert spent_in(ResourceUse(cpu=1), replace(metrics, computing_threads=1.0), window(6.5, 20.0)) is not None


@pytest.mark.parametrize(("waited", "is_noise"), [(0.01, True), (1.2, False)])
def test_what_a_neighbour_explains_is_no_noise(waited: float, is_noise: bool) -> None:
    """Or its first steps would make all windows less certain, and the next ones would have to show more."""
    step = 0.1
    time = StepTime(50.0, 50 * step, 50 * step**2, step, 1e-4, 50.0, roughness=200.0)
    use = ResourceUse(cpu=401, throttled=1, waited=2, held=100)
    seconds = [step] * 9 + [step + 1.2]
    metrics = WorkerMetrics(
        1,
        steps=60.0,
        own_seconds=50 * step + sum(seconds),
        own_seconds_squared=50 * step**2 + sum(each**2 for each in seconds),
        observed_seconds=8.0,
        cpu_seconds=4.8,
        cpu_throttled_seconds=0.0,
        cpu_wait_seconds=0.01 + waited,
        computing_threads=1.0,
    )
    worker = WorkerMemory(time, resource_use=use)
    newest = window_of(time, metrics)
    assert isinstance(newest, Estimate)
    taken = _taken(PREDICTOR, worker, metrics, newest, history=30.0, excess=1.0, shared=1.0, on_cpu=True)
    assert not taken.jumped, "one step may be a stall"
    assert (taken.surprise is not None) is is_noise
