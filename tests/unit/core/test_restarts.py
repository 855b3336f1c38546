"""Workers that end: who is named, what counts, how long it waits, and when it is enough."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heterotrain_operator.core.decide import decide
from heterotrain_operator.core.lifecycle.responses import delay_seconds
from unit.core.restarts import events, restart_fully
from unit.core.traces import World, hetero_world


@pytest.mark.parametrize(
    ("exit_code", "message", "said"),
    [
        (1, "ZeroDivisionError: division by zero", "job-g1-0 exited with code 1: ZeroDivisionError: division by zero"),
        (137, "", "job-g1-0 was killed by SIGKILL"),
        (-9, "", "job-g1-0 was killed by SIGKILL"),
        (139, "", "job-g1-0 was killed by SIGSEGV"),
        (0, "", "job-g1-0 exited with code 0 before the job's last step"),
        (255, "", "job-g1-0 exited with code 255"),
    ],
)
def test_failure_names_the_worker_its_exit_and_its_last_words(exit_code: int, message: str, said: str) -> None:
    world = hetero_world()
    world.run(1)
    world.workers["job-g1-0"].end(exit_code, message=message)
    decision = world.tick()
    assert said in decision.reason
    assert decision.phase == "Restarting"
    assert set(decision.delete) == {"job-g0-0", "job-g1-0", "job-g2-0"}
    assert events(world) == ["WorkerFailed", "RestartingWorkers"]
    assert world.memory.budget.restarts == 1


def test_all_workers_are_created_again_and_the_next_generation_starts_with_the_batches_that_were() -> None:
    world = hetero_world()
    world.run(3)
    before = world.plan
    assert before is not None
    world.workers["job-g1-0"].end(1)
    world.tick()
    assert len(world.tick().create) == 3, "the first restart waits for nothing"
    plan = world.tick().plan
    assert plan is not None
    assert plan.generation == before.generation + 1
    assert plan.version > before.version
    assert plan.batch_sizes == before.batch_sizes
    assert not {m.uid for m in plan.members} & {m.uid for m in before.members}


def test_shape_that_was_learned_survives_a_restart() -> None:
    world = hetero_world(fixed=0.016)
    world.run(5)
    adjustments = world.memory.batching.adjustments
    world.workers["job-g1-0"].end(1)
    world.tick()
    restart_fully(world)
    assert all(decision.plan is None for decision in world.run(5))
    assert world.memory.batching.adjustments == adjustments


def test_failure_seen_twice_counts_once() -> None:
    world = hetero_world()
    world.workers["job-g1-0"].end(1)
    seen = world.seen()
    _, memory = decide(world.job, seen, world.memory, world.now)
    again, memory = decide(world.job, seen, memory, world.now + 1)
    assert memory.budget.restarts == 1
    assert not again.create
    assert len(again.delete) == 3


@pytest.mark.parametrize(
    ("restarts", "seconds"), [(1, 0), (2, 1), (3, 2), (4, 4), (5, 8), (8, 60), (9, 60), (10_000, 60)]
)
def test_delay_doubles_up_to_a_minute(restarts: int, seconds: float) -> None:
    assert delay_seconds(restarts) == seconds


def test_second_restart_waits_before_it_creates() -> None:
    world = hetero_world()
    world.workers["job-g0-0"].end(1)
    world.tick()
    restart_fully(world)
    world.workers["job-g0-0"].end(1)
    world.tick()
    waiting = world.tick(0.5)
    assert not waiting.create
    assert "start again in 0.5 s" in waiting.reason
    assert len(world.tick(0.6).create) == 3


@pytest.mark.parametrize("limit", [0, 2])
def test_job_fails_beyond_its_backoff_limit(limit: int) -> None:
    world = hetero_world(backoff_limit=limit)
    for _ in range(limit):
        world.workers["job-g2-0"].end(3, message="boom")
        world.tick()
        restart_fully(world)
    world.workers["job-g2-0"].end(3, message="boom")
    decision = world.tick()
    assert decision.phase == "Failed"
    assert events(world) == ["WorkerFailed", "BackoffLimitExceeded"]
    assert f"job-g2-0 exited with code 3: boom (after {limit} of {limit} restart" in decision.reason
    assert set(decision.delete) == {"job-g0-0", "job-g1-0"}, "the failed one keeps its logs"
    assert world.tick().reason == decision.reason


def test_disrupted_workers_do_not_count() -> None:
    world = hetero_world(backoff_limit=0)
    for _ in range(3):
        world.workers["job-g0-0"].end(143, disrupted=True)
        world.workers["job-g1-0"].end(1, message="connection closed by peer")
        decision = world.tick()
        assert decision.phase == "Restarting"
        assert "disrupted from outside" in decision.reason
        restart_fully(world)
    assert world.memory.budget.restarts == 0


def test_restarts_that_do_not_count_are_later_each_time_and_at_once_after_a_long_time() -> None:
    world = hetero_world(backoff_limit=0)
    delays = []
    for steady in (1, 1, 1, 1, 1, 1, 1, 1, 1, 700, 1):
        world.tick(steady)
        world.workers["job-g0-0"].end(143, disrupted=True)
        world.tick()
        assert world.memory.budget.restart_at is not None
        delays.append(world.memory.budget.restart_at - world.now)
        restart_fully(world)
    assert delays == [0, 1, 2, 4, 8, 16, 32, 60, 60, 0, 1]
    assert world.memory.budget.restarts == 0


def test_vanished_worker_does_not_count() -> None:
    world = hetero_world(backoff_limit=0)
    world.run(1)
    del world.workers["job-g1-0"]
    decision = world.tick()
    assert decision.phase == "Restarting"
    assert "job-g1-0 vanished" in decision.reason
    restart_fully(world)
    assert world.plan is not None
    assert world.plan.generation == 2


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ({"message": "PreemptionByScheduler: for another"}, "job-g1-0 was deleted: PreemptionByScheduler: for another"),
        ({"exit_code": 143, "disrupted": True}, "job-g1-0 was killed by SIGTERM (disrupted from outside)"),
    ],
    ids=["deleted", "ended"],
)
def test_worker_that_is_gone_is_told_of_as_it_was_seen_last(last: dict[str, Any], said: str) -> None:
    world = hetero_world(backoff_limit=0)
    world.run(1)
    gone = replace(next(each for each in world.seen().workers if each.name == "job-g1-0"), metrics=None, **last)
    del world.workers["job-g1-0"]
    decision, memory = decide(world.job, replace(world.seen(), departed=(gone,)), world.memory, world.now)
    assert decision.phase == "Restarting"
    assert decision.reason == f"{said}; all workers start again in 0 s (not counted as a restart)"
    assert [event.reason for event in decision.events] == ["WorkerDisrupted", "RestartingWorkers"]
    assert memory.budget.restarts == 0


def test_failure_after_others_finished_is_a_failure_too() -> None:
    world = hetero_world()
    world.run(1)
    world.workers["job-g0-0"].end(0, finished=True)
    world.tick()
    world.workers["job-g1-0"].end(1)
    decision = world.tick()
    assert decision.phase == "Restarting"
    assert len(decision.delete) == 3


def test_worker_that_fails_before_the_first_plan_counts() -> None:
    world = World(hetero_world().job)
    world.tick()
    world.workers["job-g0-0"].end(1, message="no module named torch")
    assert "no module named torch; waiting whether the others end alike" in world.tick().reason
    assert world.memory.budget.restarts == 0
    assert "no module named torch" in world.tick(10).reason
    assert world.memory.budget.restarts == 1


def test_killed_worker_is_named_before_those_that_fell_over_it() -> None:
    world = hetero_world()
    world.workers["job-g0-0"].end(1, message="peer closed")
    world.workers["job-g2-0"].end(137)
    assert world.tick().reason.startswith("job-g2-0 was killed by SIGKILL; job-g0-0 exited with code 1")


def test_pods_that_do_not_go_away_end_the_job_by_name() -> None:
    world = hetero_world()
    world.workers["job-g1-0"].end(1)
    stuck = dict(world.workers)
    world.tick()
    world.workers = dict(stuck)
    assert world.tick().phase == "Restarting"
    world.workers = dict(stuck)
    decision = world.tick(700)
    assert decision.phase == "Failed"
    assert "did not go away" in decision.reason


def test_exit_code_zero_with_error_phase_is_a_failure() -> None:
    world = hetero_world()
    worker = world.workers["job-g0-0"]
    worker.end(0, finished=True)
    world.workers["job-g0-0"] = replace(worker, phase="Failed")
    assert world.tick().phase == "Restarting"
