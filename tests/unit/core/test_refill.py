"""Places whose workers have ended: others are created at once or later, and beyond a limit the job fails."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_operator.core.decide import decide
from heterotrain_operator.core.memory.members import MOST_PENDING, PENDING, Pending
from heterotrain_operator.core.model import Decision, Group, Job, WorkerState
from heterotrain_operator.core.state import Memory
from heterotrain_operator.core.worker_memory import WorkerMemory
from unit.core.members import A, B, C, elastic_world, names, reasons, settled
from unit.core.traces import MemoryWorld, World


def newest(world: World) -> str:
    """The worker that was created last."""
    return max(world.workers.values(), key=lambda pod: int(pod.uid.removeprefix("uid-"))).name


def die_again(world: World, times: int, exit_code: int = 1) -> Decision:
    """In one place, one worker after the other dies once it is a member."""
    victim = B
    for _ in range(times):
        world.workers[victim].end(exit_code)
        decision = world.tick()
        if decision.phase != "Running":
            break
        for _ in range(20):
            world.train(2)
            world.tick(5)
            if world.plan is not None and len(world.plan.members) == 3:
                break
        victim = newest(world)
    return world.decisions[-1]


def test_place_that_loses_more_workers_than_its_limit_fails_the_job() -> None:
    world = elastic_world(backoff_limit=2)
    assert die_again(world, 2).phase == "Running"
    assert [row.failures for row in world.memory.workers] == [0, 0, 2]
    settled(world, 1)
    world.workers[newest(world)].end(1, message="boom")
    decision = world.tick()
    assert (decision.phase, reasons(decision)) == ("Failed", ["WorkerFailed", "BackoffLimitExceeded"])
    assert "boom (after 2 replacements in its place)" in decision.reason


def test_ends_of_different_places_do_not_add_up() -> None:
    world = elastic_world(backoff_limit=1)
    for name in (A, B, C):
        world.workers[name].end(1)
        settled(world)
    assert world.decisions[-1].phase == "Running"
    assert [row.failures for row in world.memory.workers] == [1, 1, 1]


def test_disruptions_do_not_count() -> None:
    world = elastic_world(backoff_limit=0)
    for _ in range(4):
        world.workers[newest(world)].end(143, disrupted=True)
        settled(world)
    assert world.decisions[-1].phase == "Running"
    assert [row.failures for row in world.memory.workers] == [0, 0, 0]


def test_worker_that_vanishes_does_not_count() -> None:
    world = elastic_world(backoff_limit=0)
    del world.workers[B]
    decision = world.tick()
    assert reasons(decision) == ["WorkerVanished", "SuccessfulCreatePod", "GenerationChanged", "WorkerLeft"]
    settled(world)
    assert names(world.plan) == [A, C, "job-a-3"]


def test_first_worker_of_a_place_is_created_at_once_and_the_next_ones_ever_later() -> None:
    world = elastic_world(backoff_limit=5)
    world.workers[B].end(1)
    assert [key.name for key in world.tick().create] == ["job-a-3"]
    world.workers["job-a-3"].end(1)
    assert world.tick().create == ()
    assert world.memory.pending[0].due_at - world.now >= 1
    assert world.tick(0.5).create == ()
    assert len(world.tick(30).create) == 1


def test_what_is_created_is_not_created_again_before_it_had_time_to_appear() -> None:
    world = elastic_world()
    world.workers[B].end(1)
    seen = world.seen()
    first, memory = decide(world.job, seen, world.memory, world.now)
    assert len(first.create) == 1
    again, memory = decide(world.job, replace(seen, plan=first.plan), memory, world.now + 1)
    assert again.create == ()
    later, _ = decide(world.job, replace(seen, plan=first.plan), memory, world.now + 30)
    assert later.create == first.create


def test_place_that_waits_is_shown_as_wanted() -> None:
    world = elastic_world()
    world.workers[B].end(1)
    states = dict(world.tick().worker_states)
    assert states["job-a-3"] is WorkerState.WANTED


def test_worker_asked_to_stop_is_replaced_at_once_and_counts_when_nobody_shows_who_asked() -> None:
    world = elastic_world(backoff_limit=1)
    world.workers[B].end_asked()
    decision = world.tick()
    assert len(decision.create) == 1
    assert B not in decision.delete, "it may still show who asked"
    assert world.memory.pending[0].failures == 0
    settled(world)
    assert names(world.plan) == [A, C, "job-a-3"]
    settled(world, 20)
    assert [row.failures for row in world.memory.workers] == [0, 0, 1]
    assert set(world.workers) == {A, C, "job-a-3"}


def test_worker_asked_to_stop_does_not_count_once_somebody_shows_who_asked() -> None:
    world = elastic_world(backoff_limit=0)
    world.workers[B].end_asked()
    world.tick()
    world.train(1)
    world.tick(60)
    world.workers[B].disrupted = True
    world.tick(1)
    settled(world, 30)
    assert world.decisions[-1].phase == "Running"
    assert [row.failures for row in world.memory.workers] == [0, 0, 0]


def test_place_whose_workers_say_again_and_again_that_they_were_asked_comes_to_an_end() -> None:
    world = elastic_world(backoff_limit=3)
    for _ in range(200):
        pod = world.workers.get(newest(world))
        if pod is not None and pod.exit_code is None and pod.metrics.generation:
            pod.end_asked()
        world.train(1)
        if world.tick(5).phase == "Failed":
            break
    assert world.decisions[-1].phase == "Failed"
    assert world.created <= 3 + 5


def test_script_that_raises_at_the_same_step_in_another_worker_fails_the_job() -> None:
    world = elastic_world()
    step = world.cluster.training.step
    world.workers[B].end_by_script(step)
    assert world.tick().phase == "Running"
    world.workers[A].end_by_script(step)
    decision = world.tick()
    assert decision.phase == "Failed"
    assert "again, in another worker" in decision.reason


def test_script_that_raises_elsewhere_later_counts_for_its_place_alone() -> None:
    world = elastic_world(backoff_limit=1)
    for name in (A, B):
        world.workers[name].end_by_script(world.cluster.training.step)
        world.tick()
        settled(world)
    assert world.decisions[-1].phase == "Running"


def test_newcomer_of_a_place_knows_what_was_known_of_it() -> None:
    world = World(Job("job", (Group("fast", 2), Group("slow", 1)), global_batch=192), {"job-slow-0": 6.0}, protocol=3)
    world.start().run(4)
    assert world.plan is not None
    before = dict(zip(names(world.plan), world.plan.batch_sizes, strict=True))
    world.scales["job-slow-1"] = 6.0
    world.workers["job-slow-0"].end(137)
    settled(world)
    assert world.plan is not None
    assert names(world.plan) == ["job-fast-0", "job-fast-1", "job-slow-1"]
    assert world.plan.batch_sizes == pytest.approx(tuple(before.values()), abs=4)


def test_newcomer_of_whose_like_nothing_is_known_gets_no_more_than_the_slowest() -> None:
    world = World(Job("job", (Group("fast", 1), Group("slow", 1)), global_batch=192), {"job-slow-0": 5.0}, protocol=3)
    world.start().run(4)
    world.job = replace(world.job, groups=(*world.job.groups, Group("new", 1)))
    plans = []
    for _ in range(6):
        world.train(1)
        plans.append(world.tick(5).plan)
    joined = next(plan for plan in plans if plan is not None and len(plan.members) == 3)
    fast, slow, new = joined.batch_sizes
    assert fast > 3 * slow
    assert new <= slow + 1


def test_place_of_a_worker_that_ran_out_of_memory_gets_fewer_samples() -> None:
    world = MemoryWorld(Job("job", (Group("a", 2),), global_batch=300), protocol=3)
    world.limit_mib = 2000.0
    world.start().run(2)
    world.workers["job-a-0"].end_out_of_memory("out of memory")
    decision = world.tick()
    known = world.memory.pending[0].known.memory_use
    assert known.failed_batch == 150
    (said,) = [event.message for event in decision.events if event.reason == "WorkerFailed"]
    assert said.endswith("; job-a-0 gets at most 75 samples instead of 150")


def test_places_that_wait_when_all_start_again_are_not_forgotten() -> None:
    world = MemoryWorld(Job("job", (Group("a", 2),), global_batch=300), protocol=3)
    world.limit_mib = 2000.0
    world.start().run(2)
    for name in ("job-a-0", "job-a-1"):
        world.workers[name].end_out_of_memory("out of memory")
        decision = world.tick()
    assert decision.phase == "Restarting"
    settled(world)
    assert names(world.plan) == ["job-a-0", "job-a-1"]
    assert [row.memory_use.failed_batch for row in world.memory.workers] == [150, 300]


def test_what_is_known_of_a_successor_is_known_of_who_comes_after_it_when_all_start_again() -> None:
    world = elastic_world()
    world.workers[B].end(-9, disrupted=True)
    settled(world)
    world.run(3)
    assert names(world.plan) == [A, C, "job-a-3"]
    known = world.memory.workers[2].batch_cost.sum_w
    for pod in world.workers.values():
        pod.end(-9, disrupted=True)
    assert world.tick().phase == "Restarting"
    settled(world)
    assert names(world.plan) == [A, B, C]
    assert known > 0
    assert world.memory.workers[1].batch_cost.sum_w > 0


def test_worker_in_a_place_that_ran_out_of_memory_does_not_warm_up_with_as_much() -> None:
    world = elastic_world(backoff_limit=1)
    world.workers[B].end_out_of_memory("out of memory")
    decision = world.tick()
    assert ([key.name for key in decision.create], decision.beside_training) == (["job-a-3"], False)
    settled(world)
    world.workers["job-a-3"].end(-9, disrupted=True)
    assert not world.tick().beside_training, "the place is the same"
    settled(world)
    world.workers[A].end(-9, disrupted=True)
    assert world.tick().beside_training


def test_too_many_ends_at_once_are_no_matter_of_single_places() -> None:
    world = elastic_world(MOST_PENDING + 10, global_batch=1024)
    for pod in list(world.workers.values())[:-2]:
        pod.end(1)
    decision = world.tick()
    assert decision.phase == "Restarting"
    assert len(world.memory.pending) <= MOST_PENDING


def test_preemption_of_most_workers_leaves_the_rest_training_and_the_memory_small() -> None:
    world = elastic_world(MOST_PENDING + 40, global_batch=1024)
    for pod in list(world.workers.values())[:-2]:
        pod.end(143, disrupted=True)
    decision = world.tick()
    assert decision.plan is not None
    assert len(decision.plan.members) == 2
    assert len(world.memory.pending) <= MOST_PENDING
    settled(world)
    assert world.plan is not None
    assert len(world.plan.members) == MOST_PENDING + 40


def test_mass_preemption_takes_a_few_kilobytes() -> None:
    world = elastic_world(MOST_PENDING + 40, global_batch=1024)
    for pod in list(world.workers.values())[:-2]:
        pod.end(143, disrupted=True)
    world.tick()
    assert len(world.memory.to_json()) < (MOST_PENDING + 40) * 400


TEXTS = st.text("ab-0", max_size=8)
PLACES = st.builds(
    Pending,
    group=TEXTS,
    index=st.integers(0, 10**6),
    why=TEXTS,
    replaces=TEXTS,
    key=st.sampled_from(["", "abcdef"]),
    failures=st.integers(0, 10**6),
    tries=st.integers(0, 10**6),
    due_at=st.floats(0, 1e12),
    asked_at=st.floats(0, 1e12),
    known=st.just(WorkerMemory(noted=3)),
)


@given(st.lists(PLACES, max_size=5))
def test_places_read_back_as_they_were_written(places: list[Pending]) -> None:
    memory = Memory(pending=tuple(places))
    assert Memory.from_json(memory.to_json()) == memory


BLANK = ["", "", 0, 0, 0, 0, []]


@pytest.mark.parametrize(
    "rows",
    [
        None,
        7,
        "x",
        [7],
        [[]],
        [["a"] * 10],
        [["a", -1, "", "", "", 0, 0, 0.0, 0.0, []]],
        [["a", 1, 2, *BLANK]],
    ],
)
def test_place_of_which_nonsense_is_told_is_none(rows: object) -> None:
    assert PENDING.read(rows) == ()
    assert Memory.from_json(json.dumps({"schema": 1, "pending": rows})) == Memory()


def test_no_more_places_are_read_than_are_ever_written() -> None:
    assert len(PENDING.read([Pending("a", 1).row()] * 1000)) == MOST_PENDING


def test_clock_that_leaps_moves_the_moments_of_places() -> None:
    memory = Memory(pending=(Pending("a", 1, due_at=100.0, asked_at=50.0), Pending("a", 2, due_at=5.0)))
    first, second = memory.moved(1000.0).pending
    assert (first.due_at, first.asked_at, second.asked_at) == (1100.0, 1050.0, 0.0)
    assert memory.moved(-1000.0).pending[0].due_at == 0.0
