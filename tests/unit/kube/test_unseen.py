"""Members that a watch does not show are asked for before anybody acts on their absence."""

from __future__ import annotations

from dataclasses import replace

from heterotrain.contract import Member
from heterotrain_operator.clusters.kube.api_server.gateway import Gateway
from heterotrain_operator.clusters.kube.objects.names import PLAN_KEY
from heterotrain_operator.clusters.kube.observe.absences import Absences
from kube_server.api_server import ApiServer
from unit.kube.worlds import NAMES, SCALED, TEMPLATE, World, written

LEADER = NAMES[0]


def test_member_that_an_index_lacks_after_a_takeover_costs_nobody_anything(world: World, api: ApiServer) -> None:
    world.train()
    lacking = [pod for pod in world.pods if pod.name != LEADER]
    for takeover in (True, False, True):
        if takeover:
            world.restart_operator()
        world.workers.train()
        decision = world.round(pods=lacking)
        assert (decision.phase, decision.delete, decision.create) == ("Running", (), ())
    assert written(api, "pods") == []
    assert len(world.status["workers"]) == 3


def test_members_that_are_gone_are_asked_for_once(world: World, api: ApiServer) -> None:
    world.train()
    api.remove("pods", LEADER, watched=False)
    api.reads.clear()
    assert world.round().phase == "Restarting"
    for _ in range(5):
        world.end_pods()
        world.round(0.1)
    assert sorted(name for _, kind, name in api.reads if kind == "pods") == sorted(NAMES)


def test_pod_of_another_identity_is_not_taken_for_the_member(world: World, api: ApiServer) -> None:
    world.train()
    api.remove("pods", LEADER, watched=False)
    api.put("pods", {"metadata": {"name": LEADER}})
    assert world.round(pods=[pod for pod in world.pods if pod.name != LEADER]).phase == "Restarting"


def test_pod_that_lost_its_label_is_still_there(world: World) -> None:
    world.train()
    others = [pod for pod in world.pods if pod.name != LEADER]
    leader = next(pod for pod in world.pods if pod.name == LEADER)
    world.workers.train()
    assert world.round(pods=[*others, replace(leader, gone=True)]).phase == "Running"
    assert world.round(pods=others).phase == "Running"


def test_worker_that_an_index_lacks_is_no_reason_to_give_up_a_lost_plan(world: World, api: ApiServer) -> None:
    world.train()
    api.remove("configmaps", "digits-plan")
    decision = world.round(20, pods=[pod for pod in world.pods if pod.name != LEADER])
    assert (decision.phase, decision.delete) == ("Running", ())
    assert decision.plan is not None
    assert len(decision.plan.members) == 3


def test_plan_that_names_what_is_no_pod_asks_for_nothing(world: World, api: ApiServer) -> None:
    world.train()
    unknown = replace(world.plan.members[0], name="../secrets/token", uid="none")
    forged = replace(world.plan, members=(*world.plan.members, unknown))
    api.change("configmaps", "digits-plan", {"data": {PLAN_KEY: forged.to_json()}})
    api.reads.clear()
    world.round()
    assert {kind for _, kind, _ in api.reads} <= {"configmaps", "heterotrainingjobs"}


def test_many_absent_members_are_asked_for_at_once(gateway: Gateway, api: ApiServer) -> None:
    members = [Member(f"digits-small-{rank}", f"uid-{rank}", "", "small", 1) for rank in range(40)]
    absences = Absences(gateway, "team-a", "digits", "the job")
    assert absences.members(members, {}) == []
    assert absences.members(members, {}) == []
    assert [verb for verb, _, _ in api.reads] == ["list"]


def test_all_workers_of_a_scaled_job_are_asked_for_when_its_plan_is_lost(api: ApiServer, gateway: Gateway) -> None:
    world = World(api, gateway, {**SCALED, "workerGroups": [{"name": "small", "template": TEMPLATE}]})
    world.train("digits-small-0", "digits-small-1")
    api.remove("configmaps", "digits-plan")
    decision = world.round(20, pods=[pod for pod in world.pods if pod.name != "digits-small-1"])
    assert (decision.phase, decision.create, decision.delete) == ("Running", (), ())
    assert decision.plan is not None
    assert len(decision.plan.members) == 2
