"""Jobs whose memory ends before their batches do: the bound is found, kept, told, and corrected by failing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain_operator.core.batching.bounds import bounds_in_passes
from heterotrain_operator.core.batching.policies import Seat
from heterotrain_operator.core.batching.policies.optimal import propose
from heterotrain_operator.core.model import Event
from heterotrain_operator.core.prediction.memory_model import MEBIBYTE, MemoryUse, measured, why_no_more
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.split.passes import at_once
from heterotrain_operator.core.worker_memory import WorkerMemory
from unit.core.traces import MemoryWorld, hetero_job

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
    assert world.plan is not None
    return world.plan.batch_sizes[0]


def events(world: MemoryWorld, reason: str) -> list[Event]:
    return [event for decision in world.decisions for event in decision.events if event.reason == reason]


@pytest.mark.parametrize("policy", ["Proportional", "Optimal"])
@pytest.mark.parametrize("seed", range(5))
def test_batch_grows_to_what_memory_holds_and_never_beyond(policy: str, seed: int) -> None:
    world = memory_world(policy, seed=seed)
    for _ in range(15):
        world.run(1)
        assert world.peak_mib(batch_of_fast(world)) <= world.limit_mib or policy == "Proportional"
        if world.decisions[-1].phase == "Restarting":  # Proportional made its leap when one batch had been seen
            for _ in range(4):
                world.tick()
    assert world.memory.budget.restarts <= (policy == "Proportional")
    assert batch_of_fast(world) >= 0.8 * 168


def test_bound_is_told_once_and_shown_with_every_decision() -> None:
    world = memory_world()
    world.run(8)
    (event,) = [event for event in events(world, "MemoryBoundFound") if event.message.startswith(FAST)]
    assert "samples, which are sure to fit into its 1024 MiB by peaks of" in event.message
    safe = dict(world.decisions[-1].batch_limits)
    assert batch_of_fast(world) <= safe[FAST] <= 181


def test_batch_that_took_more_than_is_usable_and_is_the_fewest_seen_is_called_so() -> None:
    known = measured(measured(MemoryUse(), 64, 1000 * MEBIBYTE, 1024 * MEBIBYTE), 80, 1020 * MEBIBYTE)
    assert why_no_more(known) == "at most 64 samples, the fewest seen, with which it took 1000 of 1024 MiB"


def test_bound_survives_reading_the_memory_back() -> None:
    whole, torn = memory_world(), memory_world()
    torn.forgetful = True
    assert whole.run(8) == torn.run(8)


def test_what_is_known_of_memory_is_worth_storing_and_further_peaks_are_not() -> None:
    world = memory_world("Uniform")
    start = world.memory
    world.run(1)
    assert not world.memory.same_but_measurements(start)
    settled = world.memory
    world.run(3)
    assert world.memory != settled
    assert world.memory.same_but_measurements(settled)


def test_ample_memory_changes_no_decision() -> None:
    ample = memory_world(limit_mib=1e6)
    unlimited = memory_world(limit_mib=1e6)
    ample.run(8)
    for _ in range(8):
        unlimited.train(10)
        for worker in unlimited.workers.values():
            worker.metrics = replace(worker.metrics, memory_limit_bytes=None)
        unlimited.tick()
    assert [decision.plan for decision in ample.decisions] == [decision.plan for decision in unlimited.decisions]
    assert not events(ample, "MemoryBoundFound")


def test_shrunk_limit_moves_samples_away_and_says_why() -> None:
    world = memory_world()
    world.run(8)
    before = batch_of_fast(world)
    world.limit_mib = 0.97 * world.peak_mib(before)
    for name, worker in world.workers.items():
        worker.memory = None  # what is reported stays
        worker.metrics = replace(worker.metrics, memory_limit_bytes=world.limit_mib * 2**20)
        assert name in world.workers
    super(MemoryWorld, world).train(10)
    world.tick()
    world.tick()
    assert batch_of_fast(world) < before
    (moved,) = [event for event in events(world, "BatchRebalanced") if "fit into its" in event.message]
    assert f"{FAST} has {before} samples" in moved.message


@pytest.mark.parametrize(
    ("peaks", "most"),
    [
        ([], 500),
        ([(100, 700)], 100 * 972 // 735),
        ([(50, 500), (100, 700)], 145),
        ([(50, 40), (100, 41)], 910),
    ],
    ids=["unknown: the even share", "one batch", "two batches", "two batches and ample memory"],
)
def test_growth_in_one_plan_is_bounded_by_what_is_known_of_memory(peaks: list[tuple[int, float]], most: int) -> None:
    use = MemoryUse()
    for batch, mib in peaks:
        use = measured(use, batch, mib * MEBIBYTE, 1024 * MEBIBYTE)
    known = WorkerMemory(memory_use=use)
    job = hetero_job("Optimal", (1, 1), global_batch=1000)
    (low, high) = bounds_in_passes(job, ["g0", "g1"], [known, WorkerMemory()])[0]
    fast = Seat("fast", job.groups[0], 100, (low, high), Estimate(0.1, 0.0, 50), memory=known)
    slow = Seat("slow", job.groups[1], 900, (1, 1000), Estimate(9.0, 0.0, 50))
    batches = propose(job, [fast, slow], 0).batches
    assert batches is not None
    assert batches[0] == pytest.approx(most, abs=3)


def test_job_goes_on_after_running_out_of_memory_with_what_is_known_to_fit() -> None:
    world = memory_world()
    world.run(6)
    batch = batch_of_fast(world)
    world.workers[FAST].end(137, message="out of memory")
    world.workers[FAST].out_of_memory = True
    world.tick()
    assert world.decisions[-1].phase == "Restarting"
    assert f"{FAST} gets at most" in world.decisions[-1].reason
    for _ in range(4):
        world.tick()
    assert 100 <= batch_of_fast(world) < batch, "its smaller batches ran, so half of the failed one is too little"
    world.run(8)
    assert world.memory.budget.restarts == 1
    assert batch_of_fast(world) < batch


def test_first_batch_that_does_not_fit_is_halved_and_then_grows_to_what_does() -> None:
    scales = {"job-g0-0": 1.0, "job-g1-0": 8.0}
    job = replace(hetero_job("Optimal", (1, 8), global_batch=300), initial="Static")
    groups = tuple(replace(group, cpu_limit=cpu) for group, cpu in zip(job.groups, (1.0, 0.125), strict=True))
    world = MemoryWorld(replace(job, groups=groups), scales).start()
    assert batch_of_fast(world) == 267
    world.run(1)
    for _ in range(4):
        world.tick()
    assert batch_of_fast(world) == 133
    batches = []
    for _ in range(8):
        world.run(1)
        batches.append(batch_of_fast(world))
    assert batches == sorted(batches)
    assert 0.85 * 168 <= batches[-1] <= 181
    assert world.memory.budget.restarts == 1


def test_worker_that_runs_out_of_memory_in_passes_gets_smaller_passes() -> None:
    world = memory_world("Uniform", limit_mib=480)  # 45 samples, a hundred each
    batches = []
    for _ in range(6):
        world.run(1)
        if world.decisions[-1].phase == "Restarting":
            for _ in range(4):
                world.tick(10)
        assert world.plan is not None
        batches.append([at_once(member) for member in world.plan.members])
    assert world.memory.budget.restarts == 2
    assert batches[:2] == [[50] * 3, [25] * 3]
    assert world.plan is not None
    assert world.plan.batch_sizes == (100, 100, 100)
    assert world.decisions[-1].phase == "Running"


def test_batch_that_only_a_guess_allowed_is_not_tried_twice() -> None:
    world = memory_world("Uniform", limit_mib=500, backoff_limit=5)
    world.fixed_mib, world.mib_per_sample = 300.0, 1.5
    world.job = replace(world.job, policy="Proportional")
    tried = set()
    for _ in range(20):
        world.run(1)
        tried.add(batch_of_fast(world))
        if world.decisions[-1].phase == "Restarting":
            for _ in range(4):
                world.tick(10)
    too_large = [batch for batch in tried if world.peak_mib(batch) > world.limit_mib]
    assert len(too_large) == world.memory.budget.restarts <= 2
    assert world.decisions[-1].phase == "Running"
