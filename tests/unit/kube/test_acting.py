"""What is created and deleted for a job, in which order, with which grace, and what a refusal means."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from heterotrain.contract import Termination
from heterotrain_operator.api import to_core
from heterotrain_operator.clusters.kube.api_server.gateway import Gateway, GatewayError
from heterotrain_operator.clusters.kube.objects.names import ANNOTATION_PLAN, LABEL_JOB
from heterotrain_operator.core.model import Decision, Event
from heterotrain_operator.core.state import Remembered
from kube_server.api_server import ApiServer, StatusError
from unit.kube.worlds import JOB, NAMES, SCALED, World, rebalance, refusing, written

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
    created(world)
    world.round()
    assert written(api, "configmaps", "pods") == [
        ("patch", "configmaps", "digits-plan"),
        *[("patch", "pods", name) for name in NAMES],
    ]
    versions = {api.the("pods", name)["metadata"]["annotations"][ANNOTATION_PLAN] for name in NAMES}
    assert versions == {str(world.plan.version)}
    assert world.plan.global_batch_size == 192
    assert world.status["planVersion"] == world.plan.version


def test_parameter_server_is_created_first_and_alone_gets_the_plans_of_members_that_stay(
    api: ApiServer, gateway: Gateway
) -> None:
    server = "digits-server-0"
    world = World(api, gateway, {"training": {"mode": "ASP"}, "parameterServer": {}})
    world.round()
    assert written(api, "pods")[0] == ("create", "pods", server)
    world.run_pods()
    world.workers.wait(*NAMES)
    assert world.round().plan is None
    world.workers.wait(server)
    world.round()
    assert touched(api) == [server, *NAMES]
    assert world.plan.server is not None
    assert world.plan.server.uid == api.the("pods", server)["metadata"]["uid"]
    assert world.plan.server.address.endswith(":29500")
    world.workers.follow(world.plan)
    world.workers.reported[server] = replace(world.workers.reported[NAMES[0]], steps=0.0)
    world.round()
    assert (world.status["server"]["name"], world.status["ready"]) == (server, "3/3")
    assert [entry["name"] for entry in world.status["workers"]] == list(NAMES)
    touched(api)
    rebalance(world)
    assert touched(api) == [server]


def created(world: World) -> None:
    """Its workers run, and wait for a plan; what was written until then is forgotten."""
    world.round()
    world.run_pods()
    world.workers.wait(*NAMES)
    world.api.writes.clear()


def touched(api: ApiServer) -> list[str]:
    """The pods that were touched since this was asked last."""
    names = [name for verb, _, name in written(api, "pods") if verb == "patch"]
    api.writes.clear()
    return names


def test_pods_whose_volumes_are_late_are_touched_again_for_a_while(world: World, api: ApiServer) -> None:
    created(world)
    world.round()
    assert touched(api) == list(NAMES)
    values = set()
    for _ in range(4):
        world.round(1.0)
        assert touched(api) == []
        world.round(4.0)
        assert touched(api) == list(NAMES)
        values.add(str(api.the("pods", LEADER)["metadata"]["annotations"]))
    assert len(values) == 4, "only what changes reaches the kubelet"
    world.workers.follow(world.plan)
    world.workers.reported[LEADER] = replace(world.workers.reported[LEADER], plan_version=0, generation=0)
    world.round(5.0)
    assert touched(api) == [LEADER]


def test_of_the_same_members_only_the_leader_gets_a_new_plan_and_not_for_ever(world: World, api: ApiServer) -> None:
    world.train()
    rebalance(world)
    assert written(api, "configmaps", "pods")[-2:] == [
        ("patch", "configmaps", "digits-plan"),
        ("patch", "pods", LEADER),
    ]
    assert touched(api) == [LEADER]
    for _ in range(18):
        world.round(5.0)
    assert touched(api) == [LEADER] * 18
    world.round(5.0)
    assert touched(api) == []


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


def test_thousand_workers_under_a_quota_cost_few_refusals_and_one_event(api: ApiServer, gateway: Gateway) -> None:
    template = JOB["spec"]["workerGroups"][0]["template"]
    groups = [{"name": "small", "replicas": 1000, "template": template}]
    world = World(api, gateway, {"workerGroups": groups, "training": {"globalBatchSize": 2000}})
    tries = quota(api, 100)
    world.round()
    assert len(api.names("pods")) == 100
    assert len(tries) <= 16, "those of one go"
    for _ in range(5):
        tries.clear()
        world.round(11)
        assert len(tries) == 1
        assert "exceeded quota" in world.status["reason"]
    assert sorted(world.events) == ["FailedCreatePod", "SuccessfulCreatePod"]
    messages = [api.the("events", name)["message"] for name in api.names("events")]
    assert any("00 of 1000 pods are not created: create Pod digits-small-" in message for message in messages)
    api.refuse = lambda *_: None
    world.round(11)
    assert len(api.names("pods")) == 1000


def test_what_an_operator_that_dies_between_two_goes_has_not_created_is_left_to_the_next(
    api: ApiServer, gateway: Gateway
) -> None:
    groups = [{"name": "small", "replicas": 40, "template": JOB["spec"]["workerGroups"][0]["template"]}]
    world = World(api, gateway, {"workerGroups": groups, "training": {"globalBatchSize": 2000}})
    world.loop.round(to_core(world.parsed(world.body)), world.watched())
    for _ in range(4):
        world.cluster.go_on()
    assert 0 < len(api.names("pods")) < 40
    world.restart_operator()
    world.round(11)
    created = [name for verb, _, name in written(api, "pods") if verb == "create"]
    assert len(created) == len(set(created)) == len(api.names("pods")) == 40
    assert len(api.names("secrets")) == 1


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


def test_events_are_of_their_job_and_cut_short_and_a_lost_one_stops_nothing(world: World, api: ApiServer) -> None:
    api.refuse = refusing("create", "events", 403)
    world.round()
    assert (world.status["phase"], world.events) == ("Created", [])
    api.refuse = lambda *_: None
    world.act(Decision("Created", "x", events=(Event("Warning", "Odd", "m" * 2000),)), Remembered.initial())
    event = api.the("events", api.names("events")[0])
    assert (event["involvedObject"]["uid"], event["type"], len(event["message"])) == (world.uid, "Warning", 1024)


def test_pod_with_a_short_grace_is_deleted_with_it_unless_its_own_is_shorter(world: World, api: ApiServer) -> None:
    world.train()
    usual = dict(zip(NAMES, (30.0, 30.0, 2.0), strict=True))
    world.look(pods=[replace(pod, grace_seconds=usual[pod.name]) for pod in world.pods])
    _, second, third = NAMES
    world.act(Decision("Running", "why", delete=NAMES, short_grace=(second, third)), Remembered.initial())
    bodies = {name: body for verb, kind, name, body in api.writes if (verb, kind) == ("delete", "pods")}
    assert [bodies[name].get("gracePeriodSeconds") for name in NAMES] == [None, 5, None]


def test_member_that_is_gone_is_seen_as_it_was_last_until_the_plan_names_it_no_more(world: World) -> None:
    world.train()
    leader = next(pod for pod in world.pods if pod.name == LEADER)
    others = [pod for pod in world.pods if pod.name != LEADER]
    former = replace(leader, name="digits-old-0", uid="of an earlier plan", gone=True)
    world.api.remove("pods", LEADER)
    words = Termination(False, message="preempted")
    seen, _ = world.look(pods=[*others, replace(leader, gone=True, words=words), former])
    assert LEADER not in {worker.name for worker in seen.workers}
    assert [(worker.name, worker.message) for worker in seen.departed] == [(LEADER, "preempted")]
    assert world.look(pods=others)[0].departed == seen.departed


def test_pod_of_another_identity_is_not_deleted(world: World, api: ApiServer) -> None:
    world.train()
    shown = [replace(pod, uid="an earlier one") for pod in world.pods]
    world.look(pods=shown)
    world.act(Decision("Restarting", "why", delete=(LEADER,)), Remembered.initial())
    assert LEADER in api.names("pods")


def test_pod_on_a_lost_node_is_deleted_without_it(world: World, api: ApiServer) -> None:
    world.train()
    api.change("nodes", "node-1", {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, "")
    world.workers.reported.clear()
    world.round(4)
    assert world.status["phase"] == "Restarting"
    world.round(31)
    assert api.names("pods") == []
    assert [body["gracePeriodSeconds"] for verb, kind, _, body in api.writes[-6:] if verb == "delete"] == [0, 0, 0]


def test_pod_that_went_while_the_watch_was_away_is_missed_in_the_end(world: World, api: ApiServer) -> None:
    world.train()
    stale = [pod for pod in world.pods if pod.name == LEADER]
    api.remove("pods", LEADER, watched=False)
    del world.workers.reported[LEADER]
    for _ in range(8):
        world.round(5, pods=[*stale, *world.pods])
        world.end_pods()
    assert len(api.names("pods")) == 3
    assert world.status["phase"] == "Restarting"
    world.run_pods()
    world.workers.wait(*NAMES)
    world.round(pods=[*stale, *world.pods])
    assert world.status["phase"] == "Running"


def test_job_that_is_scaled_gets_as_many_pods_and_its_status_selects_them(api: ApiServer, gateway: Gateway) -> None:
    world = World(api, gateway, SCALED)
    world.round()
    assert api.names("pods") == ["digits-small-0", "digits-small-1"]
    api.change("heterotrainingjobs", "digits", {"spec": {"replicas": 3}})
    world.round(11)
    assert api.names("pods") == ["digits-small-0", "digits-small-1", "digits-small-2"]
    assert world.status["replicas"] == 3
    api.put("pods", {"metadata": {"name": "somebodys", "labels": {LABEL_JOB: "digits"}}})
    found = api.listed("pods", "team-a", world.status["selector"])["items"]
    assert [pod["metadata"]["name"] for pod in found] == ["digits-small-0", "digits-small-1", "digits-small-2"]


def test_node_of_a_worker_that_was_asked_to_stop_is_looked_at(world: World, api: ApiServer) -> None:
    world.train()
    words = '{"finished": false, "step": 7, "message": "was asked to stop", "askedToStop": true}'
    state = {"terminated": {"exitCode": 143, "reason": "Error", "message": words}}
    for name in NAMES:
        status = {"phase": "Failed", "containerStatuses": [{"name": "trainer", "state": state}]}
        api.change("pods", name, {"status": status})
    world.round()
    assert world.status["phase"] == "Running"
    assert "a sign of who asked" in world.status["reason"]
    api.change("nodes", "node-1", {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, "")
    world.round(40)
    assert (world.status["phase"], world.status["restarts"]) == ("Restarting", 0)
    assert "WorkerDisrupted" in world.events
