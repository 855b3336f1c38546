"""Jobs whose pods find no places, that are scaled, that are over, or that are refused."""

from __future__ import annotations

from heterotrain_operator.api import Problem
from heterotrain_operator.clusters.kube.api_server.gateway import Gateway
from heterotrain_operator.clusters.kube.objects.names import LABEL_JOB
from heterotrain_operator.core.model import Decision, Event
from heterotrain_operator.core.state import Memory
from kube_server.api_server import ApiServer
from unit.kube.worlds import NAMES, NOW, SCALED, World, written

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


def test_events_are_reported_with_the_job_that_they_are_of(world: World, api: ApiServer) -> None:
    world.look()
    world.cluster.act(Decision("Created", "x", events=(Event("Warning", "Odd", "m" * 2000),)), Memory.initial())
    event = api.get("events", api.names("events")[0])
    assert event is not None
    assert event["involvedObject"]["uid"] == world.uid
    assert len(event["message"]) == 1024
    assert event["type"] == "Warning"
