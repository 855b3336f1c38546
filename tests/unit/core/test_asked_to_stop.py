"""Workers that say that they were asked to stop: who asked is waited for, and without a sign of it that counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain_operator.core.decide import decide
from unit.core.restarts import failure, restart_fully
from unit.core.traces import World, hetero_world


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
