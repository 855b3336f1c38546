"""What memory holds of batches: the model's bound holds on affine worlds with noise, and nothing is invented.

Jobs whose memory ends before their batches do find the bound, keep it, tell it, and correct it by failing.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from heterotrain_operator.core.prediction.memory_model import MEBIBYTE, MemoryUse, failed, fitting_batch, measured
from heterotrain_operator.core.split.passes import at_once
from unit.core.jobs import restart_fully
from unit.core.traces import MemoryWorld, World, hetero_job, hetero_world

NOISE = 0.01


def learned(*points: tuple[int, float], limit_mib: float | None = 1024) -> MemoryUse:
    """What is remembered after peaks, in MiB, at these batches."""
    memory = MemoryUse()
    for batch, mib in points:
        memory = measured(memory, batch, mib * MEBIBYTE, None if limit_mib is None else limit_mib * MEBIBYTE)
    return memory


@pytest.mark.parametrize(
    ("points", "limit_mib", "most", "growth"),
    [
        ([], 1024, None, None),
        ([(64, 500)], 1024, None, 64 * 972 // 525),  # in proportion to its memory
        ([(64, 500), (64, 510), (64, 490)], 1024, None, 117),
        ([(64, 1020)], 1024, None, 64),  # it has run
        ([(64, 500)], None, None, None),
        ([(64, 500), (96, 600)], None, None, None),
        ([(64, 600), (128, 970)], 1024, 128, None),  # it has run within the limit
        ([(64, 990), (128, 1020)], 1024, 64, None),  # nothing below it was seen to need less
    ],
)
def test_bound_and_growth_rest_on_what_has_run(
    points: list[tuple[int, float]], limit_mib: float | None, most: int | None, growth: int | None
) -> None:
    known = learned(*points, limit_mib=limit_mib)
    assert (known.greatest_batch, known.greatest_growth) == (most, growth)


@pytest.mark.parametrize(
    ("points", "batch", "least", "most"),
    [
        ([(64, 400), (128, 420)], 200, 65, 199),  # a line that promised otherwise is bent
        ([(64, 500), (128, 900)], 200, 129, 150),  # one that predicted it is left alone
        ([(64, 500)], 128, None, None),  # it says nothing of a slope that was not seen
        ([(128, 500)], 100, None, None),  # what had fitted is known no longer
        ([(128, 500), (200, 600)], 100, None, None),
    ],
)
def test_failure_corrects_a_line(
    points: list[tuple[int, float]], batch: int, least: int | None, most: int | None
) -> None:
    bound = failed(learned(*points), batch).greatest_batch
    if least is None or most is None:
        assert bound is None
    else:
        assert bound is not None
        assert least <= bound <= most


FIXED = st.floats(50, 4000)
SLOPE = st.floats(0, 40)
TRAVEL = st.lists(st.tuples(st.integers(1, 2000), st.floats(-NOISE, NOISE)), min_size=1, max_size=30)


@given(FIXED, SLOPE, st.floats(100, 80_000), TRAVEL)
def test_bound_never_takes_more_than_the_limit_on_affine_worlds_with_noise(
    fixed: float, slope: float, limit: float, travel: list[tuple[int, float]]
) -> None:
    def peak(batch: int) -> float:
        return fixed + slope * batch

    memory = MemoryUse()
    for batch, noise in travel:
        if peak(batch) * (1 + NOISE) > limit:
            continue
        memory = measured(memory, batch, peak(batch) * (1 + noise) * MEBIBYTE, limit * MEBIBYTE)
        bound = memory.greatest_batch
        assert bound is None or peak(bound) <= limit


@given(FIXED, SLOPE, TRAVEL, st.floats(100, 40_000), st.floats(1, 4))
def test_bound_rises_with_the_limit_and_falls_with_the_peak(
    fixed: float, slope: float, travel: list[tuple[int, float]], limit: float, factor: float
) -> None:
    points = [(batch, (fixed + slope * batch) * (1 + noise)) for batch, noise in travel]
    memory = learned(*points, limit_mib=limit)
    bound = memory.greatest_batch
    assume(bound is not None)
    assert bound is not None
    more = replace(memory, limit_mib=int(memory.limit_mib * factor)).greatest_batch
    assert more is not None
    assert more >= bound
    heavier = replace(memory, high_mib=int(memory.high_mib * factor)).greatest_batch
    assert heavier is not None
    assert heavier <= bound
    assert bound >= memory.low_batch


NUMBERS = st.integers() | st.integers(-5, 300)
FIGURES = st.none() | st.floats() | st.floats(0, 2**36)


@given(
    st.builds(MemoryUse, **dict.fromkeys(("limit_mib", "low_batch", "low_mib", "high_batch", "high_mib"), NUMBERS)),
    NUMBERS,
    FIGURES,
    FIGURES,
)
def test_nonsense_has_an_answer(memory: MemoryUse, batch: int, peak: float | None, limit: float | None) -> None:
    for known in (memory, measured(memory, batch, peak, limit), failed(memory, batch)):
        bound = known.greatest_batch
        assert bound is None or bound >= known.low_batch >= 1
        growth = known.greatest_growth
        assert growth is None or growth >= known.low_batch >= 1
        assert fitting_batch(known, batch) < max(batch, 1)


LONG = pytest.mark.long
FAST = "job-g0-0"


def memory_world(
    policy: str = "Optimal", *, limit_mib: float = 1024.0, seed: int = 0, **changes: object
) -> MemoryWorld:
    """A fast worker that would take most of 300 samples, of which its memory holds 168."""
    scales = (1.0, 4.0, 4.0)
    job = hetero_job(policy, scales, **{"global_batch": 300, **changes})
    world = MemoryWorld(job, {f"job-g{rank}-0": scale for rank, scale in enumerate(scales)}, noise=0.03, seed=seed)
    world.limit_mib = limit_mib
    world.start()
    return world


def batch_of_fast(world: MemoryWorld) -> int:
    return world.plan.batch_sizes[0]


@pytest.mark.parametrize("policy", ["Proportional", "Optimal"])
@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 5), marks=LONG)])
def test_batch_grows_to_what_memory_holds_and_never_beyond(policy: str, seeds: range) -> None:
    for seed in seeds:
        world = memory_world(policy, seed=seed)
        for _ in range(15):
            world.run(1)
            assert world.peak_mib(batch_of_fast(world)) <= world.limit_mib or policy == "Proportional"
            if world.decisions[-1].phase == "Restarting":  # Proportional made its leap when one batch had been seen
                restart_fully(world)
        assert world.memory.budget.restarts <= (policy == "Proportional")
        assert batch_of_fast(world) >= 0.8 * 168


def test_bound_is_told_once_and_shown_with_every_decision() -> None:
    world = memory_world()
    world.run(8)
    told = [event for decision in world.decisions for event in decision.events if event.reason == "MemoryBoundFound"]
    (event,) = [event for event in told if event.message.startswith(FAST)]
    assert "samples, which are sure to fit into its 1024 MiB by peaks of" in event.message
    assert batch_of_fast(world) <= dict(world.decisions[-1].batch_limits)[FAST] <= 181


def test_shrunk_limit_moves_samples_away_and_says_why() -> None:
    world = memory_world()
    world.run(8)
    before = batch_of_fast(world)
    world.limit_mib = 0.97 * world.peak_mib(before)
    for worker in world.workers.values():
        worker.memory = None  # what is reported stays
        worker.metrics = replace(worker.metrics, memory_limit_bytes=world.limit_mib * 2**20)
    super(MemoryWorld, world).train(10)
    reasons = [world.tick().reason, world.tick().reason]
    assert batch_of_fast(world) < before
    assert any(f"{FAST} has {before} samples" in reason and "fit into its" in reason for reason in reasons)


def test_job_goes_on_after_running_out_of_memory_with_what_is_known_to_fit() -> None:
    world = memory_world()
    world.run(6)
    batch = batch_of_fast(world)
    run_out_of_memory(world)
    assert world.decisions[-1].phase == "Restarting"
    assert f"{FAST} gets at most" in world.decisions[-1].reason
    restart_fully(world)
    assert 100 <= batch_of_fast(world) < batch, "its smaller batches ran, so half of the failed one is too little"
    world.run(8)
    assert world.memory.budget.restarts == 1
    assert batch_of_fast(world) < batch


def test_worker_that_runs_out_of_memory_in_passes_gets_smaller_passes() -> None:
    world = memory_world("Uniform", limit_mib=480)  # 45 samples, a hundred each
    batches = []
    for _ in range(6):
        world.run(1)
        if world.decisions[-1].phase == "Restarting":
            restart_fully(world)
        batches.append([at_once(member) for member in world.plan.members])
    assert world.memory.budget.restarts == 2
    assert batches[:2] == [[50] * 3, [25] * 3]
    assert world.plan.batch_sizes == (100, 100, 100)
    assert world.decisions[-1].phase == "Running"


def run_out_of_memory(world: World, *names: str) -> None:
    """Let workers, the fast one by default, run out of memory with their batches."""
    for name in names or (FAST,):
        world.workers[name].end(137, message="out of memory (limit 256Mi)")
        world.workers[name].out_of_memory = True
    world.tick()


@pytest.mark.parametrize("policy", ["Uniform", "Proportional", "Optimal"])
def test_worker_that_ran_out_of_memory_never_gets_that_batch_again(policy: str) -> None:
    world = hetero_world(policy)
    world.run(5)
    batch = world.plan.batch_sizes[0]
    run_out_of_memory(world)
    assert f"{FAST} gets at most {batch // 2} samples instead of {batch}" in world.decisions[-1].reason
    world.forgetful = True
    restart_fully(world)
    assert world.plan.global_batch_size == 192
    for _ in range(10):
        assert world.plan.batch_sizes[0] <= batch // 2
        world.run(1)


def test_batch_that_no_memory_holds_is_tried_until_the_backoff_limit() -> None:
    world = hetero_world(backoff_limit=1)
    run_out_of_memory(world, *world.workers)
    restart_fully(world)
    assert world.plan.batch_sizes == (64, 64, 64), "half of it everywhere cannot hold the global batch"
    world.workers[FAST].end(137, message="out of memory")
    assert world.tick().phase == "Failed"
