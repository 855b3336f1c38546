"""Workers that hang or fall silent: who is told to be at fault, and after how long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain.contract import (
    PHASE_CHECKPOINTING,
    PHASE_EVALUATING,
    PHASE_PAUSED,
    PHASE_REFORMING,
    PHASE_STARTING,
    PHASE_TRAINING,
    PHASE_WARMING,
)
from heterotrain_operator.core.model import Seen, WorkerMetrics
from unit.core.jobs import changed, condition, decided, ends, reasons
from unit.core.traces import World, hetero_world

FIRST, SECOND, THIRD = (f"job-g{rank}-0" for rank in range(3))


def trained(*scales: float) -> World:
    world = hetero_world("Uniform", scales or (1, 2, 4))
    world.run(1)
    return world


def set_phase(world: World, phase: str, *names: str, waiting: bool = False) -> None:
    for name in names or tuple(world.workers):
        worker = world.workers[name]
        worker.metrics = replace(worker.metrics, phase=phase, in_collective=waiting)


def hanging(how: str = "") -> World:
    """The second worker holds the others up, which wait for it in a collective."""
    world = trained()
    set_phase(world, PHASE_TRAINING, FIRST, THIRD, waiting=True)
    if how == "is silent":
        world.workers[SECOND].answers = False
    elif how == "all wait":
        set_phase(world, PHASE_TRAINING, waiting=True)
    elif how == "nobody is read":
        for pod in world.workers.values():
            pod.answers = False
    return world


@pytest.mark.parametrize(
    ("how", "named", "short"),
    [
        ("trains", f"{SECOND} (training, step 10) hangs; ", (SECOND,)),
        ("is silent", f"{SECOND} (metrics unreadable) hangs; ", (SECOND,)),
        (
            "all wait",
            f"{FIRST} (training, step 10), {SECOND} (training, step 10), {THIRD} (training, step 10) hang; ",
            (),
        ),
    ],
)
def test_worker_in_no_collective_is_the_one_that_hangs_and_gets_a_short_grace(
    how: str, named: str, short: tuple[str, ...]
) -> None:
    world = hanging(how)
    world.tick(1)
    assert world.tick(58).phase == "Running"
    decision = world.tick(3)
    assert (decision.phase, set(decision.delete)) == ("Restarting", {FIRST, SECOND, THIRD})
    assert "no step was committed for 62 s" in decision.reason
    assert f": {named}" in decision.reason
    assert 'long work between steps belongs inside `with session.pause("..."):`' in decision.reason
    assert (decision.short_grace, world.memory.budget.restarts) == (short, 1)


@pytest.mark.parametrize("how", ["another is not read once", "one worker that nobody reads"])
def test_grace_is_the_usual_one_of_a_worker_that_may_only_not_be_reached(how: str) -> None:
    if how == "another is not read once":
        world = hanging()
        world.tick(30)
        world.workers[FIRST].answers = False
        assert world.tick(31).short_grace == (SECOND,)
        return
    world = trained(1)
    world.workers[FIRST].answers = False
    world.tick(1)
    decision = world.tick(60)
    assert (decision.phase, decision.delete, decision.short_grace) == ("Restarting", (FIRST,), ())


def test_patience_follows_the_slow_steps() -> None:
    world = trained(100, 100, 100)
    assert world.memory.progress.slow_step_seconds == pytest.approx(6.6)
    assert world.tick(130).phase == "Running"
    assert world.tick(3).phase == "Restarting"


@pytest.mark.parametrize(
    "phase", [PHASE_CHECKPOINTING, PHASE_EVALUATING, PHASE_PAUSED, PHASE_REFORMING, PHASE_STARTING, PHASE_WARMING]
)
def test_declared_pauses_are_borne_for_long_but_not_for_ever(phase: str) -> None:
    world = hanging()
    set_phase(world, phase, FIRST)
    set_phase(world, PHASE_TRAINING, SECOND, waiting=True)
    world.tick(1)
    assert world.tick(590).phase == "Running"
    decision = world.tick(20)
    assert (decision.phase, decision.short_grace) == ("Restarting", ())
    assert f"{FIRST} ({phase}, step 10)" in decision.reason


def test_time_of_a_pause_is_no_lack_of_progress_after_it() -> None:
    world = trained()
    set_phase(world, PHASE_CHECKPOINTING, FIRST)
    world.tick(1)
    world.tick(300)
    set_phase(world, PHASE_TRAINING)
    assert world.tick(1).phase == "Running"
    assert world.tick(61).phase == "Restarting"


def test_pauses_that_follow_each_other_cannot_go_on_for_ever() -> None:
    world = trained()
    phases = [world.tick(30).phase]
    while phases[-1] == "Running" and len(phases) < 100:
        set_phase(world, PHASE_REFORMING if len(phases) % 2 else PHASE_TRAINING)
        phases.append(world.tick(30).phase)
    assert phases[-1] == "Restarting"


def test_committed_steps_of_anybody_are_progress_and_a_silent_worker_is_named_and_borne() -> None:
    world = trained()
    world.workers[SECOND].answers = False
    world.tick(1)
    assert not condition(world.decisions[-1]).status
    degraded = condition(world.tick(5))
    assert (degraded.status, f"{SECOND} (5 s)" in degraded.message) == (True, True)
    for _ in range(5):
        world.train(1)
        assert world.tick(50).phase == "Running"
    assert condition(world.decisions[-1]).status
    world.workers[SECOND].answers = True
    assert not condition(world.tick(1)).status


def test_plan_that_nobody_follows_is_borne_until_the_startup_deadline() -> None:
    world = hetero_world("Uniform")
    world.tick()
    assert world.tick(500).phase == "Running"
    assert world.tick(150).phase == "Restarting"


# --- when nobody can be read ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["source", "everybody"])
def test_plan_stays_while_no_metrics_can_be_read_at_all(how: str) -> None:
    world = trained()
    seen = changed(world.seen(), metrics=None)
    seen = replace(seen, metrics_problem="http://prometheus:9090 does not answer" if how == "source" else "")
    for _ in range(100):
        world.now += 10
        decision, world.memory = decided(world, seen)
        assert (decision.phase, decision.plan, decision.delete) == ("Running", None, ())
    degraded = condition(decision)
    assert (degraded.status, degraded.reason) == (True, "MetricsUnavailable")
    assert decided(world, world.seen(), 1)[0].phase == "Running", "steering resumes by itself"


def test_workers_that_fall_silent_together_for_a_moment_impair_nothing() -> None:
    world = hetero_world(heartbeat_timeout_seconds=5.0)
    world.run(1)
    silent: Seen = changed(world.seen(), metrics=None)
    told = []
    for seconds in (0, 4, 6):
        decision, world.memory = decided(world, silent, seconds)
        told.append(condition(decision).status)
    assert told == [False, False, True]


# --- the first step ---------------------------------------------------------------------------------------------


def first_step_under_way(world: World, step: int = 0) -> None:
    """All workers train, and have committed nothing since they started."""
    assert world.plan is not None
    for member in world.plan.members:
        world.workers[member.name].metrics = WorkerMetrics(
            plan_version=world.plan.version, generation=world.plan.generation, step=step, phase=PHASE_TRAINING
        )


@pytest.mark.parametrize("resumed", [0, 40], ids=["from the beginning", "from a checkpoint"])
@pytest.mark.parametrize("committed", [0, 1])
def test_only_the_first_step_may_take_as_long_as_the_start(resumed: int, committed: int) -> None:
    world = hetero_world("Uniform")
    world.forgetful = True
    set_phase(world, PHASE_STARTING)
    world.tick()
    for step in range(resumed, resumed + committed + 1):
        first_step_under_way(world, step)
        assert world.tick(300 if committed else 1).phase == "Running"
    patience = 60 if committed else 600
    assert world.tick(patience - 2).phase == "Running"
    decision = world.tick(4)
    assert decision.phase == "Restarting"
    assert f"(patience {patience} s)" in decision.reason


def test_first_step_after_a_restart_may_take_as_long_again() -> None:
    world = trained()
    ends(world, SECOND)
    world.tick()
    world.tick()
    assert world.tick().plan is not None
    first_step_under_way(world, step=10)
    world.tick()
    assert world.tick(590).phase == "Running"
    world.train(1)
    world.tick()
    assert world.tick(61).phase == "Restarting"


def test_first_step_never_has_less_time_than_any_other_and_a_new_plan_of_the_same_workers_is_no_new_start() -> None:
    world = hetero_world("Uniform", startup_deadline_seconds=5.0)
    first_step_under_way(world)
    world.tick()
    assert [world.tick(seconds).phase for seconds in (59, 2)] == ["Running", "Restarting"]
    world = hetero_world()
    world.run(2)
    assert world.plan is not None
    assert world.plan.version > 1
    first_step_under_way(world, step=20)
    world.tick()
    assert world.tick(61).phase == "Restarting"


@pytest.mark.parametrize(("scale", "patience"), [(1.0, 60.0), (100.0, 132.0)], ids=["timeout", "20 slow steps"])
def test_workers_that_form_new_groups_have_the_whole_patience_from_then_on(scale: float, patience: float) -> None:
    world = hetero_world("Uniform", (scale, scale, scale), startup_deadline_seconds=1.0)
    world.run(1)
    set_phase(world, PHASE_TRAINING, waiting=True)
    world.tick(patience - 2)
    set_phase(world, PHASE_REFORMING)
    assert [world.tick(seconds).phase for seconds in (1, patience - 1, 2)] == ["Running", "Running", "Restarting"]


# --- what an earlier job has trained ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uid", "said"), [("earlier", "of the UID earlier"), ("", "which does not say its UID"), (None, "")]
)
def test_job_that_goes_on_from_an_earlier_ones_checkpoint_says_so_once(uid: str | None, said: str) -> None:
    world = hetero_world()
    world.forgetful = True
    for _ in range(4):
        world.train(1)
        leader = world.workers[FIRST]
        if uid is not None:
            leader.metrics = replace(leader.metrics, resumed_step=40, resumed_from=uid)
        world.tick()
    assert reasons(world.decisions, "ResumedFromEarlierJob") == ["ResumedFromEarlierJob"] * (uid is not None)
    resumed = world.memory.resumed
    assert (resumed.resumed_step, resumed.resumed_from) == ((-1, "") if uid is None else (40, uid))
    if uid is not None:
        [event] = [event for each in world.decisions for event in each.events if "Resumed" in event.reason]
        assert f"at step 40, from a checkpoint of an earlier job {said}" in event.message


def test_memory_differs_only_in_measurements_while_a_job_trains_on() -> None:
    world = hetero_world()
    world.run(5)
    before = world.memory
    world.run(3)
    assert world.memory != before
    assert world.memory.same_but_measurements(before)
    ends(world, FIRST, "exit")
    world.tick()
    assert not world.memory.same_but_measurements(before)
