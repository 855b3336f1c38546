"""When plan and memory are written, by whom they may be changed, and that a plan reaches who must follow it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain_operator.clusters.kube.api_server.gateway import Gateway, GatewayError
from heterotrain_operator.clusters.kube.objects.names import MEMORY_KEY, PLAN_KEY
from heterotrain_operator.clusters.port import PlanConflictError
from heterotrain_operator.core.memory.job import RestartBudget
from heterotrain_operator.core.model import Decision
from heterotrain_operator.core.prediction.memory_model import MemoryUse
from heterotrain_operator.core.state import Memory
from kube_server.api_server import ApiServer, StatusError
from unit.kube.worlds import NAMES, World, owner, rebalance, refusing, stored, written

LEADER = NAMES[0]


@pytest.fixture
def world(api: ApiServer, gateway: Gateway) -> World:
    return World(api, gateway)


def test_nothing_is_written_while_nothing_changes(world: World, api: ApiServer) -> None:
    world.train()
    api.reads.clear()
    for _ in range(5):
        world.round()
    assert written(api) == []
    assert api.reads == []


def test_memory_in_which_only_measurements_change_is_not_written(world: World, api: ApiServer) -> None:
    world.train()
    for _ in range(18):
        world.workers.train(steps=1)
        world.round(10)
    assert written(api, "configmaps") == []


def test_job_whose_pods_do_not_start_is_written_once(world: World, api: ApiServer) -> None:
    for _ in range(2):
        world.round()
    api.writes.clear()
    for _ in range(20):
        world.round(5)
    assert written(api) == []


def test_ended_job_is_left_alone(world: World, api: ApiServer) -> None:
    world.train()
    ended = {"name": "trainer", "state": {"terminated": {"exitCode": 0, "message": '{"finished": true, "step": 9}'}}}
    for name in NAMES:
        api.change("pods", name, {"status": {"phase": "Succeeded", "containerStatuses": [ended]}})
    for _ in range(2):
        world.round()
    assert world.status["phase"] == "Succeeded"
    api.writes.clear()
    for _ in range(20):
        world.round(60)
    assert written(api) == []


def test_suspended_job_is_left_alone(world: World, api: ApiServer) -> None:
    world.train()
    api.change("heterotrainingjobs", "digits", {"spec": {"runPolicy": {"suspend": True}}})
    world.round()
    world.end_pods()
    for _ in range(2):
        world.round()
    assert world.status["phase"] == "Suspended"
    assert world.pods == []
    api.writes.clear()
    for _ in range(20):
        world.round(60)
    assert written(api) == []


def test_memory_that_holds_what_only_a_failure_teaches_is_written(world: World, api: ApiServer) -> None:
    world.train()
    decision = world.round()
    memory = Memory.from_json(stored(api, MEMORY_KEY))
    small = MemoryUse(guessed_batch=7)
    workers = tuple(each._replace(memory_use=small) for each in memory.workers)
    world.cluster.act(decision, replace(memory, workers=workers))
    assert len(written(api, "configmaps")) == 1


def test_figures_of_the_status_are_written_every_thirty_seconds_at_most(world: World, api: ApiServer) -> None:
    world.train()
    for _ in range(12):
        world.workers.train(steps=1)
        world.round(10)
    assert len(written(api, "heterotrainingjobs")) in (3, 4)


def test_figures_that_were_seen_last_stay_when_workers_end_before_they_were_written(
    world: World, api: ApiServer
) -> None:
    world.train()
    world.workers.train(steps=80, slow=dict.fromkeys(NAMES, 2.0))
    world.round()
    assert written(api, "heterotrainingjobs") == []
    world.workers.reported.clear()
    api.change("heterotrainingjobs", "digits", {"spec": {"runPolicy": {"suspend": True}}})
    world.round()
    assert [worker["ownMilliseconds"] for worker in world.status["workers"]] == [180, 180, 180]


def test_next_operator_goes_on_without_a_jump(world: World, api: ApiServer) -> None:
    world.train()
    rebalance(world)
    world.workers.follow(world.plan)
    world.round()
    plan, memory = world.plan, stored(api, MEMORY_KEY)
    world.restart_operator()
    api.writes.clear()
    decision = world.round()
    assert decision.plan is None
    assert world.plan == plan
    assert stored(api, MEMORY_KEY) == memory
    assert written(api) == []


def test_plan_whose_writer_died_is_delivered_by_the_next_operator(world: World, api: ApiServer) -> None:
    world.train()
    api.refuse = refusing("patch", "pods")
    with pytest.raises(GatewayError, match="patch Pod digits-small-0"):
        rebalance(world)
    api.refuse = lambda *_: None
    world.restart_operator()
    api.writes.clear()
    world.round()
    assert written(api, "pods") == [("patch", "pods", name) for name in NAMES]


def test_plan_is_delivered_again_until_it_was(world: World, api: ApiServer) -> None:
    world.train()
    api.refuse = refusing("patch", "pods")
    with pytest.raises(GatewayError):
        rebalance(world)
    api.refuse = lambda *_: None
    api.writes.clear()
    world.round()
    world.round()
    assert written(api, "pods") == [("patch", "pods", LEADER)]


def test_foreign_write_of_the_plan_is_a_conflict_and_then_observed(world: World, api: ApiServer) -> None:
    plan = world.train()
    world.look()
    theirs = replace(plan, version=plan.version + 1)
    api.change("configmaps", "digits-plan", {"data": {PLAN_KEY: theirs.to_json()}})
    ours = Decision("Running", "faster", plan=replace(plan, version=plan.version + 1), delete=(LEADER,))
    with pytest.raises(PlanConflictError, match="digits-plan"):
        world.cluster.act(ours, Memory(plan_version=plan.version + 1))
    assert written(api, "pods") == []
    seen, memory = world.look()
    assert seen.plan == theirs
    assert memory is not None and memory.plan_version == plan.version


def test_plan_that_somebody_damaged_is_restored_with_the_same_batches(world: World, api: ApiServer) -> None:
    plan = world.train()
    api.change("configmaps", "digits-plan", {"data": {PLAN_KEY: "{", MEMORY_KEY: "{"}})
    world.round(11)
    assert world.plan.version > plan.version
    assert world.plan.members == plan.members
    assert Memory.from_json(stored(api, MEMORY_KEY)).generation == plan.generation
    assert world.events[-1] == "PlanRestored"


def test_damaged_memory_is_written_again_at_once(world: World, api: ApiServer) -> None:
    plan = world.train()
    api.change("configmaps", "digits-plan", {"data": {MEMORY_KEY: "{"}})
    world.round()
    assert Memory.from_json(stored(api, MEMORY_KEY)).plan_version == plan.version


def test_deleted_plan_is_restored_with_the_same_batches(world: World, api: ApiServer) -> None:
    plan = world.train()
    api.remove("configmaps", "digits-plan")
    world.round(11)
    assert world.plan.version > plan.version
    assert world.plan.members == plan.members
    assert owner(api, "configmaps", "digits-plan") == world.uid


def test_write_whose_answer_was_lost_is_found_and_not_repeated(world: World, api: ApiServer) -> None:
    plan = world.train()
    world.look()
    after = replace(plan, version=plan.version + 1)
    memory = Memory(plan_version=after.version, budget=RestartBudget(restarts=1))

    def lose_the_answer(verb: str, plural: str, name: str) -> None:
        if plural == "configmaps" and verb == "patch":
            api.change("configmaps", name, {"data": {PLAN_KEY: after.to_json(), MEMORY_KEY: memory.to_json()}})
            raise StatusError(504, "Timeout", "too late")

    api.refuse = lose_the_answer
    with pytest.raises(GatewayError, match="too late"):
        world.cluster.act(Decision("Running", "faster", plan=after), memory)
    api.refuse = lambda *_: None
    seen, remembered = world.look()
    assert (seen.plan, remembered) == (after, memory)


def test_watch_that_lags_behind_a_write_costs_no_request(world: World, api: ApiServer) -> None:
    world.train()
    before = world.versions
    rebalance(world)
    world.workers.follow(world.plan)
    api.reads.clear()
    world.round(versions=before)
    world.round()
    assert api.reads == []
