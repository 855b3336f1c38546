"""Objects of a job's names that belong to an earlier job, to another one, or to a user."""

from __future__ import annotations

import pytest

from heterotrain_operator.clusters.kube.api_server.gateway import JobGoneError
from heterotrain_operator.clusters.kube.objects.owned import NameTakenError
from heterotrain_operator.clusters.kube.observe.watched import Watched
from heterotrain_operator.core.model import Decision, WorkerKey
from heterotrain_operator.core.state import Memory
from kube_server.api_server import ApiServer
from unit.kube.worlds import NAMES, World, owner, written

FIRST = WorkerKey("small", 0, NAMES[0])
LEADER = NAMES[0]


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


def test_job_that_was_deleted_unnoticed_is_noticed_by_its_first_status(world: World, api: ApiServer) -> None:
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
