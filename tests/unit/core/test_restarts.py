"""Workers that meet only at their start, and end: who is named, what counts, how long it waits, when it is enough."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heterotrain_operator.core.lifecycle.responses import delay_seconds
from heterotrain_operator.core.model import Decision, Seen
from unit.core.jobs import changed, decided, ends, failure, one, reasons, restart_fully
from unit.core.traces import World, hetero_world

FIRST, SECOND, THIRD = (f"job-g{rank}-0" for rank in range(3))


def trained(**changes: Any) -> World:
    world = hetero_world(**changes)
    world.run(1)
    return world


def starting(**changes: Any) -> World:
    """Three workers are there, and no plan is."""
    world = World(hetero_world(**changes).job)
    world.tick()
    return world


# --- one end -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exit_code", "message", "said"),
    [
        (1, "ZeroDivisionError: division by zero", f"{SECOND} exited with code 1: ZeroDivisionError: division by zero"),
        (137, "", f"{SECOND} was killed by SIGKILL"),
        (-9, "", f"{SECOND} was killed by SIGKILL"),
        (139, "", f"{SECOND} was killed by SIGSEGV"),
        (0, "", f"{SECOND} exited with code 0 before the job's last step"),
        (255, "", f"{SECOND} exited with code 255"),
    ],
)
def test_failure_names_the_worker_its_exit_and_its_last_words(exit_code: int, message: str, said: str) -> None:
    world = trained()
    world.workers[SECOND].end(exit_code, message=message)
    decision = world.tick()
    assert said in decision.reason
    assert (decision.phase, set(decision.delete)) == ("Restarting", {FIRST, SECOND, THIRD})
    assert reasons(decision) == ["WorkerFailed", "RestartingWorkers"]
    assert world.memory.budget.restarts == 1


@pytest.mark.parametrize(
    ("happened", "said"),
    [
        ({FIRST: "exit", THIRD: "kill"}, f"{THIRD} was killed by SIGKILL; {FIRST} exited with code 1"),
        (
            {FIRST: "exit", SECOND: "exit", THIRD: "script"},
            f"{THIRD} exited with code 1: ValueError: label 17; {FIRST}",
        ),
        ({FIRST: "asked", SECOND: "kill"}, f"{SECOND} was killed by SIGKILL; {FIRST}"),
        ({FIRST: "exit", THIRD: "vanish"}, f"{THIRD} vanished; {FIRST} exited with code 1"),
        ({FIRST: "preempt", SECOND: "exit"}, f"{FIRST} was killed by SIGTERM (disrupted from outside): ; {SECOND}"),
    ],
    ids=["killed", "raised", "killed and asked", "vanished", "disrupted"],
)
def test_likeliest_cause_is_named_first(happened: dict[str, str], said: str) -> None:
    world = trained(resumable=True)
    for name, how in happened.items():
        ends(world, name, how)
    assert world.tick().reason.startswith(said.replace(": ;", ";"))


@pytest.mark.parametrize("how", ["kill", "exit", "silent"])
def test_failure_after_others_finished_is_a_failure_too(how: str) -> None:
    world = trained()
    ends(world, FIRST, "finish")
    world.tick()
    ends(world, SECOND, how)
    assert world.tick().phase == "Failed"
    assert f"afterwards on {SECOND}" in world.decisions[-1].reason


def test_exit_code_zero_with_error_phase_is_a_failure() -> None:
    world = hetero_world()
    ends(world, FIRST, "finish")
    world.workers[FIRST] = replace(world.workers[FIRST], phase="Failed")
    assert world.tick().phase == "Failed"


def test_worker_that_fails_before_the_first_plan_counts_once_the_others_did_not_end_alike() -> None:
    world = starting()
    world.workers[FIRST].end(1, message="no module named torch")
    assert "no module named torch; waiting whether the others end alike" in world.tick().reason
    assert world.memory.budget.restarts == 0
    assert "no module named torch" in world.tick(10).reason
    assert world.memory.budget.restarts == 1


# --- what a restart is -------------------------------------------------------------------------------------------


def test_all_workers_are_created_again_and_the_next_generation_starts_with_what_was_learned() -> None:
    world = hetero_world(fixed=0.016)
    world.run(5)
    before, adjustments = world.plan, world.memory.batching.adjustments
    assert before is not None
    ends(world, SECOND)
    world.tick()
    assert len(world.tick().create) == 3, "the first restart waits for nothing"
    plan = world.tick().plan
    assert plan is not None
    assert (plan.generation, plan.batch_sizes) == (before.generation + 1, before.batch_sizes)
    assert plan.version > before.version
    assert not {m.uid for m in plan.members} & {m.uid for m in before.members}
    assert all(decision.plan is None for decision in world.run(5))
    assert world.memory.batching.adjustments == adjustments


def test_failure_seen_twice_counts_once() -> None:
    world = hetero_world()
    ends(world, SECOND)
    seen = world.seen()
    _, world.memory = decided(world, seen)
    again, memory = decided(world, seen, 1)
    assert (memory.budget.restarts, again.create, len(again.delete)) == (1, (), 3)


@pytest.mark.parametrize(
    ("restarts", "seconds"), [(1, 0), (2, 1), (3, 2), (4, 4), (5, 8), (8, 60), (9, 60), (10_000, 60)]
)
def test_delay_doubles_up_to_a_minute(restarts: int, seconds: float) -> None:
    assert delay_seconds(restarts) == seconds


def test_second_restart_waits_before_it_creates() -> None:
    world = hetero_world()
    ends(world, FIRST)
    world.tick()
    restart_fully(world)
    ends(world, FIRST)
    world.tick()
    waiting = world.tick(0.5)
    assert not waiting.create
    assert "start again in 0.5 s" in waiting.reason
    assert len(world.tick(0.6).create) == 3


@pytest.mark.parametrize("limit", [0, 2])
def test_job_fails_beyond_its_backoff_limit(limit: int) -> None:
    world = hetero_world(backoff_limit=limit)
    for _ in range(limit):
        world.workers[THIRD].end(3, message="boom")
        world.tick()
        restart_fully(world)
    world.workers[THIRD].end(3, message="boom")
    decision = world.tick()
    assert (decision.phase, reasons(decision)) == ("Failed", ["WorkerFailed", "BackoffLimitExceeded"])
    assert f"{THIRD} exited with code 3: boom (after {limit} of {limit} restart" in decision.reason
    assert set(decision.delete) == {FIRST, SECOND}, "the failed one keeps its logs"
    assert world.tick().reason == decision.reason


def test_restarts_that_do_not_count_are_later_each_time_and_at_once_after_a_long_time() -> None:
    world = hetero_world(backoff_limit=0)
    delays = []
    for steady in (1, 1, 1, 1, 1, 1, 1, 1, 1, 700, 1):
        world.tick(steady)
        ends(world, FIRST, "preempt")
        world.tick()
        assert world.memory.budget.restart_at is not None
        delays.append(world.memory.budget.restart_at - world.now)
        restart_fully(world)
    assert delays == [0, 1, 2, 4, 8, 16, 32, 60, 60, 0, 1]
    assert world.memory.budget.restarts == 0


def test_pods_that_do_not_go_away_end_the_job_by_name() -> None:
    world = hetero_world()
    ends(world, SECOND)
    stuck = dict(world.workers)
    world.tick()
    world.workers = dict(stuck)
    assert world.tick().phase == "Restarting"
    world.workers = dict(stuck)
    decision = world.tick(700)
    assert decision.phase == "Failed"
    assert "did not go away" in decision.reason


# --- nobody's fault ----------------------------------------------------------------------------------------------


def seen_after(world: World, how: str) -> Seen:
    """What is seen once somebody takes the third worker away, which may take the first along."""
    now = world.now
    signs: dict[str, dict[str, Any]] = {
        "node lost": {"node_lost": True, "metrics": None},
        "being deleted": {"deleting_since": now + 30},
        "preempted": {"deleting_since": now + 30, "disrupted": True},
        "ended by it": {"phase": "Failed", "exit_code": 143, "disrupted": True},
    }
    if how in signs:
        return changed(world.seen(), THIRD, **signs[how])
    gone = replace(one(world, THIRD), metrics=None)
    del world.workers[THIRD]
    departed = {
        "vanished": (),
        "deleted": (replace(gone, message="PreemptionByScheduler: for another"),),
        "gone": (replace(gone, exit_code=143, disrupted=True),),
    }
    return replace(world.seen(), departed=departed[how])


@pytest.mark.parametrize(
    ("how", "said", "reason"),
    [
        ("node lost", f"{THIRD} is on a node that does not answer", "WorkerDisrupted"),
        ("being deleted", f"{THIRD} is taken away", "WorkerDisrupted"),
        ("preempted", f"{THIRD} is taken away", "WorkerDisrupted"),
        ("ended by it", f"{THIRD} was killed by SIGTERM (disrupted from outside)", "WorkerDisrupted"),
        ("vanished", f"{THIRD} vanished", "WorkerVanished"),
        ("deleted", f"{THIRD} was deleted: PreemptionByScheduler: for another", "WorkerDisrupted"),
        ("gone", f"{THIRD} was killed by SIGTERM (disrupted from outside)", "WorkerDisrupted"),
    ],
)
@pytest.mark.parametrize("another", ["", "asked", "exit", "script"])
def test_disruption_starts_all_again_without_counting_whoever_ends_of_it(
    how: str, said: str, reason: str, another: str
) -> None:
    world = trained(backoff_limit=0)
    if another:
        ends(world, FIRST, another)
    decision, memory = decided(world, seen_after(world, how))
    if not another and "taken away" in said:
        assert decision.phase == "Running", "it trains until it ends"
        return
    assert decision.phase == "Restarting"
    assert said in decision.reason
    assert reasons(decision)[1] == "RestartingWorkers"
    assert another or reasons(decision)[0] == reason
    assert (memory.budget.restarts, memory.budget.script_error_step) == (0, -1)


@pytest.mark.parametrize(
    ("changes", "forced"),
    [
        ({"node_lost": True, "deleting_since": -1.0}, (SECOND,)),
        ({"node_lost": True, "deleting_since": 5.0}, ()),
        ({"node_lost": True, "deleting_since": None}, ()),
        ({"node_lost": False, "deleting_since": -1.0}, ()),
    ],
    ids=["lost and due", "grace not over", "not deleted", "node answers"],
)
def test_only_pods_of_lost_nodes_go_without_an_answer(changes: dict[str, float], forced: tuple[str, ...]) -> None:
    world = trained()
    if changes["deleting_since"] is not None:
        changes = {**changes, "deleting_since": world.now + changes["deleting_since"]}
    assert decided(world, changed(world.seen(), SECOND, **changes))[0].force_delete == forced


# --- asked to stop, as they say ----------------------------------------------------------------------------------


def leave_in_order(world: World) -> Decision:
    for worker in world.workers.values():
        worker.end_asked()
    return world.tick()


def test_workers_that_alone_say_that_they_were_asked_to_stop_count() -> None:
    world = trained(backoff_limit=1)
    waiting = leave_in_order(world)
    assert (waiting.phase, waiting.delete) == ("Running", ())
    assert "waiting 90 s for a sign of who asked" in waiting.reason
    world.tick(89)
    assert world.memory.budget.restarts == 0
    assert world.tick(1).phase == "Restarting"
    assert world.memory.budget.restarts == 1
    restart_fully(world)
    leave_in_order(world)
    assert world.tick(90).phase == "Failed"
    assert failure(world)[0] == "BackoffLimitExceeded"


@pytest.mark.parametrize("sign", ["condition", "deletion", "node"])
def test_sign_of_who_asked_the_workers_to_stop_is_waited_for(sign: str) -> None:
    world = trained(backoff_limit=0)
    leave_in_order(world)
    world.tick(80)
    shown: dict[str, Any] = {
        "condition": {"disrupted": True},
        "deletion": {"deleting_since": world.now + 30, "disrupted": True},
        "node": {"node_lost": True, "disrupted": True},
    }[sign]
    decision, memory = decided(world, changed(world.seen(), FIRST, **shown))
    assert (decision.phase, reasons(decision)) == ("Restarting", ["WorkerDisrupted", "RestartingWorkers"])
    assert memory.budget.restarts == 0
