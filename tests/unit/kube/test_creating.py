"""What is created for a job, in which order, and what a refusal of the API server means."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from heterotrain_operator.clusters.kube.api_server.gateway import Gateway, GatewayError
from heterotrain_operator.clusters.kube.objects.names import ANNOTATION_PLAN
from heterotrain_operator.core.model import Decision, WorkerKey
from heterotrain_operator.core.state import Memory
from kube_server.api_server import ApiServer, StatusError
from unit.kube.worlds import JOB, NAMES, World, rebalance, refusing, written

FIRST = WorkerKey("small", 0, NAMES[0])
LEADER = NAMES[0]


def test_job_gets_plan_map_service_secret_and_pods_in_this_order(world: World, api: ApiServer) -> None:
    world.round()
    assert [plural for _, plural, _ in written(api)] == [
        "configmaps",
        "services",
        "secrets",
        *["pods"] * 3,
        "events",
        "heterotrainingjobs",
    ]
    assert sorted(written(api, "pods")) == sorted(("create", "pods", name) for name in NAMES)
    assert world.status["phase"] == "Created"


def test_workers_that_answer_get_a_plan_and_all_of_them_get_it_at_once(world: World, api: ApiServer) -> None:
    world.round()
    world.run_pods()
    world.workers.wait(*NAMES)
    api.writes.clear()
    world.round()
    assert written(api, "configmaps", "pods") == [
        ("patch", "configmaps", "digits-plan"),
        *[("patch", "pods", name) for name in NAMES],
    ]
    for name in NAMES:
        pod = api.get("pods", name)
        assert pod is not None
        assert pod["metadata"]["annotations"][ANNOTATION_PLAN] == str(world.plan.version)
    assert world.plan.global_batch_size == 192
    assert world.status["planVersion"] == world.plan.version


def test_of_the_same_members_only_the_leader_gets_a_new_plan_at_once(world: World, api: ApiServer) -> None:
    world.train()
    rebalance(world)
    assert written(api, "configmaps", "pods")[-2:] == [
        ("patch", "configmaps", "digits-plan"),
        ("patch", "pods", LEADER),
    ]
    assert len(written(api, "pods")) == 1


def touched(api: ApiServer) -> list[str]:
    """The pods that were touched since this was asked last."""
    names = [name for verb, _, name in written(api, "pods") if verb == "patch"]
    api.writes.clear()
    return names


def test_pods_whose_volumes_are_late_are_touched_again_for_a_while(world: World, api: ApiServer) -> None:
    world.round()
    world.run_pods()
    world.workers.wait(*NAMES)
    world.round()
    assert touched(api) == list(NAMES)
    values = set()
    for _ in range(4):
        world.round(1.0)
        assert touched(api) == []
        world.round(4.0)
        assert touched(api) == list(NAMES)
        pod = api.get("pods", LEADER)
        assert pod is not None
        values.add(str(pod["metadata"]["annotations"]))
    assert len(values) == 4, "only what changes reaches the kubelet"
    world.workers.follow(world.plan)
    world.workers.reported[LEADER] = replace(world.workers.reported[LEADER], plan_version=0, generation=0)
    world.round(5.0)
    assert touched(api) == [LEADER]


def test_pods_that_never_follow_are_not_touched_for_ever(world: World, api: ApiServer) -> None:
    world.round()
    world.run_pods()
    world.workers.wait(*NAMES)
    world.round()
    for _ in range(18):
        world.round(5.0)
    assert len(touched(api)) == 19 * len(NAMES)
    world.round(5.0)
    assert touched(api) == []


def test_of_the_same_members_only_the_leader_is_touched_again(world: World, api: ApiServer) -> None:
    world.train()
    rebalance(world)
    touched(api)
    world.round(5.0)
    assert touched(api) == [LEADER]


def test_pods_that_a_late_watch_does_not_show_are_not_refused(world: World, api: ApiServer) -> None:
    world.round()
    world.look(pods=[])
    world.cluster.act(Decision("Created", "again", create=(FIRST,)), Memory.initial())
    seen, _ = world.look()
    assert seen.refused == ()
    assert world.events == ["SuccessfulCreatePod"]


def quota(api: ApiServer, most: int) -> list[str]:
    """Admit so many pods to the namespace. Returns the names of those refused, which grow."""

    def refuse(verb: str, kind: str, name: str) -> None:
        if (verb, kind) != ("create", "pods"):
            return
        with lock:  # several are created at once
            if len(admitted) < most:
                admitted.append(name)
                return
            tries.append(name)
        raise StatusError(403, "Forbidden", f'pods "{name}" is forbidden: exceeded quota, used: pods={most}')

    tries: list[str] = []
    admitted: list[str] = []
    lock = threading.Lock()
    api.refuse = refuse
    return tries


def test_refused_pods_are_reported_in_one_event_and_tried_one_at_a_time(world: World, api: ApiServer) -> None:
    tries = quota(api, 0)
    for _ in range(3):
        world.round(11)
    assert tries == [NAMES[0]] * 3
    assert world.events == ["FailedCreatePod"]
    (event,) = (api.get("events", name) for name in api.names("events"))
    assert event is not None
    assert event["message"].startswith("3 of 3 pods are not created: create Pod digits-small-0: ")
    assert "exceeded quota" in world.status["reason"]
    assert f"{NAMES[2]} (not tried after the refusal of {NAMES[0]})" in world.status["reason"]
    assert len(written(api, "heterotrainingjobs")) == 2
    api.refuse = lambda *_: None
    world.round(11)
    assert api.names("pods") == sorted(NAMES)


def test_thousand_workers_under_a_quota_cost_a_handful_of_refusals_and_one_event(
    api: ApiServer, gateway: Gateway
) -> None:
    template = JOB["spec"]["workerGroups"][0]["template"]
    groups = [{"name": "small", "replicas": 1000, "template": template}]
    world = World(api, gateway, {"workerGroups": groups, "training": {"globalBatchSize": 2000}})
    tries = quota(api, 100)
    world.round()
    assert len(api.names("pods")) == 100
    assert len(tries) <= 64, "those of one doubling batch"
    assert sorted(world.events) == ["FailedCreatePod", "SuccessfulCreatePod"]
    for _ in range(5):
        tries.clear()
        world.round(11)
        assert len(tries) == 1
    assert len(world.events) == 2


def test_group_whose_template_is_refused_keeps_no_other_from_being_tried(world: World, api: ApiServer) -> None:
    def refuse(verb: str, kind: str, name: str) -> None:
        if (verb, kind) == ("create", "pods") and "small" in name:
            tries.append(name)
            raise StatusError(422, "Invalid", "spec.containers[0].image: Required value")

    tries: list[str] = []
    api.refuse = refuse
    world.round()
    assert tries == [NAMES[0]]
    assert api.names("pods") == [NAMES[2]]


def test_api_server_in_trouble_refuses_no_pods(world: World, api: ApiServer) -> None:
    api.refuse = refusing("create", "pods", 503)
    with pytest.raises(GatewayError, match=r"create Pod digits-small-0: why not.*HTTP 503"):
        world.round()


def test_lost_event_stops_nothing(world: World, api: ApiServer) -> None:
    api.refuse = refusing("create", "events", 403)
    world.round()
    assert world.status["phase"] == "Created"
    assert world.events == []
