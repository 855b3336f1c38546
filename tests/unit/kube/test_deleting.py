"""Which pods are deleted, with which grace, and when one is taken for gone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain_operator.core.model import Decision
from heterotrain_operator.core.state import Memory
from kube_server.api_server import ApiServer
from unit.kube.worlds import NAMES, World, written

LEADER = NAMES[0]


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
    world.workers.reported.clear()
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


def test_pods_that_answer_are_never_asked_for(world: World, api: ApiServer) -> None:
    world.train()
    api.reads.clear()
    for _ in range(5):
        world.workers.train()
        world.round(10)
    assert [read for read in api.reads if read[1] == "pods"] == []
