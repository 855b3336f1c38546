"""What workers' windows have in common is the machine's or the job's, and says nothing of who is slow."""

from __future__ import annotations

from random import Random
from statistics import fmean

import pytest

from heterotrain_operator.core.batching.measuring import _shared
from heterotrain_operator.core.memory.batching import Promises
from heterotrain_operator.core.prediction.jumps import GREATEST_SPEED_UP
from heterotrain_operator.core.prediction.roughness import FIRST
from heterotrain_operator.core.prediction.shared import (
    Moved,
    Pair,
    moved,
    share_of,
    shared_by_moved,
    shared_change,
)
from heterotrain_operator.core.prediction.step_time import EXPECTED, Estimate
from unit.core.traces import World, hetero_world

ERROR = 0.03
"""Of a window; ten steps that vary by a tenth."""


def window(seconds: float, steps: float = 10) -> Estimate:
    return Estimate(seconds, 10 * (ERROR * seconds) ** 2, steps)


def found(*ratios: float) -> float:
    """The shared change where each worker's window is so many times as long as its estimate before."""
    befores = [window(0.1 * (1 + rank), steps=100) for rank, _ in enumerate(ratios)]
    windows = [window(before.mean_seconds * ratio) for before, ratio in zip(befores, ratios, strict=True)]
    return shared_change(list(zip(befores, windows, strict=True)))


@pytest.mark.parametrize(
    ("ratios", "shared"),
    [
        ((1.2, 1.2, 1.2), 1.2),
        ((0.8, 0.8, 0.8, 0.8), 0.8),
        ((1.2, 1.3), 1.2),
        ((1.1, 1.12, 1.15, 1.1, 1.2, 1.3, 2.0, 1.0), 1.1),
    ],
)
def test_what_three_quarters_of_the_workers_show_at_least_is_shared(ratios: tuple[float, ...], shared: float) -> None:
    assert found(*ratios) == pytest.approx(shared)


@pytest.mark.parametrize(
    "ratios", [(2.0,), (3.0, 1.0), (1.0, 1.0, 2.0), (0.5, 1.0, 2.0), (2.0, 2.0, 1.0, 1.0), (1.0, 1.0), (1.01, 1.01)]
)
def test_what_fewer_show_or_noise_explains_is_not_shared(ratios: tuple[float, ...]) -> None:
    assert found(*ratios) == 1


def two_levels(before: Estimate, ratio: float) -> Estimate:
    """A window of which the second half is at another speed, steps of which take so many times as long."""
    mean, half = before.mean_seconds * (1 + ratio) / 2, before.mean_seconds * (ratio - 1) / 2
    return Estimate(mean, 10 * (ERROR * mean) ** 2 + half**2, 10)


def test_change_that_began_within_the_windows_is_shared_if_it_is_alike_in_nearly_all() -> None:
    before = window(0.1, steps=100)
    alike, more = (before, two_levels(before, 1.8)), (before, two_levels(before, 4.0))
    assert shared_change([alike] * 4) == pytest.approx(1.4)
    assert shared_change([*[alike] * 19, more]) == pytest.approx(1.4)
    assert shared_change([alike, alike, alike, more]) == 1


@pytest.mark.parametrize("after", [3, 5, 8])
@pytest.mark.parametrize("seed", range(3))
def test_change_within_all_windows_moves_nobody_of_many(after: int, seed: int) -> None:
    """What each worker's steps say of the new speed would differ from worker to worker."""
    world = hetero_world("Optimal", (1, 1, 2, 2, 4, 4) * 4, noise=0.08, seed=seed)
    world.run(12)
    assert world.plan is not None
    version = world.plan.version
    for ratio in (1.4, 0.7, 1.3, 0.8):
        world.train(after)
        for worker in world.workers.values():
            worker.scale *= ratio
        world.train(world.job.interval - after)
        world.tick()
        world.run(2)
    assert world.plan.version == version


