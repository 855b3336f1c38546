"""Places whose workers have ended: others are created at once or later, and beyond a limit the job fails."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain.contract import MEMBERS_MAY_END
from heterotrain_operator.core.model import Group, Job, WorkerState
from heterotrain_operator.core.remembered.members import MOST_PENDING
from unit.core.jobs import (
    A,
    B,
    C,
    D,
    created,
    decided,
    elastic_world,
    ends,
    names,
    reasons,
    settled,
    told,
)
from unit.core.traces import MemoryWorld, World


def newest(world: World) -> str:
    """The worker that was created last."""
    return max(world.workers.values(), key=lambda pod: int(pod.uid.removeprefix("uid-"))).name


def failures(world: World) -> list[int]:
    return [row.failures for row in world.memory.workers]


def test_place_that_loses_more_workers_than_its_limit_fails_the_job() -> None:
    world = elastic_world(backoff_limit=2)
    for victim in (B, D):
        ends(world, victim, "exit")
        settled(world, 8)
    assert (failures(world), world.decisions[-1].phase) == ([0, 0, 2], "Running")
    world.workers[newest(world)].end(1, message="boom")
    decision = world.tick()
    assert (decision.phase, reasons(decision)) == ("Failed", ["WorkerFailed", "BackoffLimitExceeded"])
    assert "boom (after 2 replacements in its place)" in decision.reason


@pytest.mark.parametrize(
    ("how", "limit", "counted"),
    [("exit", 1, [1, 1, 1]), ("preempt", 0, [0, 0, 0]), ("vanish", 0, [0, 0, 0]), ("left", 0, [0, 0, 0])],
)
def test_ends_of_different_places_do_not_add_up_and_those_that_are_nobodys_fault_do_not_count(
    how: str, limit: int, counted: list[int]
) -> None:
    world = elastic_world(backoff_limit=limit)
    for name in (A, B, C):
        ends(world, name, how)
        settled(world)
    assert (world.decisions[-1].phase, failures(world)) == ("Running", counted)
    if how == "vanish":
        del world.workers[newest(world)]
        first, *rest = reasons(world.tick())
        assert (first, rest) == ("WorkerVanished", ["SuccessfulCreatePod", "GenerationChanged", "WorkerLeft"])


def test_first_worker_of_a_place_is_created_at_once_and_the_next_ones_ever_later() -> None:
    world = elastic_world(backoff_limit=5)
    ends(world, B, "exit")
    decision = world.tick()
    assert (created([decision]), dict(decision.worker_states)[D]) == ([D], WorkerState.WANTED)
    ends(world, D, "exit")
    assert world.tick().create == ()
    assert world.memory.pending[0].due_at - world.now >= 1
    assert world.tick(0.5).create == ()
    assert len(world.tick(30).create) == 1


def test_what_is_created_is_not_created_again_before_it_had_time_to_appear() -> None:
    world = elastic_world()
    ends(world, B, "exit")
    seen = world.seen()
    first, world.memory = decided(world, seen)
    seen = replace(seen, plan=first.plan)
    again, world.memory = decided(world, seen, 1)
    later, _ = decided(world, seen, 30)
    assert (len(first.create), again.create, later.create) == (1, (), first.create)


# --- asked to stop, as they say ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shown", [False, True])
def test_worker_asked_to_stop_is_replaced_at_once_and_counts_unless_somebody_shows_who_asked(shown: bool) -> None:
    world = elastic_world(backoff_limit=1)
    ends(world, B, "asked")
    decision = world.tick()
    assert len(decision.create) == 1
    assert B not in decision.delete, "it may still show who asked"
    assert world.memory.pending[0].failures == 0
    world.train(1)
    world.tick(60)
    world.workers[B].disrupted = shown
    settled(world, 30)
    assert (world.decisions[-1].phase, failures(world)) == ("Running", [0, 0, 0 if shown else 1])
    assert set(world.workers) == {A, C, D}


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


# --- scripts that raise ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("between", "phase"), [(0, "Failed"), (8, "Running")])
def test_script_that_raises_at_the_same_step_in_another_worker_fails_the_job_unless_it_got_past_it(
    between: int, phase: str
) -> None:
    world = elastic_world()
    step = world.cluster.training.step
    world.workers[C].end_by_script(step)
    assert world.tick().phase == "Running"
    settled(world, between)
    world.workers[B].end_by_script(step)
    decision = world.tick()
    assert decision.phase == phase
    assert ("again, in another worker" in decision.reason) is (phase == "Failed")


# --- what is known of a place ------------------------------------------------------------------------------------


def test_newcomer_of_a_place_knows_what_was_known_of_it() -> None:
    job = Job("job", (Group("fast", 2), Group("slow", 1)), global_batch=192)
    world = World(job, {"job-slow-0": 6.0}, protocol=MEMBERS_MAY_END)
    world.start().run(4)
    before = world.plan
    assert before is not None
    world.scales["job-slow-1"] = 6.0
    ends(world, "job-slow-0")
    settled(world)
    assert world.plan is not None
    assert names(world.plan) == ["job-fast-0", "job-fast-1", "job-slow-1"]
    assert world.plan.batch_sizes == pytest.approx(before.batch_sizes, abs=4)


def test_newcomer_of_whose_like_nothing_is_known_gets_no_more_than_the_slowest() -> None:
    job = Job("job", (Group("fast", 1), Group("slow", 1)), global_batch=192)
    world = World(job, {"job-slow-0": 5.0}, protocol=MEMBERS_MAY_END)
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


def test_place_of_a_worker_that_ran_out_of_memory_gets_fewer_samples_also_when_all_start_again() -> None:
    world = MemoryWorld(Job("job", (Group("a", 2),), global_batch=300), protocol=MEMBERS_MAY_END)
    world.limit_mib = 2000.0
    world.start().run(2)
    world.workers[A].end_out_of_memory("out of memory")
    [said] = told([world.tick()], "WorkerFailed")
    assert world.memory.pending[0].known.memory_use.failed_batch == 150
    assert said.endswith(f"; {A} gets at most 75 samples instead of 150")
    world.workers[B].end_out_of_memory("out of memory")
    assert world.tick().phase == "Restarting"
    settled(world)
    assert names(world.plan) == [A, B]
    assert [row.memory_use.failed_batch for row in world.memory.workers] == [150, 300]


@pytest.mark.parametrize("how", ["exit", "preempt"])
def test_ends_of_more_workers_than_places_are_remembered(how: str) -> None:
    world = elastic_world(MOST_PENDING + 40, global_batch=1024)
    for name in list(world.workers)[:-2]:
        ends(world, name, how)
    decision = world.tick()
    assert len(world.memory.pending) <= MOST_PENDING
    assert len(world.memory.to_json()) < (MOST_PENDING + 40) * 400
    if how == "exit":
        assert decision.phase == "Restarting"
        return
    assert len(names(decision.plan)) == 2
    settled(world)
    assert len(names(world.plan)) == MOST_PENDING + 40


# --- how places are stored ---------------------------------------------------------------------------------------
