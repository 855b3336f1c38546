"""Workers that all end alike before the first step: no restart can help."""

from __future__ import annotations

import pytest

from heterotrain_operator.core.model import Group, Job
from unit.core.restarts import events, failure, restart_fully, start_and_end
from unit.core.traces import World, hetero_world

NO_SCRIPT = "python: can't open file '/workspace/train.py': [Errno 2] No such file or directory"


def test_workers_that_all_fail_alike_before_the_first_step_fail_the_job_at_once() -> None:
    world = World(hetero_world(backoff_limit=9, resumable=True).job)
    start_and_end(world, *[(2, NO_SCRIPT)] * 3)
    assert world.tick().phase == "Failed"
    code, message = failure(world)
    assert code == "WorkersFailedAlike"
    assert message == (
        f"all 3 workers ended in the same way before the first step: job-g0-0 exited with code 2: {NO_SCRIPT}"
    )
    assert events(world) == ["WorkersFailedAlike"]
    assert world.memory.budget.restarts == 0


def test_workers_that_fail_one_after_the_other_are_waited_for() -> None:
    world = World(hetero_world(backoff_limit=9).job)
    start_and_end(world, (2, NO_SCRIPT))
    assert world.tick().phase == "Created"
    start_and_end(world, *[(2, NO_SCRIPT)] * 2)
    assert world.tick(5).phase == "Created"
    start_and_end(world, *[(2, NO_SCRIPT)] * 3)
    assert world.tick().phase == "Failed"
    assert failure(world)[0] == "WorkersFailedAlike"


def test_names_and_numbers_make_no_difference_between_ends() -> None:
    world = World(hetero_world(backoff_limit=9).job)
    world.tick()
    for number, worker in enumerate(world.workers.values()):
        worker.end(1, message=f"{worker.name}: process {1000 + number}: no such device at 0x7f{number}")
    assert world.tick().phase == "Failed"


@pytest.mark.parametrize(
    "ends",
    [
        [(1, "a"), (1, "b"), (1, "a")],
        [(1, "a"), (2, "a"), (1, "a")],
        [(137, "")] * 3,
        [(1, "MembershipError: not all members came in time")] * 3,
        [(1, "CollectiveError: peer closed")] * 3,
    ],
    ids=["other words", "other codes", "killed", "others are missing", "the network"],
)
def test_ends_that_another_try_may_not_have_are_tried_again(ends: list[tuple[int, str]]) -> None:
    world = World(hetero_world().job)
    start_and_end(world, *ends)
    assert world.tick().phase == "Restarting"
    assert world.memory.budget.restarts == 1


def test_workers_that_ran_out_of_memory_alike_are_tried_again() -> None:
    world = World(hetero_world().job)
    start_and_end(world, *[(1, "OutOfMemoryError: tried to allocate")] * 3)
    for worker in world.workers.values():
        worker.out_of_memory = True
    assert world.tick().phase == "Restarting"


def test_workers_that_fail_alike_after_steps_were_made_are_tried_again() -> None:
    world = hetero_world(resumable=True)
    world.run(1)
    for worker in world.workers.values():
        worker.end(1, message="the file system is away")
    assert world.tick().phase == "Restarting"
    restart_fully(world)
    for worker in world.workers.values():
        worker.end(1, message="the file system is away")
    assert world.tick().phase == "Restarting"


@pytest.mark.parametrize(("code", "phase"), [(2, "Failed"), (127, "Failed"), (128, "Failed"), (1, "Restarting")])
def test_the_only_worker_proves_by_its_code_alone_that_its_command_is_wrong(code: int, phase: str) -> None:
    world = World(Job("job", (Group("a", 1),), 8))
    start_and_end(world, (code, "no"))
    assert world.tick().phase == phase


TRACEBACK = """Traceback (most recent call last):
  File "/workspace/train.py", line 3, in <module>
ModuleNotFoundError: No module named 'torchvision'"""


def test_the_only_worker_whose_code_cannot_run_fails_the_job_at_its_second_end() -> None:
    world = World(Job("job", (Group("a", 1),), 8, backoff_limit=9))
    world.forgetful = True
    start_and_end(world, (1, TRACEBACK))
    assert world.tick().phase == "Restarting"
    start_and_end(world, (1, TRACEBACK.replace("line 3", "line 4")))
    assert world.tick().phase == "Failed"
    code, message = failure(world)
    assert code == "WorkersFailedAlike"
    assert message.startswith("the only worker ended in the same way twice before the first step: job-a-0 exited with")
    assert world.memory.budget.restarts == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((1, TRACEBACK), (1, TRACEBACK.replace("torchvision", "torchaudio"))),
        ((1, "ConnectionRefusedError: [Errno 111]"), (1, "ConnectionRefusedError: [Errno 111]")),
        ((1, "ValueError: no ImportError: at all"), (1, "ValueError: no ImportError: at all")),
        ((1, ""), (1, "")),
    ],
    ids=["another module", "may pass", "named in passing", "without a word"],
)
def test_second_end_of_the_only_worker_that_another_try_may_not_have_is_tried_again(
    first: tuple[int, str], second: tuple[int, str]
) -> None:
    world = World(Job("job", (Group("a", 1),), 8, backoff_limit=9))
    start_and_end(world, first)
    world.tick()
    start_and_end(world, second)
    assert world.tick().phase == "Restarting"
    assert world.memory.budget.restarts == 2


def test_end_of_the_only_worker_after_it_was_disrupted_is_its_first() -> None:
    world = World(Job("job", (Group("a", 1),), 8, backoff_limit=9))
    start_and_end(world, (1, TRACEBACK))
    world.workers["job-a-0"].end(1, message=TRACEBACK, disrupted=True)
    assert world.tick().phase == "Restarting"
    start_and_end(world, (1, TRACEBACK))
    assert world.tick().phase == "Restarting"
    assert world.memory.budget.restarts == 1