@pytest.mark.parametrize("noise", [0.03, 0.08])
@pytest.mark.parametrize("after", [2, 5, 7])
def test_changes_within_windows_that_differ_are_followed_by_what_each_workers_steps_say(
    after: int, noise: float
) -> None:
    """All become slower by a half to three times, and the plan after that is nearly right."""
    world = hetero_world("Optimal", (1, 1, 1.5, 1.5, 2, 2, 4, 4), noise=noise)
    world.run(12)
    world.train(after)
    for rank, worker in enumerate(world.workers.values()):
        worker.scale *= 1.5 + 0.2 * rank
    world.train(world.job.interval - after)
    world.tick()
    world.run(1)
    seconds = world.true_seconds()
    assert max(seconds) <= 1.12 * fmean(seconds)


def moves(batch: int, *ratios: float) -> list[Moved]:
    """Workers at that batch instead of 100, whose windows are so many times as long as expected."""
    return [moved(batch / 100, window(0.1, steps=2), window(0.1 * ratio)) for ratio in ratios]


def stayed(*ratios: float) -> list[Pair]:
    """Workers at the same batch as before, whose windows are so many times as long."""
    return [(window(0.1), window(0.1 * ratio)) for ratio in ratios]


@pytest.mark.parametrize("change", [0.75, 1.3])
@pytest.mark.parametrize("overhead", [-0.4, 0, 0.5])
def test_change_that_is_left_beside_the_cost_of_samples_is_shared(change: float, overhead: float) -> None:
    """Times with an overhead differ the more from what is expected in proportion, the farther a batch is moved."""
    others = [
        each for batch in (50, 60, 70, 120, 130, 150) for each in moves(batch, change * (100 / batch) ** overhead)
    ]
    assert shared_by_moved(others, []) == pytest.approx(change)
    assert shared_by_moved(others, stayed(0.9 * change, 0.9 * change)) == pytest.approx(0.9 * change)


PADDED = [moves(batch, ratio)[0] for batch in (60, 140) for ratio in 4 * [1.02, 1.1, 1.3, 1.5]]


@pytest.mark.parametrize(
    ("others", "alike"),
    [
        (moves(150, 0.67, 0.67) + moves(60, 1.66, 1.66), []),  # samples cost nothing
        (moves(150, 1.5, 1.5) + moves(60, 0.6, 0.6), []),  # or more, the more there are
        (moves(150, 0.7, 0.7) + moves(60, 0.7, 0.7), stayed(1.0, 1.0)),
        (moves(150, 0.7) + moves(60, 0.7, 0.7, 0.7), []),  # too few with more
        (moves(150, 0.96, 0.95) + moves(60, 0.95, 0.94), []),  # too little
        (moves(150, 0.5, 0.99, 1.0) + moves(60, 0.9, 0.6, 1.3), []),  # each of its own
        (moves(150, 0.5, 0.9, 1.4, 1.3, 0.7) + moves(60, 0.6, 0.65, 0.7, 0.75, 0.8), []),
        (PADDED, []),  # by another factor each
        (moves(120, 3, 3) + moves(50, 1, 1), []),  # of one group of workers alone
    ],
)
def test_steps_that_the_cost_of_samples_or_noise_explains_show_none(others: list[Moved], alike: list[Pair]) -> None:
    assert shared_by_moved(others, alike) == 1


@pytest.mark.parametrize("ratio", [1000.0, 0.001])
def test_change_that_moved_workers_share_is_bounded(ratio: float) -> None:
    found = shared_by_moved(moves(150, ratio, ratio) + moves(60, ratio, ratio), [])
    assert 1 / GREATEST_SPEED_UP <= found <= GREATEST_SPEED_UP


