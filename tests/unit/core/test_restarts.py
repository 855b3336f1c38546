"""Workers that end: who is named, what counts, how long it waits, and when it is enough or no restart can help."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heterotrain_operator.core.decide import decide
from heterotrain_operator.core.lifecycle.restarts import delay_seconds
from heterotrain_operator.core.model import Group, Job
from unit.core.traces import World, hetero_world


def events(world: World) -> list[str]:
    return [event.reason for event in world.decisions[-1].events]


def restart_fully(world: World) -> None:
    """Past the delay, until the next generation's plan."""
    world.tick(61)
    world.tick()


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


def leave_in_order(world: World) -> None:
    for worker in world.workers.values():
        worker.end_asked()


def test_workers_that_alone_say_that_they_were_asked_to_stop_count() -> None:
    world = hetero_world(backoff_limit=1)
    world.run(1)
    leave_in_order(world)
    waiting = world.tick()
    assert (waiting.phase, waiting.delete) == ("Running", ())
    assert "waiting 90 s for a sign of who asked" in waiting.reason
    world.tick(89)
    assert world.memory.budget.restarts == 0
    assert world.tick(1).phase == "Restarting"
    assert world.memory.budget.restarts == 1
    restart_fully(world)
    leave_in_order(world)
    world.tick()
    assert world.tick(90).phase == "Failed"
    assert failure(world)[0] == "BackoffLimitExceeded"


def test_restarts_by_word_of_the_workers_alone_come_to_an_end_soon() -> None:
    world = hetero_world(backoff_limit=3)
    while world.decisions[-1].phase != "Failed":
        if world.decisions[-1].phase == "Running":
            leave_in_order(world)
        world.tick()
        assert world.created <= 3 * 4


@pytest.mark.parametrize("sign", ["condition", "deletion", "node"])
def test_sign_of_who_asked_the_workers_to_stop_is_waited_for(sign: str) -> None:
    world = hetero_world(backoff_limit=0)
    world.run(1)
    leave_in_order(world)
    world.tick()
    world.tick(80)
    one, *others = world.seen().workers
    shown = {
        "condition": {"disrupted": True},
        "deletion": {"deleting_since": world.now + 30, "disrupted": True},
        "node": {"node_lost": True, "disrupted": True},
    }[sign]
    decision, memory = decide(
        world.job, replace(world.seen(), workers=(replace(one, **shown), *others)), world.memory, world.now
    )
    assert decision.phase == "Restarting"
    assert [event.reason for event in decision.events] == ["WorkerDisrupted", "RestartingWorkers"]
    assert memory.budget.restarts == 0


def test_worker_that_was_killed_is_no_one_to_wait_for_a_sign_of() -> None:
    world = hetero_world()
    world.run(1)
    world.workers["job-g0-0"].end_asked()
    world.workers["job-g1-0"].end(137)
    decision = world.tick()
    assert decision.phase == "Restarting"
    assert decision.reason.startswith("job-g1-0 was killed by SIGKILL; job-g0-0")
    assert world.memory.budget.restarts == 1


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


def run_out_of_memory(world: World, name: str) -> int:
    """Let a worker run out of memory with its batch, which is returned."""
    assert world.plan is not None
    batch = next(member.batch_size for member in world.plan.members if member.name == name)
    world.workers[name].end(137, message="out of memory (limit 256Mi)")
    world.workers[name].out_of_memory = True
    world.tick()
    return batch


def batch_of(world: World, name: str) -> int:
    assert world.plan is not None
    return next(member.batch_size for member in world.plan.members if member.name == name)


@pytest.mark.parametrize("policy", ["Uniform", "Proportional", "Optimal"])
def test_worker_that_ran_out_of_memory_never_gets_that_batch_again(policy: str) -> None:
    world = hetero_world(policy)
    world.run(5)
    batch = run_out_of_memory(world, "job-g0-0")
    assert f"job-g0-0 gets at most {batch // 2} samples instead of {batch}" in world.decisions[-1].reason
    restart_fully(world)
    assert world.plan is not None
    assert world.plan.global_batch_size == 192
    for _ in range(10):
        assert batch_of(world, "job-g0-0") <= batch // 2
        world.run(1)


def test_safe_batch_survives_reading_the_memory_back() -> None:
    world = hetero_world()
    world.run(3)
    batch = run_out_of_memory(world, "job-g0-0")
    world.forgetful = True
    restart_fully(world)
    world.run(3)
    assert batch_of(world, "job-g0-0") <= batch // 2


