"""Scripts that raise: one restart, unless that is sure to end alike or the error follows from another end."""

from __future__ import annotations

from typing import Any

import pytest

from unit.core.restarts import events, failure, restart_fully
from unit.core.traces import hetero_world


def test_script_that_raises_without_a_checkpoint_path_fails_the_job_at_once() -> None:
    world = hetero_world(backoff_limit=9)
    world.run(1)
    world.workers["job-g1-0"].end_by_script(10)
    assert world.tick().phase == "Failed"
    code, message = failure(world)
    assert code == "ScriptFailed"
    assert message.startswith("the script raised at step 10, and without spec.checkpoint.path")
    assert "job-g1-0 exited with code 1: ValueError: label 17" in message
    assert events(world) == ["ScriptFailed"]


@pytest.mark.parametrize("step", [10, 7])
def test_script_that_gets_no_further_after_its_one_restart_fails_the_job(step: int) -> None:
    world = hetero_world(backoff_limit=9, resumable=True)
    world.forgetful = True
    world.run(1)
    world.workers["job-g1-0"].end_by_script(10)
    assert world.tick().phase == "Restarting"
    assert world.memory.budget.restarts == 1
    restart_fully(world)
    world.workers["job-g1-0"].end_by_script(step)
    assert world.tick().phase == "Failed"
    code, message = failure(world)
    assert code == "ScriptFailed"
    same = "the script raised the same at step 10 after a restart: job-g1-0"
    earlier = "the script raised at step 7 after a restart, no further than before (step 10): job-g1-0"
    assert message.startswith(same if step == 10 else earlier)


def test_script_error_at_a_later_step_gets_its_own_restart_within_the_backoff_limit() -> None:
    world = hetero_world(backoff_limit=2, resumable=True)
    for step in (10, 11):
        world.workers["job-g1-0"].end_by_script(step)
        assert world.tick().phase == "Restarting"
        restart_fully(world)
    world.workers["job-g1-0"].end_by_script(12)
    world.tick()
    assert failure(world)[0] == "BackoffLimitExceeded"


def test_script_error_is_forgotten_once_training_got_past_it() -> None:
    world = hetero_world(backoff_limit=9, resumable=True)
    world.run(1)
    world.workers["job-g1-0"].end_by_script(10)
    world.tick()
    restart_fully(world)
    world.run(3)
    world.workers["job-g0-0"].end(137)
    world.tick()
    restart_fully(world)
    world.workers["job-g1-0"].end_by_script(5)
    assert world.tick().phase == "Restarting"


def test_script_error_is_named_before_what_followed_from_it() -> None:
    world = hetero_world(resumable=True)
    world.run(1)
    world.workers["job-g0-0"].end(1, message="peers are gone")
    world.workers["job-g1-0"].end(1, message="peers are gone")
    world.workers["job-g2-0"].end_by_script(10)
    assert world.tick().reason.startswith("job-g2-0 exited with code 1: ValueError: label 17; job-g0-0")


@pytest.mark.parametrize(
    ("cause", "counts"),
    [
        ({"exit_code": 143, "disrupted": True}, 0),
        ({"exit_code": 137}, 1),
        ({"exit_code": 1, "out_of_memory": True}, 1),
    ],
    ids=["disrupted", "killed", "out of memory"],
)
def test_script_error_beside_another_cause_is_a_consequence(cause: dict[str, Any], counts: int) -> None:
    world = hetero_world()
    world.run(1)
    world.workers["job-g0-0"].end_by_script(10)
    other = world.workers["job-g1-0"]
    other.end(cause["exit_code"], disrupted=cause.get("disrupted", False))
    other.out_of_memory = cause.get("out_of_memory", False)
    assert world.tick().phase == "Restarting"
    assert world.memory.budget.restarts == counts
    assert world.memory.budget.script_error_step == -1


def test_script_error_beside_a_worker_that_vanished_is_a_consequence() -> None:
    world = hetero_world()
    world.run(1)
    world.workers["job-g0-0"].end_by_script(10)
    del world.workers["job-g1-0"]
    assert world.tick().phase == "Restarting"
    assert world.memory.budget.restarts == 0


def test_script_that_runs_out_of_memory_is_none_that_raised() -> None:
    world = hetero_world()
    world.run(1)
    world.workers["job-g0-0"].end_by_script(10, "OutOfMemoryError: tried to allocate 2 GiB")
    world.workers["job-g0-0"].out_of_memory = True
    assert world.tick().phase == "Restarting"