@pytest.mark.parametrize("slower", [(4, 3, 2.2, 1.6, 1.3, 1.1, 1), (1, 1.5, 2, 1.5, 1, 1, 1)])
@pytest.mark.parametrize("scales", [4 * (1, 4), 2 * (1, 1.5, 2, 4), 4 * (1, 1, 1, 3)])
@pytest.mark.parametrize("noise", [0.003, 0.03, 0.08])
@pytest.mark.parametrize("seed", range(2))
def test_first_plans_are_right_though_all_workers_speeds_change_meanwhile(
    scales: tuple[float, ...], slower: tuple[float, ...], noise: float, seed: int
) -> None:
    """As of a script that warms up; the samples that plans move then would else seem to cost nothing, or all."""
    world = hetero_world("Optimal", scales, noise=noise, seed=seed)
    usual = {name: worker.scale for name, worker in world.workers.items()}
    for factor in slower:
        for name, worker in world.workers.items():
            worker.scale = factor * usual[name]
        world.run(1)
    seconds = world.true_seconds()
    assert max(seconds) < 1.12 * fmean(seconds)


@pytest.mark.parametrize("noise", [0.02, 0.08])
@pytest.mark.parametrize("slower", [1.5, 3])
def test_what_all_workers_share_is_told_even_if_half_of_them_jumped_before(slower: float, noise: float) -> None:
    """Of those a jump ended the only plan there was, so that nothing of the cost of their samples is known yet."""
    world = hetero_world("Optimal", 16 * (1,), noise=noise, seed=1, global_batch=384)
    half = list(world.workers.values())[::2]
    world.run(4)
    for worker in half:
        worker.scale *= slower
    world.run(1)
    for worker in world.workers.values():
        worker.scale *= 0.7
    world.run(5)
    seconds = world.true_seconds()
    assert max(seconds) < 1.12 * fmean(seconds)


def test_who_has_no_part_in_a_shared_change_does_not_follow_it() -> None:
    assert share_of(window(0.1, steps=100), window(0.152), 1.5) == 1.5
    assert share_of(window(0.1, steps=100), window(0.1), 1.5) == 1


@pytest.mark.parametrize("ratio", [1000.0, 0.001])
def test_change_too_large_to_be_believed_is_left_to_each_workers_own(ratio: float) -> None:
    assert shared_change([(window(0.1), window(0.1 * ratio))] * 3) == 1


def test_scaled_estimate_is_as_certain_as_before() -> None:
    before = window(0.1)
    assert before.scaled(3.0).relative_error == pytest.approx(before.relative_error)


def test_worker_that_jumped_does_not_make_others_noise_a_shared_change() -> None:
    assert found(50.0, 1.02, 1.01, 1.01) == 1
    assert found(0.02, 0.98, 0.99, 0.99) == 1


def test_noise_of_workers_alone_seldom_seems_shared_and_then_moves_little() -> None:
    random = Random(3)
    changes = [found(*(random.gauss(1, ERROR) for _ in range(2))) for _ in range(2000)]
    taken = [change for change in changes if change != 1]
    assert 0 < len(taken) < 0.06 * len(changes)
    assert max(abs(change - 1) for change in taken) < 3 * ERROR


def warming(scales: dict[str, float], seed: int) -> World:
    """All workers take a third longer at first, and less with every interval: a cold machine."""
    world = hetero_world("Optimal", (1, 1, 1, 1), noise=0.08, seed=seed)
    for slower in (1.35, 1.2, 1.12, 1.06):
        for name, worker in world.workers.items():
            worker.scale = slower * scales.get(name, 1.0)
        world.run(1)
    return world


@pytest.mark.parametrize("seed", range(5))
def test_windows_that_get_shorter_together_make_no_worker_uncertain(seed: int) -> None:
    world = warming({}, seed)
    assert all(worker.step_time.roughness <= 100 * FIRST for worker in world.memory.workers)
    assert world.plan is not None
    assert world.plan.version == 1  # and nobody is moved


@pytest.mark.parametrize("seed", range(5))
def test_worker_slower_than_the_others_is_found_while_all_get_faster(seed: int) -> None:
    world = warming({"job-g1-0": 1.25}, seed)
    times = world.true_seconds()
    assert max(times) < 1.12 * min(times)


