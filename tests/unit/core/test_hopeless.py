"""Ends after which no restart can help, and scripts that raise: one restart, unless it is sure to end alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heterotrain_operator.core.model import Group, Job
from unit.core.jobs import condition, decided, elastic_world, ends, failure, one, reasons, restart_fully, start_and_end
from unit.core.traces import World, hetero_world

FIRST, SECOND, THIRD = (f"job-g{rank}-0" for rank in range(3))
NO_SCRIPT = "python: can't open file '/workspace/train.py': [Errno 2] No such file or directory"
NO_DEVICE = "MissingDeviceError: torch finds no GPU here; set onMissingDevice: UseCPU"
TRACEBACK = """Traceback (most recent call last):
  File "/workspace/train.py", line 3, in <module>
ModuleNotFoundError: No module named 'torchvision'"""


def trained(**changes: Any) -> World:
    world = hetero_world(**changes)
    world.run(1)
    return world


def starting(**changes: Any) -> World:
    """Three workers are there, and no plan is."""
    world = World(hetero_world(**changes).job)
    world.tick()
    return world


def alone(**changes: Any) -> World:
    return World(Job("job", (Group("a", 1),), 8, backoff_limit=9))


# --- no restart can help -----------------------------------------------------------------------------------------


def test_end_without_another_try_fails_the_job_whatever_restarts_are_left() -> None:
    world = trained(backoff_limit=9, resumable=True)
    ends(world, SECOND, "fatal")
    assert reasons(world.tick()) == ["WorkerFailedForGood"]
    assert failure(world) == ("WorkerFailedForGood", f"{SECOND} exited with code 1: another model")
    assert world.memory.budget.restarts == 0


@pytest.mark.parametrize("beside", ["a disruption", "a restart", "its going"])
def test_end_without_another_try_is_obeyed_also_beside_something_else(beside: str) -> None:
    world = trained()
    staying = dict(world.workers)
    if beside == "a restart":
        ends(world, FIRST)
        assert world.tick().phase == "Restarting"
    elif beside == "a disruption":
        ends(world, FIRST, "preempt")
    world.workers = staying
    ends(world, SECOND, "fatal")
    seen = world.seen()
    if beside == "its going":
        others = tuple(each for each in seen.workers if each.name != SECOND)
        seen = replace(seen, workers=others, departed=(one(world, SECOND),))
    decision, _ = decided(world, seen)
    assert (decision.phase, condition(decision, "Failed").reason) == ("Failed", "WorkerFailedForGood")


@pytest.mark.parametrize(
    ("code", "message", "failed", "said"),
    [
        (1, NO_DEVICE, "DeviceMissing", f"{FIRST}: {NO_DEVICE}"),
        (
            0,
            "",
            "NeverJoined",
            f"{FIRST} exited with code 0 and never joined: the script does not call heterotrain.join()",
        ),
    ],
)
@pytest.mark.parametrize("when", ["before it joined", "after it trained", "after the plan was lost", "taken away"])
def test_worker_that_lacks_its_device_or_never_joins_fails_the_job_at_once(
    code: int, message: str, failed: str, said: str, when: str
) -> None:
    world = trained(backoff_limit=9) if "after" in when else starting(backoff_limit=9)
    world.workers[FIRST].end(code, message=message, disrupted=when == "taken away")
    if when == "after the plan was lost":
        world.plan = None  # who was a member of it is not known
    decision = world.tick()
    if when != "before it joined":
        assert decision.phase == "Restarting"
        return
    assert (decision.phase, failure(world)) == ("Failed", (failed, said))


def test_workers_that_all_fail_alike_before_the_first_step_fail_the_job_once_all_have_ended() -> None:
    world = World(hetero_world(backoff_limit=9, resumable=True).job)
    start_and_end(world, (2, NO_SCRIPT))
    assert world.tick().phase == "Created"
    start_and_end(world, *[(2, NO_SCRIPT)] * 2)
    assert world.tick(5).phase == "Created"
    start_and_end(world, *[(2, NO_SCRIPT)] * 3)
    assert reasons(world.tick()) == ["WorkersFailedAlike"]
    same = "all 3 workers ended in the same way before the first step"
    assert failure(world) == ("WorkersFailedAlike", f"{same}: {FIRST} exited with code 2: {NO_SCRIPT}")
    assert world.memory.budget.restarts == 0


@pytest.mark.parametrize(
    ("codes", "phase"),
    [
        ([(1, f"job-g{rank}-0: process {rank}: no such device at 0x7f{rank}") for rank in range(3)], "Failed"),
        ([(1, "a"), (1, "b"), (1, "a")], "Restarting"),
        ([(1, "a"), (2, "a"), (1, "a")], "Restarting"),
        ([(137, "")] * 3, "Restarting"),
        ([(1, "MembershipError: not all members came in time")] * 3, "Restarting"),
        ([(1, "CollectiveError: peer closed")] * 3, "Restarting"),
    ],
    ids=["but for names and numbers", "other words", "other codes", "killed", "others are missing", "the network"],
)
def test_only_ends_that_every_try_would_have_are_not_tried_again(codes: list[tuple[int, str]], phase: str) -> None:
    world = World(hetero_world().job)
    start_and_end(world, *codes)
    assert world.tick().phase == phase
    assert world.memory.budget.restarts == (phase == "Restarting")


@pytest.mark.parametrize("why", ["out of memory", "after steps"])
def test_workers_that_end_alike_of_what_may_pass_are_tried_again(why: str) -> None:
    world = starting(resumable=True) if why == "out of memory" else trained(resumable=True)
    for _ in range(2):
        for worker in world.workers.values():
            worker.end(1, message="the file system is away")
            worker.out_of_memory = why == "out of memory"
        assert world.tick().phase == "Restarting"
        restart_fully(world)


@pytest.mark.parametrize(("code", "phase"), [(2, "Failed"), (127, "Failed"), (128, "Failed"), (1, "Restarting")])
def test_the_only_worker_proves_by_its_code_alone_that_its_command_is_wrong(code: int, phase: str) -> None:
    world = alone()
    start_and_end(world, (code, "no"))
    assert world.tick().phase == phase
    if phase == "Failed":
        assert failure(world)[1].startswith("the only worker ended before the first step: job-a-0 exited")


@pytest.mark.parametrize(
    ("first", "second", "phase"),
    [
        ((1, TRACEBACK), (1, TRACEBACK.replace("line 3", "line 4")), "Failed"),
        ((1, TRACEBACK), (1, TRACEBACK.replace("torchvision", "torchaudio")), "Restarting"),
        ((1, "ConnectionRefusedError: [Errno 111]"), (1, "ConnectionRefusedError: [Errno 111]"), "Restarting"),
        ((1, "ValueError: no ImportError: at all"), (1, "ValueError: no ImportError: at all"), "Restarting"),
        ((1, ""), (1, ""), "Restarting"),
    ],
    ids=["the same", "another module", "may pass", "named in passing", "without a word"],
)
def test_the_only_worker_whose_code_cannot_run_fails_the_job_at_its_second_end(
    first: tuple[int, str], second: tuple[int, str], phase: str
) -> None:
    world = alone()
    world.forgetful = True
    start_and_end(world, first)
    assert world.tick().phase == "Restarting"
    start_and_end(world, second)
    assert world.tick().phase == phase
    if phase == "Failed":
        code, message = failure(world)
        assert code == "WorkersFailedAlike"
        assert message.startswith("the only worker ended in the same way twice before the first step: job-a-0 exited")


def test_end_of_the_only_worker_after_it_was_disrupted_is_its_first() -> None:
    world = alone()
    start_and_end(world, (1, TRACEBACK))
    world.workers["job-a-0"].disrupted = True
    assert world.tick().phase == "Restarting"
    start_and_end(world, (1, TRACEBACK))
    assert world.tick().phase == "Restarting"
    assert world.memory.budget.restarts == 1


# --- scripts that raise ------------------------------------------------------------------------------------------


def test_script_that_raises_without_a_checkpoint_path_fails_the_job_at_once() -> None:
    world = trained(backoff_limit=9)
    world.workers[SECOND].end_by_script(10)
    assert reasons(world.tick()) == ["ScriptFailed"]
    message = failure(world)[1]
    assert message.startswith("the script failed at step 10, and without spec.checkpoint.path")
    assert f"{SECOND} exited with code 1: ValueError: label 17" in message


@pytest.mark.parametrize("elastic", [True, False])
def test_script_that_leaves_its_loop_and_ends_well_fails_the_job_at_once(elastic: bool) -> None:
    world = elastic_world() if elastic else trained(resumable=True)
    name = next(iter(world.workers))
    ends(world, name, "script")
    pod = world.workers[name]
    pod.exit_code, pod.phase, pod.message = 0, "Succeeded", "the script left the loop; call session.stop()"
    assert reasons(world.tick()) == ["ScriptFailed"]
    assert "session.stop()" in failure(world)[1]


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (10, f"the script failed at step 10 again, after a restart: {SECOND}"),
        (7, f"the script failed at step 7 after a restart, no further than before (step 10): {SECOND}"),
        (11, ""),
    ],
)
def test_script_that_gets_no_further_after_its_one_restart_fails_the_job(step: int, said: str) -> None:
    world = trained(backoff_limit=2, resumable=True)
    world.forgetful = True
    world.workers[SECOND].end_by_script(10)
    assert world.tick().phase == "Restarting"
    restart_fully(world)
    world.workers[SECOND].end_by_script(step)
    world.tick()
    if said:
        assert failure(world)[0] == "ScriptFailed"
        assert failure(world)[1].startswith(said)
        return
    assert (world.decisions[-1].phase, world.memory.budget.restarts) == ("Restarting", 2)
    restart_fully(world)
    world.workers[SECOND].end_by_script(12)
    world.tick()
    assert failure(world)[0] == "BackoffLimitExceeded"


def test_script_error_is_forgotten_once_training_got_past_it() -> None:
    world = trained(backoff_limit=9, resumable=True)
    world.workers[SECOND].end_by_script(10)
    world.tick()
    restart_fully(world)
    world.run(3)
    ends(world, FIRST)
    world.tick()
    restart_fully(world)
    world.workers[SECOND].end_by_script(5)
    assert world.tick().phase == "Restarting"


@pytest.mark.parametrize(
    ("cause", "counts"), [("preempt", 0), ("vanish", 0), ("kill", 1), ("out of memory", 1), ("itself", 1)]
)
def test_script_error_beside_another_cause_is_a_consequence(cause: str, counts: int) -> None:
    world = trained()
    world.workers[FIRST].end_by_script(10, "OutOfMemoryError: tried to allocate 2 GiB")
    if cause == "itself":
        world.workers[FIRST].out_of_memory = True
    else:
        ends(world, SECOND, cause)
    assert world.tick().phase == "Restarting"
    assert (world.memory.budget.restarts, world.memory.budget.script_error_step) == (counts, -1)
