"""What is written to the API server of a job, in which order, and what is not written."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from heterotrain.contract import Member
from heterotrain_operator.api import Problem
from heterotrain_operator.clusters.kube.api_server.gateway import Gateway, GatewayError, JobGoneError
from heterotrain_operator.clusters.kube.objects.names import ANNOTATION_PLAN, LABEL_JOB, PLAN_KEY
from heterotrain_operator.clusters.kube.objects.owned import NameTakenError
from heterotrain_operator.clusters.kube.observe.absences import Absences
from heterotrain_operator.clusters.kube.observe.watched import Watched
from heterotrain_operator.core.model import Decision, Event, WorkerKey
from heterotrain_operator.core.state import Memory
from kube_server.api_server import ApiServer, StatusError
from unit.kube.documents import Document
from unit.kube.worlds import JOB, NAMES, NOW, TEMPLATE, World, owner, rebalance, refusing, written

FIRST = WorkerKey("small", 0, NAMES[0])
LEADER = NAMES[0]


@pytest.fixture
def world(api: ApiServer, gateway: Gateway) -> World:
    return World(api, gateway)


# --- creating ---------------------------------------------------------------------------------------------------


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
    world.workers.said[LEADER] = replace(world.workers.said[LEADER], plan_version=0, generation=0)
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


def test_refused_pods_are_told_of_in_one_event_and_tried_one_at_a_time(world: World, api: ApiServer) -> None:
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


# --- what others own --------------------------------------------------------------------------------------------


def test_plan_and_memory_of_an_earlier_job_are_not_taken_over(world: World, api: ApiServer) -> None:
    earlier = world.uid
    world.train()
    world.apply_job(leaving="configmaps")
    with pytest.raises(NameTakenError, match="ConfigMap team-a/digits-plan of an earlier job") as caught:
        world.round()
    assert caught.value.earlier
    assert written(api) == []
    assert owner(api, "configmaps", "digits-plan") == earlier
    api.remove("configmaps", "digits-plan")
    world.round()
    assert owner(api, "configmaps", "digits-plan") == world.uid
    assert world.status["phase"] == "Created"


def test_pod_of_an_earlier_job_is_waited_for_and_not_adopted(world: World, api: ApiServer) -> None:
    earlier = world.uid
    world.train()
    world.apply_job(leaving="pods")
    for _ in range(3):
        world.round(11)
    assert owner(api, "pods", LEADER) == earlier
    assert f"Pod team-a/{LEADER} of an earlier job digits is still there" in world.status["reason"]
    for name in NAMES:
        api.remove("pods", name)
    world.round(11)
    assert {owner(api, "pods", name) for name in NAMES} == {world.uid}


def test_pod_of_another_job_whose_name_is_ours_says_whose_it_is(world: World, api: ApiServer) -> None:
    """Job "digits" with group "small-x" and job "digits-small" with group "x" name their pods alike."""
    other = {**world.body["metadata"], "name": "digits-small", "uid": "another"}
    reference = {"apiVersion": "heterotrain.dev/v1alpha1", "kind": "HeteroTrainingJob", "controller": True}
    owners = [{**reference, "name": other["name"], "uid": other["uid"]}]
    api.put("pods", {"metadata": {"name": LEADER, "ownerReferences": owners}, "spec": {}})
    for _ in range(2):
        world.round(11)
    assert f"Pod team-a/{LEADER} belongs to another job, digits-small" in world.status["reason"]
    assert owner(api, "pods", LEADER) == "another"


def test_service_of_an_earlier_job_is_taken_over(world: World, api: ApiServer) -> None:
    world.train()
    world.apply_job(leaving="services")
    world.round()
    assert owner(api, "services", "digits") == world.uid


@pytest.mark.parametrize(("plural", "name"), [("services", "digits"), ("configmaps", "digits-plan")])
def test_what_a_user_has_under_a_name_of_ours_stays_as_it_is(
    world: World, api: ApiServer, plural: str, name: str
) -> None:
    mine = api.put(plural, {"metadata": {"name": name}, "data": {"mine": "1"}})
    for _ in range(2):
        with pytest.raises(NameTakenError, match=f"team-a/{name} exists already and is not this job's") as caught:
            world.round(11)
        assert not caught.value.earlier
    assert api.get(plural, name) == mine
    assert written(api) == []


def test_job_that_was_deleted_unnoticed_is_told_of_by_its_first_status(world: World, api: ApiServer) -> None:
    body, pods = world.body, world.pods
    api.remove("heterotrainingjobs", "digits", watched=False)
    world.cluster.observe(Watched(body, world.parsed(body), pods, ()))
    with pytest.raises(JobGoneError, match="team-a/digits"):
        world.cluster.act(Decision("Created", "nothing yet"), Memory.initial())


@pytest.mark.parametrize("waits", [False, True])
def test_pods_that_went_with_their_job_do_not_come_back(world: World, api: ApiServer, waits: bool) -> None:
    world.train()
    body = world.body
    if waits:  # as `kubectl delete --cascade=foreground` lets it
        api.change("heterotrainingjobs", "digits", {"metadata": {"deletionTimestamp": "2026-01-31T12:00:00Z"}})
    else:
        api.remove("heterotrainingjobs", "digits", watched=False)
    world.cluster.observe(Watched(body, world.parsed(body), (), ()))
    api.writes.clear()
    with pytest.raises(JobGoneError, match="team-a/digits"):
        world.cluster.act(Decision("Restarting", "a worker vanished", create=(FIRST,)), Memory.initial())
    assert written(api) == []


# --- deleting ---------------------------------------------------------------------------------------------------


def test_pod_is_deleted_once(world: World, api: ApiServer) -> None:
    world.train()
    shown = world.pods
    for _ in range(2):
        world.look(pods=shown)
        world.cluster.act(Decision("Restarting", "why", delete=(LEADER,)), Memory.initial())
    assert written(api, "pods") == [("delete", "pods", LEADER)]


def test_pod_with_a_short_grace_is_deleted_with_it(world: World, api: ApiServer) -> None:
    world.train()
    world.look(pods=world.pods)
    first, second, _ = NAMES
    world.cluster.act(Decision("Running", "why", delete=(first, second), short_grace=(second,)), Memory.initial())
    bodies = {name: body for verb, kind, name, body in api.writes if (verb, kind) == ("delete", "pods")}
    assert "gracePeriodSeconds" not in bodies[first]
    assert bodies[second]["gracePeriodSeconds"] == 5


@pytest.mark.parametrize("usual", [0.0, 2.0])
def test_pod_whose_usual_grace_is_shorter_keeps_it(world: World, api: ApiServer, usual: float) -> None:
    world.train()
    world.look(pods=[replace(pod, grace_seconds=usual) for pod in world.pods])
    world.cluster.act(Decision("Running", "why", delete=(LEADER,), short_grace=(LEADER,)), Memory.initial())
    [body] = [body for verb, kind, _, body in api.writes if (verb, kind) == ("delete", "pods")]
    assert "gracePeriodSeconds" not in body


def test_member_that_is_gone_is_seen_as_it_was_last_until_the_plan_names_it_no_more(world: World) -> None:
    world.train()
    leader = next(pod for pod in world.pods if pod.name == LEADER)
    others = [pod for pod in world.pods if pod.name != LEADER]
    former = replace(leader, name="digits-old-0", uid="of an earlier plan", gone=True)
    world.api.remove("pods", LEADER)
    seen, _ = world.look(pods=[*others, replace(leader, gone=True, message="preempted"), former])
    assert LEADER not in {worker.name for worker in seen.workers}
    assert [(worker.name, worker.message) for worker in seen.departed] == [(LEADER, "preempted")]
    assert world.look(pods=others)[0].departed == seen.departed


def test_pod_of_another_identity_is_not_deleted(world: World, api: ApiServer) -> None:
    world.train()
    shown = [replace(pod, uid="an earlier one") for pod in world.pods]
    world.look(pods=shown)
    world.cluster.act(Decision("Restarting", "why", delete=(LEADER,)), Memory.initial())
    assert LEADER in api.names("pods")
    seen, _ = world.look(pods=shown)
    assert "an earlier one" not in {worker.uid for worker in seen.workers if worker.name == LEADER}


def test_pod_on_a_lost_node_is_deleted_without_it(world: World, api: ApiServer) -> None:
    world.train()
    api.change("nodes", "node-1", {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, "")
    world.workers.said.clear()
    world.round(4)
    assert world.status["phase"] == "Restarting"
    world.round(31)
    assert api.names("pods") == []
    assert [body["gracePeriodSeconds"] for verb, kind, _, body in api.writes[-6:] if verb == "delete"] == [0, 0, 0]


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


def test_pod_that_went_while_the_watch_was_away_is_missed_in_the_end(world: World, api: ApiServer) -> None:
    world.train()
    stale = [pod for pod in world.pods if pod.name == LEADER]
    api.remove("pods", LEADER, watched=False)
    del world.workers.said[LEADER]
    for _ in range(8):
        world.round(5, pods=[*stale, *world.pods])
        world.end_pods()
    assert len(api.names("pods")) == 3
    assert world.status["phase"] == "Restarting"
    world.run_pods()
    world.workers.wait(*NAMES)
    world.round(pods=[*stale, *world.pods])
    assert world.status["phase"] == "Running"


def test_pods_that_answer_are_never_asked_for(world: World, api: ApiServer) -> None:
    world.train()
    api.reads.clear()
    for _ in range(5):
        world.workers.train()
        world.round(10)
    assert [read for read in api.reads if read[1] == "pods"] == []


# --- places -----------------------------------------------------------------------------------------------------


def test_pods_that_have_places_go_with_those_that_find_none_and_come_back_together(
    world: World, api: ApiServer
) -> None:
    world.round()
    for name in NAMES[:2]:
        api.change("pods", name, {"spec": {"nodeName": "node-1"}, "status": {"phase": "Running", "podIP": "10.0.0.1"}})
    uids = {pod.uid for pod in world.pods}
    while world.now < NOW + 310 and "WorkersLetGo" not in world.events:
        world.round(5)
    assert world.now >= NOW + 150
    for _ in range(8):
        world.end_pods()
        world.round(5)
    assert sorted(pod.name for pod in world.pods) == sorted(NAMES)
    assert not {pod.uid for pod in world.pods} & uids
    assert world.status["restarts"] == 0


def test_pods_that_a_queue_holds_back_do_not_fail_the_job(world: World, api: ApiServer) -> None:
    world.round()
    for name in NAMES:
        api.change("pods", name, {"spec": {"schedulingGates": [{"name": "queue"}]}, "status": {"phase": "Pending"}})
    for _ in range(4):
        world.round(600)
    assert world.status["phase"] == "Created"
    for name in NAMES:
        api.change("pods", name, {"spec": {"schedulingGates": None}, "status": {"phase": ""}})
    world.run_pods()
    world.workers.wait(*NAMES)
    world.round()
    assert world.status["phase"] == "Running"


# --- what a watch does not show ---------------------------------------------------------------------------------


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


SCALED: Document = {"workerGroups": [{"name": "small", "replicas": 9, "template": TEMPLATE}], "replicas": 2}
"""A job of one group, whose own replicas are without effect."""


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


def test_all_workers_of_a_scaled_job_are_asked_for_when_its_plan_is_lost(api: ApiServer, gateway: Gateway) -> None:
    world = World(api, gateway, {**SCALED, "workerGroups": [{"name": "small", "template": TEMPLATE}]})
    world.train("digits-small-0", "digits-small-1")
    api.remove("configmaps", "digits-plan")
    decision = world.round(20, pods=[pod for pod in world.pods if pod.name != "digits-small-1"])
    assert (decision.phase, decision.create, decision.delete) == ("Running", (), ())
    assert decision.plan is not None
    assert len(decision.plan.members) == 2


def test_finished_job_is_deleted_when_its_time_is_over(world: World, api: ApiServer) -> None:
    world.look()
    world.cluster.act(Decision("Succeeded", "done", remove_job=True), Memory.initial())
    assert api.names("heterotrainingjobs") == []


# --- a job that is refused --------------------------------------------------------------------------------------


def test_why_a_job_is_refused_is_written_once_and_goes_with_the_reason(world: World, api: ApiServer) -> None:
    world.train()
    for _ in range(2):
        world.cluster.refuse(world.body, [Problem("spec.training.steps", "is odd")])
    assert len(written(api, "heterotrainingjobs")) == 1
    assert world.status["reason"] == "spec.training.steps: is odd"
    assert world.status["phase"] == "Running"
    world.round()
    assert "Invalid" not in {condition["type"] for condition in world.status["conditions"]}


def test_events_are_told_with_the_job_that_they_are_of(world: World, api: ApiServer) -> None:
    world.look()
    world.cluster.act(Decision("Created", "x", events=(Event("Warning", "Odd", "m" * 2000),)), Memory.initial())
    event = api.get("events", api.names("events")[0])
    assert event is not None
    assert event["involvedObject"]["uid"] == world.uid
    assert len(event["message"]) == 1024
    assert event["type"] == "Warning"
