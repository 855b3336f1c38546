"""Ends of single workers after which no restart can help."""

from __future__ import annotations

from dataclasses import replace

from heterotrain_operator.core.decide import decide
from unit.core.restarts import events, failure, start_and_end
from unit.core.traces import World, hetero_world


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
