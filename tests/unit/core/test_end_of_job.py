"""What ends make a job a success whose last step is committed, what fails it, and that nobody starts again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain.contract import PHASE_FINISHED
from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.core.state import Remembered
from unit.core.jobs import (
    A,
    B,
    C,
    D,
    changed,
    created,
    decided,
    elastic_world,
    ends,
    failure,
    names,
    told,
)
from unit.core.traces import World


def staying_world() -> World:
    """Three workers that cannot do without one another."""
    world = World(Job("job", (Group("a", 3),), global_batch=192)).start()
    world.run(3)
    return world


@pytest.mark.parametrize("how", ["kill", "preempt", "vanish", "script", "asked", "left"])
def test_member_that_ends_just_before_the_first_one_finishes_starts_nobody_again(how: str) -> None:
    world = elastic_world()
    ends(world, B, how)
    for name in (A, C):
        ends(world, name, "finish")
    decision = world.tick()
    assert (decision.phase, world.memory.budget.restarts) == ("Succeeded", 0)
    failed = how in ("kill", "preempt", "script")
    assert (f"2 of 3 workers finished the job's last step; {B} " in decision.reason) == failed


def test_worker_on_a_node_that_is_lost_is_waited_for_until_that_is_known() -> None:
    world = elastic_world()
    world.workers[B].answers = False
    for name in (A, C):
        ends(world, name, "finish")
    assert [world.tick(5).phase for _ in range(3)] == ["Running"] * 3, "it may be about to finish, too"
    assert decided(world, changed(world.seen(), B, node_lost=True), 5)[0].phase == "Succeeded"


@pytest.mark.parametrize(
    ("elastic", "happened", "phase"),
    [
        (True, {A: "kill", B: "finish", C: "finish"}, "Succeeded"),  # the second led
        (True, {A: "finish", B: "fatal", C: "finish"}, "Failed"),
        (True, {B: "preempted after", A: "finish", C: "finish"}, "Succeeded"),
        (True, {B: "preempt", A: "finish", C: "finish"}, "Succeeded"),
        (False, {A: "finish", B: "preempt", C: "finish"}, "Succeeded"),
        (False, {C: "left"}, "Restarting"),
    ],
)
def test_job_succeeds_whose_leader_ended_well_and_whose_others_did_or_were_let_go(
    elastic: bool, happened: dict[str, str], phase: str
) -> None:
    world = elastic_world() if elastic else staying_world()
    for name, how in happened.items():
        ends(world, name, how)
    assert world.tick().phase == phase


@pytest.mark.parametrize("elastic", [True, False])
@pytest.mark.parametrize(
    ("happened", "words"),
    [
        ({A: "fails after"}, f"{A}: it exited with code 1: OSError: no such folder"),  # the others may still run
        ({A: "killed after", B: "finish", C: "finish"}, f"{A}: it was killed by SIGKILL"),
        ({A: "preempted after", B: "finish", C: "finish"}, f"{A}: it was killed by SIGKILL (disrupted from outside)"),
        ({B: "finish", C: "finish", A: "kill"}, f"{A}: it was killed by SIGKILL"),  # before it said a word
        ({B: "finish", C: "finish", A: "vanish"}, f"{A}: it vanished"),
        ({A: "finish", B: "fails after", C: "finish"}, f"{B}: it exited with code 1: OSError: no such folder"),
    ],
)
def test_job_whose_script_fails_after_the_last_step_fails_and_starts_nobody_again(
    elastic: bool, happened: dict[str, str], words: str
) -> None:
    world = elastic_world() if elastic else staying_world()
    last_step = world.cluster.training.step + 1
    for name, how in happened.items():
        ends(world, name, how)
    assert world.tick().phase == "Failed"
    after = f"training finished at step {last_step}, but the script failed afterwards on {words}"
    assert failure(world) == ("FailedAfterTraining", after)


def test_member_that_all_need_and_that_is_killed_at_the_last_step_fails_the_job() -> None:
    """What it was to do after the last step, it has not done; the others have, and are not to do it again."""
    world = staying_world()
    for name, how in {A: "finish", B: "kill", C: "finish"}.items():
        ends(world, name, how)
    assert world.tick().phase == "Failed"
    assert f"afterwards on {B}" in failure(world)[1]


def test_leader_may_finish_its_work_though_another_worker_has_failed() -> None:
    world = elastic_world()
    ends(world, B, "fails after")
    ends(world, C, "finish")
    assert world.tick().phase == "Running"
    ends(world, A, "finish")
    assert world.tick().phase == "Failed"
    assert f"afterwards on {B}" in failure(world)[1]


@pytest.mark.parametrize("elastic", [True, False])
@pytest.mark.parametrize("others", ["finish", "run"])
def test_work_after_the_last_step_has_a_limit_of_its_own_and_is_no_hang(elastic: bool, others: str) -> None:
    world = elastic_world() if elastic else staying_world()
    world.job = replace(world.job, progress_timeout_seconds=20, startup_deadline_seconds=20, finish_deadline_seconds=90)
    for name in (A, B, C):
        pod = world.workers[name]
        pod.metrics = replace(pod.metrics, phase=PHASE_FINISHED)
        if name != A and others == "finish":
            ends(world, name, "finish")
    decisions = [world.tick(30) for _ in range(4)]
    assert {decision.phase for decision in decisions} == {"Running"}
    assert created(decisions) == []
    assert world.tick(30).phase == "Failed"
    code, message = failure(world)
    assert code == "FinishDeadlineExceeded"
    assert "did not end within 90 s (runPolicy.finishDeadlineSeconds) on job-a-0" in message


def test_workers_of_an_older_library_are_judged_by_their_ranks() -> None:
    """They do not say who led, and say nothing at all if they are killed."""
    for happened, phase in (
        ({A: "kill", B: "finish", C: "finish"}, "Failed"),
        ({A: "finish", B: "kill", C: "finish"}, "Succeeded"),
    ):
        world = elastic_world()
        for name, how in happened.items():
            ends(world, name, how)
            world.workers[name].leader = None
        assert world.tick().phase == phase


@pytest.mark.parametrize("how", ["kill", "preempt", "vanish", "asked", "finish"])
@pytest.mark.parametrize("forgetful", [False, True])
def test_job_whose_first_member_has_finished_is_done_whatever_becomes_of_the_others(how: str, forgetful: bool) -> None:
    world = elastic_world()
    world.forgetful = forgetful
    ends(world, A, "finish")
    ends(world, B)
    decisions = [world.tick(5) for _ in range(3)]
    assert [decision.phase for decision in decisions] == ["Running"] * 3, "one has yet to finish"
    assert created(decisions) == [], "nobody joins any more"
    ends(world, C, how)
    assert (world.tick().phase, world.memory.budget.restarts) == ("Succeeded", 0)


def test_job_of_which_a_later_member_has_finished_fails_if_the_rest_are_lost() -> None:
    """One of them led, and nobody knows which. Until then one of them may be about to finish, and its steps count from
    the last words of those that have ended."""
    world = elastic_world()
    ends(world, C, "finish")
    ends(world, A)
    assert world.tick().phase == "Running"
    step = world.cluster.training.step + 1
    assert told(world.decisions, "WorkerLeft") == [f"{A} left at step {step}: {A} was killed by SIGKILL"]
    ends(world, B)
    assert world.tick().phase == "Failed"
    assert f"training finished at step {step}" in failure(world)[1]


def test_member_that_leaves_while_others_have_yet_to_finish_is_no_failure() -> None:
    world = elastic_world()
    ends(world, A, "finish")
    ends(world, C, "left")
    for _ in range(3):
        decision = world.tick()
        assert (decision.phase, decision.plan, decision.create) == ("Running", None, ())
    assert (world.memory.budget.restarts, world.memory.pending) == (0, ())
    ends(world, B, "finish")
    assert world.tick().phase == "Succeeded"


@pytest.mark.parametrize("newcomer", ["created", "named", "named, memory lost", "entering", "entering and lost"])
def test_job_whose_members_have_finished_is_over_though_others_were_to_join(newcomer: str) -> None:
    world = elastic_world()
    ends(world, B)
    world.tick()
    world.train(1)
    if newcomer != "created":
        assert names(world.tick().plan) == [A, C, D]
    if newcomer == "named, memory lost":
        world.memory = Remembered.initial()
    if "entering" in newcomer:
        world.train(1)
        pod = world.workers[D]
        pod.metrics = replace(pod.metrics, generation=0, plan_version=0)
        world.tick()
    if newcomer == "entering and lost":
        ends(world, D, "exit")
    for name in (A, C):
        ends(world, name, "finish")
    assert (world.tick().phase, world.memory.budget.restarts) == ("Succeeded", 0)
