"""What keeps everybody else from a job's workers: the secret that they share, and who may connect to them."""

from __future__ import annotations

import kubernetes_validate
import pytest

from heterotrain import contract
from heterotrain_operator.clusters.kube.api_server.gateway import Gateway
from heterotrain_operator.clusters.kube.objects.pods import build_pod
from heterotrain_operator.clusters.kube.objects.protection import build_policy, build_secret
from kube_server.api_server import ApiServer, StatusError
from unit.kube.documents import JOB_UID, SMALL, Document, groups, job
from unit.kube.worlds import NAMES, World

KUBERNETES = "1.34"
PEERS = ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ops"}}},)


@pytest.fixture
def world(api: ApiServer, gateway: Gateway) -> World:
    made = World(api, gateway)
    made.metrics_from = PEERS
    made.restart_operator()
    return made


def secrets_of(api: ApiServer) -> dict[str, str]:
    """Secrets and what they hold."""
    found = {name: api.get("secrets", name) for name in api.names("secrets")}
    return {name: body["stringData"]["secret"] for name, body in found.items() if body is not None}


def environment_of(pod: Document) -> dict[str, Document]:
    return {entry["name"]: entry for entry in pod["spec"]["containers"][0]["env"]}


# --- the secret --------------------------------------------------------------------------------------------------


def test_secret_is_there_before_the_pods_that_need_it_and_belongs_to_the_job(world: World, api: ApiServer) -> None:
    world.round()
    kinds = [plural for _, plural, _, _ in api.writes]
    assert kinds.index("secrets") < kinds.index("pods")
    ((name, secret),) = secrets_of(api).items()
    body = api.get("secrets", name)
    assert body is not None
    assert body["metadata"]["ownerReferences"][0]["uid"] == world.uid
    assert body["immutable"] is True
    assert len(bytes.fromhex(secret)) == contract.SECRET_BYTES
    for pod in NAMES:
        found = api.get("pods", pod)
        assert found is not None
        entry = environment_of(found)[contract.ENV_SECRET]
        assert entry["valueFrom"] == {"secretKeyRef": {"name": name, "key": "secret"}}


def test_secret_stays_the_same_for_the_next_operator_and_is_never_read(world: World, api: ApiServer) -> None:
    world.round()
    before = secrets_of(api)
    world.restart_operator()
    api.remove("pods", NAMES[0])
    for _ in range(30):
        world.round(10.0)
        world.end_pods()
    assert NAMES[0] in api.names("pods")
    assert secrets_of(api) == before
    assert not [read for read in api.reads if read[1] == "secrets"]


def test_secret_that_is_not_made_for_a_conflict_of_another_kind_is_awaited(world: World, api: ApiServer) -> None:
    def busy(verb: str, plural: str, name: str) -> None:
        if (verb, plural) == ("create", "secrets"):
            raise StatusError(409, "Conflict", "Operation cannot be fulfilled on resourcequotas")

    api.refuse = busy
    world.round()
    assert api.names("pods") == [], "they would wait for a secret that nobody makes"
    api.refuse = lambda verb, plural, name: None
    for _ in range(3):
        world.round(10.0)
    assert (len(secrets_of(api)), api.names("pods")) == (1, sorted(NAMES))


def test_next_job_of_the_name_has_another_secret(world: World, api: ApiServer) -> None:
    world.round()
    before = secrets_of(api)
    world.apply_job()
    world.round()
    after = secrets_of(api)
    assert len(after) == 1
    assert not set(before) & set(after)
    assert not set(before.values()) & set(after.values())


def test_template_cannot_choose_the_secret() -> None:
    container = {"name": "t", "image": "i", "env": [{"name": contract.ENV_SECRET, "value": "mine"}]}
    spec = groups(template={"spec": {"containers": [container]}})
    entries = [
        e
        for e in build_pod(job(spec), JOB_UID, SMALL)["spec"]["containers"][0]["env"]
        if e["name"] == contract.ENV_SECRET
    ]
    assert [set(entry) for entry in entries] == [{"name", "valueFrom"}]


def test_job_whose_secret_is_refused_says_so_and_starts_no_worker(world: World, api: ApiServer) -> None:
    def refuse(verb: str, plural: str, name: str) -> None:
        if plural == "secrets":
            raise StatusError(403, "Forbidden", "secrets is forbidden")

    api.refuse = refuse
    world.round()
    assert api.names("pods") == []
    assert "FailedCreatePod" in world.events
    seen, _ = world.look()
    assert "secrets is forbidden" in dict(seen.refused)[NAMES[0]]


# --- the network policy ------------------------------------------------------------------------------------------


def test_both_are_valid_for_kubernetes() -> None:
    for document in (build_secret(job(), JOB_UID, "s"), build_policy(job(), JOB_UID, PEERS)):
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_workers_reach_one_another_and_only_readers_of_metrics_reach_them() -> None:
    policy = build_policy(job(), JOB_UID, PEERS)["spec"]
    labels = build_pod(job(), JOB_UID, SMALL)["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["policyTypes"] == ["Ingress"]
    workers, metrics = policy["ingress"]
    assert workers == {"from": [{"podSelector": policy["podSelector"]}]}
    assert metrics == {"from": list(PEERS), "ports": [{"port": 9400, "protocol": "TCP"}]}


def test_workers_of_another_job_may_not_connect() -> None:
    selected = build_policy(job(), JOB_UID, PEERS)["spec"]["podSelector"]["matchLabels"]
    assert selected["heterotrain.dev/job-name"] == "digits"


def test_ports_that_a_template_names_stay_open_but_for_that_of_the_rendezvous() -> None:
    containers = [
        {
            "name": "trainer",
            "image": "i",
            "ports": [{"containerPort": 29500}, {"containerPort": 6006, "protocol": "TCP"}, {"containerPort": 9400}],
        },
        {"name": "side", "image": "i", "ports": [{"containerPort": 53, "protocol": "UDP"}]},
    ]
    policy = build_policy(job(groups(template={"spec": {"containers": containers}})), JOB_UID, PEERS)
    assert policy["spec"]["ingress"][2] == {
        "ports": [{"port": 53, "protocol": "UDP"}, {"port": 6006, "protocol": "TCP"}]
    }


def test_job_gets_its_policy_before_its_pods(world: World, api: ApiServer) -> None:
    world.round()
    kinds = [plural for _, plural, _, _ in api.writes]
    assert kinds.index("networkpolicies") < kinds.index("pods")
    assert api.names("networkpolicies") == ["digits-workers"]


def test_no_policy_is_made_where_none_is_wanted(world: World, api: ApiServer) -> None:
    world.metrics_from = None
    world.restart_operator()
    world.round()
    assert api.names("networkpolicies") == []
    assert "networkpolicies" not in {read[1] for read in api.reads}


def test_policy_of_somebody_else_is_left_alone_and_named(world: World, api: ApiServer) -> None:
    theirs = api.put("networkpolicies", {"metadata": {"name": "digits-workers"}, "spec": {"podSelector": {}}})
    world.round()
    assert api.get("networkpolicies", "digits-workers") == theirs
    assert api.names("pods") == []
    seen, _ = world.look()
    assert "NetworkPolicy team-a/digits-workers exists already" in dict(seen.refused)[NAMES[0]]


def test_policy_of_the_earlier_job_of_the_name_is_taken_over(world: World, api: ApiServer) -> None:
    world.round()
    world.apply_job(leaving="networkpolicies")
    world.round()
    policy = api.get("networkpolicies", "digits-workers")
    assert policy is not None
    assert policy["metadata"]["ownerReferences"][0]["uid"] == world.uid
