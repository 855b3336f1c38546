"""Workers that hang or fall silent: who is told to be at fault, and after how long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain.contract import (
    PHASE_CHECKPOINTING,
    PHASE_EVALUATING,
    PHASE_FINISHED,
    PHASE_PAUSED,
    PHASE_REFORMING,
    PHASE_STARTING,
    PHASE_TRAINING,
    PHASE_WARMING,
)
from heterotrain_operator.core.model import Condition, WorkerMetrics
from unit.core.traces import World, hetero_world


def trained(*scales: float) -> World:
    world = hetero_world("Uniform", scales or (1, 2, 4))
    world.run(1)
    return world


def set_phase(world: World, phase: str, *names: str, in_collective: bool = False) -> None:
    for name in names or tuple(world.workers):
        worker = world.workers[name]
        worker.metrics = replace(worker.metrics, phase=phase, in_collective=in_collective)


def degraded(world: World) -> Condition:
    return next(c for c in world.decisions[-1].conditions if c.type == "Degraded")


def test_worker_in_no_collective_is_the_one_that_hangs() -> None:
    world = trained()
    set_phase(world, PHASE_TRAINING, "job-g0-0", "job-g2-0", in_collective=True)
    assert world.tick(59).phase == "Running"
    decision = world.tick(2)
    assert decision.phase == "Restarting"
    assert "no step was committed for 61 s" in decision.reason
    assert "job-g1-0 (training, step 10) hangs" in decision.reason
    assert "job-g0-0" not in decision.reason
    assert world.memory.budget.restarts == 1


def test_worker_that_hangs_gets_a_short_grace_and_those_that_wait_for_it_their_usual_one() -> None:
    world = trained()
    set_phase(world, PHASE_TRAINING, "job-g0-0", "job-g2-0", in_collective=True)
    decision = world.tick(61)
    assert set(decision.delete) == {"job-g0-0", "job-g1-0", "job-g2-0"}
    assert decision.short_grace == ("job-g1-0",)


def test_worker_that_hangs_and_does_not_answer_gets_a_short_grace() -> None:
    world = trained()
    world.workers["job-g1-0"].answers = False
    set_phase(world, PHASE_TRAINING, "job-g0-0", "job-g2-0", in_collective=True)
    world.tick(1)
    assert world.tick(60).short_grace == ("job-g1-0",)


def test_grace_is_the_usual_one_of_a_worker_that_was_not_read_once() -> None:
    world = trained()
    set_phase(world, PHASE_TRAINING, "job-g0-0", "job-g2-0", in_collective=True)
    world.tick(30)
    world.workers["job-g0-0"].answers = False
    decision = world.tick(31)
    assert len(decision.delete) == 3
    assert decision.short_grace == ("job-g1-0",)


def test_grace_is_the_usual_one_where_nobody_is_read() -> None:
    """Only the way to them may be cut: a job of one worker, say, that trains."""
    world = trained(1)
    world.workers["job-g0-0"].answers = False
    world.tick(1)
    decision = world.tick(60)
    assert decision.delete == ("job-g0-0",)
    assert decision.short_grace == ()


def test_grace_is_the_usual_one_where_all_wait_for_one_another() -> None:
    world = trained()
    set_phase(world, PHASE_TRAINING, in_collective=True)
    decision = world.tick(61)
    assert len(decision.delete) == 3
    assert decision.short_grace == ()


def test_grace_is_the_usual_one_in_a_pause_that_was_declared() -> None:
    world = trained()
    set_phase(world, PHASE_CHECKPOINTING, "job-g0-0")
    set_phase(world, PHASE_TRAINING, "job-g1-0", "job-g2-0", in_collective=True)
    world.tick(1)
    decision = world.tick(610)
    assert len(decision.delete) == 3
    assert decision.short_grace == ()


def test_message_of_a_hang_says_where_long_work_belongs() -> None:
    world = trained()
    assert 'long work between steps belongs inside `with session.pause("..."):`' in world.tick(61).reason


def test_all_are_named_if_none_can_be_told() -> None:
    world = trained()
    set_phase(world, PHASE_TRAINING, in_collective=True)
    decision = world.tick(61)
    assert all(f"job-g{rank}-0" in decision.reason for rank in range(3))


def test_patience_follows_the_slow_steps() -> None:
    world = trained(100, 100, 100)
    assert world.memory.progress.slow_step_seconds == pytest.approx(6.6)
    assert world.tick(130).phase == "Running"
    assert world.tick(3).phase == "Restarting"


@pytest.mark.parametrize(
    "phase", [PHASE_CHECKPOINTING, PHASE_EVALUATING, PHASE_PAUSED, PHASE_REFORMING, PHASE_STARTING, PHASE_WARMING]
)
def test_declared_pauses_are_borne_for_long_but_not_for_ever(phase: str) -> None:
    world = trained()
    set_phase(world, phase, "job-g0-0")
    world.tick(1)
    assert world.tick(590).phase == "Running"
    decision = world.tick(20)
    assert decision.phase == "Restarting"
    assert f"job-g0-0 ({phase}, step 10)" in decision.reason


def test_time_of_a_pause_is_no_lack_of_progress_after_it() -> None:
    world = trained()
    set_phase(world, PHASE_CHECKPOINTING, "job-g0-0")
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


def test_committed_steps_of_anybody_are_progress() -> None:
    world = trained()
    for _ in range(5):
        world.train(1)
        assert world.tick(50).phase == "Running"


def test_silent_worker_degrades_the_job_and_is_named() -> None:
    world = trained()
    world.workers["job-g1-0"].answers = False
    world.tick(1)
    assert not degraded(world).status
    world.tick(5)
    assert degraded(world).status
    assert "job-g1-0 (5 s)" in degraded(world).message
    world.workers["job-g1-0"].answers = True
    world.tick(1)
    assert not degraded(world).status


def test_silent_worker_counts_as_hung_once_nobody_commits_steps() -> None:
    world = trained()
    world.workers["job-g1-0"].answers = False
    set_phase(world, PHASE_TRAINING, "job-g0-0", "job-g2-0", in_collective=True)
    world.tick(1)
    decision = world.tick(60)
    assert decision.phase == "Restarting"
    assert "job-g1-0 (metrics unreadable) hangs" in decision.reason


def test_silent_worker_is_borne_while_others_commit_steps() -> None:
    world = trained()
    world.workers["job-g1-0"].answers = False
    for _ in range(5):
        world.train(5)
        assert world.tick(50).phase == "Running"
    assert degraded(world).status


def test_worker_that_does_not_exit_after_the_last_step_hangs() -> None:
    world = trained()
    set_phase(world, PHASE_FINISHED)
    world.workers["job-g0-0"].end(0, finished=True)
    world.workers["job-g1-0"].end(0, finished=True)
    assert world.tick(1).phase == "Running"
    decision = world.tick(61)
    assert decision.phase == "Restarting"
    assert "job-g2-0" in decision.reason


def test_plan_that_nobody_follows_is_borne_until_the_startup_deadline() -> None:
    world = hetero_world("Uniform")
    world.tick()
    assert world.tick(500).phase == "Running"
    assert world.tick(150).phase == "Restarting"


# --- the first step ------------------------------------------------------------------------------------------------


def first_step_under_way(world: World, step: int = 0) -> None:
    """All workers train, and have committed nothing since they started."""
    assert world.plan is not None
    for member in world.plan.members:
        world.workers[member.name].metrics = WorkerMetrics(
            plan_version=world.plan.version, generation=world.plan.generation, step=step, phase=PHASE_TRAINING
        )


@pytest.mark.parametrize("resumed", [0, 40], ids=["from the beginning", "from a checkpoint"])
def test_first_step_may_take_as_long_as_the_start(resumed: int) -> None:
    world = hetero_world("Uniform")
    world.forgetful = True
    set_phase(world, PHASE_STARTING)
    world.tick()
    first_step_under_way(world, resumed)
    world.tick()
    assert world.tick(590).phase == "Running"
    decision = world.tick(20)
    assert decision.phase == "Restarting"
    assert "(patience 600 s)" in decision.reason


@pytest.mark.parametrize("resumed", [0, 40], ids=["from the beginning", "from a checkpoint"])
def test_second_step_may_take_no_longer_than_any(resumed: int) -> None:
    world = hetero_world("Uniform")
    world.forgetful = True
    set_phase(world, PHASE_STARTING)
    world.tick()
    for step in (resumed, resumed + 1):
        first_step_under_way(world, step)
        assert world.tick(300).phase == "Running"
    assert world.tick(59).phase == "Running"
    assert world.tick(2).phase == "Restarting"


def test_first_step_after_a_restart_may_take_as_long_again() -> None:
    world = trained()
    world.workers["job-g1-0"].end(137)
    world.tick()
    world.tick()
    assert world.tick().plan is not None
    first_step_under_way(world, step=10)
    world.tick()
    assert world.tick(590).phase == "Running"
    world.train(1)
    world.tick()
    assert world.tick(61).phase == "Restarting"


def test_first_step_never_has_less_time_than_any_other() -> None:
    world = hetero_world("Uniform", startup_deadline_seconds=5.0)
    first_step_under_way(world)
    world.tick()
    assert world.tick(59).phase == "Running"
    assert world.tick(2).phase == "Restarting"


def test_new_plan_of_the_same_workers_is_no_new_start() -> None:
    world = hetero_world()
    world.run(2)
    assert world.plan is not None
    assert world.plan.version > 1
    first_step_under_way(world, step=20)
    world.tick()
    assert world.tick(61).phase == "Restarting"


# --- survivors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "patience"), [(1.0, 60.0), (100.0, 132.0)], ids=["timeout", "20 slow steps"])
def test_workers_that_form_new_groups_have_the_whole_patience_from_then_on(scale: float, patience: float) -> None:
    world = hetero_world("Uniform", (scale, scale, scale), startup_deadline_seconds=1.0)
    world.run(1)
    set_phase(world, PHASE_TRAINING, in_collective=True)
    world.tick(patience - 2)
    set_phase(world, PHASE_REFORMING)
    assert world.tick(1).phase == "Running"
    assert world.tick(patience - 1).phase == "Running"
    assert world.tick(2).phase == "Restarting"


# --- what an earlier job has trained ----------------------------------------------------------------------------


def take_over(world: World, step: int = 40, uid: str = "earlier") -> None:
    """The leader says that it went on from an earlier job's checkpoint."""
    leader = world.workers["job-g0-0"]
    leader.metrics = replace(leader.metrics, resumed_step=step, resumed_from=uid)


@pytest.mark.parametrize(("uid", "said"), [("earlier", "of the UID earlier"), ("", "which does not say its UID")])
def test_job_that_goes_on_from_an_earlier_ones_checkpoint_says_so_once(uid: str, said: str) -> None:
    world = hetero_world()
    world.forgetful = True
    world.train(1)
    take_over(world, uid=uid)
    first = world.tick()
    assert [event.reason for event in first.events] == ["ResumedFromEarlierJob"]
    assert f"at step 40, from a checkpoint of an earlier job {said}" in first.events[0].message
    assert (world.memory.resumed.resumed_step, world.memory.resumed.resumed_from) == (40, uid)
    for _ in range(3):
        world.train(1)
        take_over(world, uid=uid)
        assert not any(event.reason == "ResumedFromEarlierJob" for event in world.tick().events)


def test_job_that_begins_again_has_taken_nothing_over() -> None:
    world = hetero_world()
    world.run(3)
    assert world.memory.resumed.resumed_step == -1
    assert all(event.reason != "ResumedFromEarlierJob" for decision in world.decisions for event in decision.events)