def test_estimates_follow_a_shared_change_at_once_and_no_promise_is_missed_by_it() -> None:
    world = hetero_world("Optimal", (1, 2, 4), noise=0.02)
    world.run(6)
    assert world.plan is not None
    version = world.plan.version
    for worker in world.workers.values():
        worker.scale *= 1.5
    world.run(1)
    true = world.true_seconds()
    for known, seconds in zip(world.memory.workers, true, strict=True):
        assert known.step_time.mean_seconds == pytest.approx(seconds, rel=0.05)
        assert known.step_time.steps > world.job.interval  # what is known of differences is kept
    world.run(5)
    assert world.plan.version == version
    assert world.memory.promises.doubt == 0


def test_shared_change_shows_in_the_first_windows_of_a_plan_by_those_whose_batches_stay() -> None:
    """Or those whose windows happen to pass for jumps would seem slower than the others by most of it."""
    world = hetero_world("Optimal", (1,) * 16, noise=0.08, global_batch=1600)
    world.run(6)
    world.workers["job-g5-0"].scale = 2.0
    while world.plan is not None and world.plan.version == 1:
        world.run(1)
    assert world.plan is not None
    assert sum(abs(batch - 100) <= 4 for batch in world.plan.batch_sizes) >= 12
    for worker in world.workers.values():
        worker.scale *= 1.2
    world.run(1)
    known = [worker.step_time.mean_seconds for worker in world.memory.workers]
    ratios = [mean / true for mean, true in zip(known, world.true_seconds(), strict=True)]
    assert max(ratios) / min(ratios) < 1.08
    assert fmean(ratios) == pytest.approx(1, abs=0.03)


def test_what_a_plans_first_windows_share_may_be_its_own_doing_and_excuses_no_promise() -> None:
    """Sixteen workers, one slow; those that get its samples are throttled from then on."""
    world = hetero_world("Proportional", (1.5, *(1,) * 15), noise=0.02, global_batch=1600)
    while world.plan is not None and world.plan.version == 1:
        world.run(1)
    assert world.plan is not None
    promised = world.plan.batch_sizes
    for name, worker in world.workers.items():
        worker.scale *= 1.0 if name == "job-g0-0" else 1.7
    world.run(1)
    assert world.plan.batch_sizes != promised
    assert "is taken back" in world.decisions[-1].reason


def test_few_workers_whose_batches_stay_do_not_speak_for_those_that_move() -> None:
    """Three of eight that are slowed alike are three slow workers, not a slow job."""
    world = hetero_world("Optimal", (1,) * 8, noise=0.02)
    world.run(6)
    known = world.memory.workers
    plan = world.plan
    assert plan is not None
    moved = [worker._replace(step_time=worker.step_time._replace(basis=EXPECTED)) for worker in known[3:]]
    found = [worker.step_time.before and worker.step_time.before.scaled(1.2) for worker in known]
    assert _shared(plan, known, found) == pytest.approx(1.2)
    assert _shared(plan, [*known[:3], *moved], found) == 1
    assert _shared(plan, [*known[:4], *moved[1:]], found) == pytest.approx(1.2)
    limited = [worker._replace(step_time=worker.step_time._replace(limit_change=10.0)) for worker in known[3:]]
    assert _shared(plan, [*known[:3], *limited], found) == 1


def test_cost_of_a_batch_is_known_at_the_present_speed() -> None:
    world = hetero_world("Optimal", (1, 2, 4), noise=0.02)
    world.run(6)
    before = [worker.batch_cost.speed for worker in world.memory.workers]
    for worker in world.workers.values():
        worker.scale *= 1.15
    world.run(1)
    after = [worker.batch_cost.speed for worker in world.memory.workers]
    assert [new / old for new, old in zip(after, before, strict=True)] == pytest.approx([1.15] * 3, rel=0.03)


def test_promises_are_about_the_present_speed() -> None:
    promises = Promises(1.0, 2.0, 4.0, doubt=0.1, kept_looks=2)
    assert promises.scaled(1.5) == Promises(1.5, 3.0, 6.0, doubt=0.1, kept_looks=2)
