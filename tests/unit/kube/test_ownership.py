"""What keeps others from a job's workers, and objects of its names that belong to an earlier job or somebody else."""

from __future__ import annotations

import pytest

from heterotrain import contract
from heterotrain_operator.clusters.kube.api_server.gateway import Gateway, JobGoneError
from heterotrain_operator.clusters.kube.objects.owned import NameTakenError
from heterotrain_operator.clusters.kube.objects.pods import build_pod, secret_in
from heterotrain_operator.clusters.kube.observe.watched import Watched
from heterotrain_operator.core.model import Decision, WorkerKey
from heterotrain_operator.core.state import Remembered
from kube_server.api_server import ApiServer
from unit.kube.worlds import NAMES, World, owner, refusing, written

LEADER = NAMES[0]
FIRST = WorkerKey("small", 0, LEADER)
PEERS = ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ops"}}},)


@pytest.fixture
def world(api: ApiServer, gateway: Gateway) -> World:
    made = World(api, gateway)
    made.metrics_from = PEERS
    made.restart_operator()
    return made


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


@pytest.mark.parametrize(("plural", "name"), [("services", "digits"), ("networkpolicies", "digits-workers")])
def test_service_and_policy_of_earlier_jobs_are_taken_over(
    world: World, api: ApiServer, plural: str, name: str
) -> None:
    world.train()
    world.apply_job(leaving=plural)
    world.round()
    assert owner(api, plural, name) == world.uid


@pytest.mark.parametrize(("plural", "name"), [("services", "digits"), ("configmaps", "digits-plan")])
def test_what_a_user_has_under_our_names_stays_as_it_is(world: World, api: ApiServer, plural: str, name: str) -> None:
    mine = api.put(plural, {"metadata": {"name": name}, "data": {"mine": "1"}})
    for _ in range(2):
        with pytest.raises(NameTakenError, match=f"team-a/{name} exists already and is not this job's") as caught:
            world.round(11)
        assert not caught.value.earlier
    assert api.get(plural, name) == mine
    assert written(api) == []


def test_policy_of_somebody_else_is_left_alone_and_named(world: World, api: ApiServer) -> None:
    theirs = api.put("networkpolicies", {"metadata": {"name": "digits-workers"}, "spec": {"podSelector": {}}})
    world.round()
    assert api.get("networkpolicies", "digits-workers") == theirs
    assert api.names("pods") == []
    refused = dict(world.look()[0].refused)
    assert "NetworkPolicy team-a/digits-workers exists already" in refused[LEADER]


@pytest.mark.parametrize("how", ["deleted unnoticed", "deleted", "in the foreground"])
def test_pods_that_went_with_their_job_do_not_come_back(world: World, api: ApiServer, how: str) -> None:
    world.train()
    body, create = world.body, () if how == "deleted unnoticed" else (FIRST,)
    if how == "in the foreground":  # as `kubectl delete --cascade=foreground` lets it wait
        api.change("heterotrainingjobs", "digits", {"metadata": {"deletionTimestamp": "2026-01-31T12:00:00Z"}})
    else:
        api.remove("heterotrainingjobs", "digits", watched=False)
    world.cluster.observe(Watched(body, world.parsed(body), (), ()))
    api.writes.clear()
    with pytest.raises(JobGoneError, match="team-a/digits"):
        world.act(Decision("Restarting", "a worker vanished", create=create), Remembered.initial())
    assert written(api, "pods", "services", "secrets") == []


def secrets_of(api: ApiServer) -> dict[str, str]:
    """Secrets and what they hold."""
    return {name: api.the("secrets", name)["stringData"]["secret"] for name in api.names("secrets")}


def test_secret_is_there_before_the_pods_that_need_it_and_belongs_to_the_job(world: World, api: ApiServer) -> None:
    world.round()
    kinds = [plural for _, plural, _, _ in api.writes]
    assert max(kinds.index("secrets"), kinds.index("networkpolicies")) < kinds.index("pods")
    assert api.names("networkpolicies") == ["digits-workers"]
    ((name, secret),) = secrets_of(api).items()
    assert owner(api, "secrets", name) == world.uid
    assert api.the("secrets", name)["immutable"] is True
    assert len(bytes.fromhex(secret)) == contract.SECRET_BYTES
    for pod in NAMES:
        variables = api.the("pods", pod)["spec"]["containers"][0]["env"]
        [entry] = [each for each in variables if each["name"] == contract.ENV_SECRET]
        assert entry["valueFrom"] == {"secretKeyRef": {"name": name, "key": "secret"}}


def test_secret_is_the_same_for_the_next_operator_unread_and_not_the_next_jobs(world: World, api: ApiServer) -> None:
    world.round()
    before = secrets_of(api)
    world.metrics_from = None
    world.restart_operator()
    api.remove("pods", LEADER)
    api.reads.clear()
    for _ in range(30):
        world.round(10.0)
        world.end_pods()
    assert LEADER in api.names("pods")
    assert secrets_of(api) == before
    assert not [read for read in api.reads if read[1] in ("secrets", "networkpolicies")], "no policy is wanted now"
    world.apply_job()
    world.round()
    assert api.names("networkpolicies") == []
    after = secrets_of(api)
    assert len(after) == 1
    assert not {*before, *before.values()} & {*after, *after.values()}


def test_secret_that_somebody_could_make_beforehand_is_no_workers(world: World, api: ApiServer) -> None:
    foreign = {"metadata": {"name": f"digits-{world.uid}"}, "stringData": {"secret": "known"}}
    api.put("secrets", foreign)
    world.round()
    ((name, secret),) = [
        (name, secret) for name, secret in secrets_of(api).items() if name != foreign["metadata"]["name"]
    ]
    assert secret != "known"
    assert {secret_in(api.the("pods", pod)) for pod in NAMES} == {name}
    assert name not in {f"digits-{body['metadata']['uid']}" for body in api.objects.values()}, "nothing tells the name"


def test_pod_that_another_operator_just_made_with_its_own_secret_is_made_again(world: World, api: ApiServer) -> None:
    world.look()
    late = build_pod(world.parsed(world.body), world.uid, FIRST, secret="digits-other")
    api.put("pods", late)
    world.round(pods=[])
    assert LEADER not in api.names("pods")
    world.round(10.0)
    assert {secret_in(api.the("pods", pod)) for pod in NAMES} == set(secrets_of(api))


@pytest.mark.parametrize("code", [403, 409])
def test_job_whose_secret_is_refused_says_so_until_it_is_not(world: World, api: ApiServer, code: int) -> None:
    api.refuse = refusing("write", "secrets", code, "no secrets today")  # 409: a quota that others change meanwhile
    world.round()
    assert api.names("pods") == [], "they would wait for a secret that nobody makes"
    assert "FailedCreatePod" in world.events
    assert "no secrets today" in dict(world.look()[0].refused)[LEADER]
    api.refuse = lambda verb, plural, name: None
    for _ in range(3):
        world.round(10.0)
    assert (len(secrets_of(api)), api.names("pods")) == (1, sorted(NAMES))