def test_batch_that_no_memory_holds_is_tried_until_the_backoff_limit() -> None:
    world = hetero_world(backoff_limit=1)
    for name in ("job-g0-0", "job-g1-0", "job-g2-0"):
        world.workers[name].end(137, message="out of memory")
        world.workers[name].out_of_memory = True
    world.tick()
    restart_fully(world)
    assert world.plan is not None
    assert world.plan.batch_sizes == (64, 64, 64), "half of it everywhere cannot hold the global batch"
    world.workers["job-g0-0"].end(137, message="out of memory")
    assert world.tick().phase == "Failed"


# --- ends after which no restart can help --------------------------------------------------------------------------


def failure(world: World) -> tuple[str, str]:
    """Reason and message of the condition Failed, which must be true."""
    failed = next(condition for condition in world.decisions[-1].conditions if condition.type == "Failed")
    assert failed.status
    return failed.reason, failed.message


def test_end_without_another_try_fails_the_job_whatever_restarts_are_left() -> None:
    world = hetero_world(backoff_limit=9, resumable=True)
    world.run(1)
    world.workers["job-g1-0"].end_for_good("weights differ between workers")
    assert world.tick().phase == "Failed"
    assert failure(world) == ("WorkerFailedForGood", "job-g1-0 exited with code 1: weights differ between workers")
    assert events(world) == ["WorkerFailedForGood"]
    assert world.memory.budget.restarts == 0


def test_end_without_another_try_is_obeyed_also_beside_a_disruption() -> None:
    world = hetero_world()
    world.run(1)
    world.workers["job-g0-0"].end(143, disrupted=True)
    world.workers["job-g1-0"].end_for_good("weights differ")
    world.tick()
    assert failure(world)[0] == "WorkerFailedForGood"


def test_end_without_another_try_is_obeyed_while_workers_go_away_for_a_restart() -> None:
    world = hetero_world()
    world.run(1)
    staying = dict(world.workers)
    world.workers["job-g0-0"].end(137)
    assert world.tick().phase == "Restarting"
    staying["job-g1-0"].end_for_good("weights differ")
    world.workers = staying
    world.tick()
    assert failure(world)[0] == "WorkerFailedForGood"


def test_end_without_another_try_of_a_worker_that_is_gone_is_obeyed() -> None:
    world = hetero_world()
    world.run(1)
    world.workers["job-g1-0"].end_for_good("weights differ")
    gone = next(each for each in world.seen().workers if each.name == "job-g1-0")
    del world.workers["job-g1-0"]
    decision, _ = decide(world.job, replace(world.seen(), departed=(gone,)), world.memory, world.now)
    assert decision.phase == "Failed"
    assert "job-g1-0 exited with code 1: weights differ" in decision.reason


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


NO_SCRIPT = "python: can't open file '/workspace/train.py': [Errno 2] No such file or directory"


def start_and_end(world: World, *ends: tuple[int, str]) -> None:
    """Workers are created, and end with these codes and words before there is a plan."""
    world.tick()
    for worker, (code, message) in zip(world.workers.values(), ends, strict=False):
        worker.end(code, message=message)


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


def test_worker_without_the_promised_device_fails_the_job_at_once() -> None:
    world = World(hetero_world(backoff_limit=9).job)
    start_and_end(world, (1, "MissingDeviceError: torch finds no GPU here; set onMissingDevice: UseCPU"))
    assert world.tick().phase == "Failed"
    code, message = failure(world)
    assert code == "DeviceMissing"
    assert message == "job-g0-0: MissingDeviceError: torch finds no GPU here; set onMissingDevice: UseCPU"


def test_device_that_is_missing_after_training_may_be_there_on_another_node() -> None:
    world = hetero_world()
    world.run(1)
    world.workers["job-g1-0"].end(1, message="MissingDeviceError: torch finds no GPU here")
    assert world.tick().phase == "Restarting"


def test_worker_that_ends_well_without_having_joined_fails_the_job() -> None:
    world = World(hetero_world(backoff_limit=9).job)
    world.tick()
    world.workers["job-g0-0"].end(0)
    assert world.tick().phase == "Failed"
    code, message = failure(world)
    assert code == "NeverJoined"
    assert message == "job-g0-0 exited with code 0 and never joined: the script does not call heterotrain.join()"


def test_worker_that_ends_well_in_silence_after_it_was_a_member_did_join() -> None:
    world = hetero_world()
    world.run(1)
    world.workers["job-g0-0"].end(0)
    assert world.tick().phase == "Restarting"
    world = hetero_world()
    world.run(1)
    world.workers["job-g0-0"].end(0)
    world.plan = None
    assert world.tick().phase == "Restarting", "who was a member of a plan that is lost is not known"


def test_worker_that_is_taken_away_before_it_joined_is_not_blamed() -> None:
    world = World(hetero_world().job)
    world.tick()
    world.workers["job-g0-0"].end(0, disrupted=True)
    assert world.tick().phase == "Restarting"
