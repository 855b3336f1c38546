"""What is built for a job: its template passed through whole, what makes a worker of it, and what protects it."""

from __future__ import annotations

import json
from typing import Any

import kubernetes_validate
import pytest

from heterotrain import contract
from heterotrain.contract import Member, Plan, TrainingConfig
from heterotrain_operator.api import training_config
from heterotrain_operator.clusters.kube.objects.plan_map import StoredPlan, build_plan_map, read_plan_map
from heterotrain_operator.clusters.kube.objects.pods import build_pod, build_service
from heterotrain_operator.clusters.kube.objects.protection import build_policy, build_secret
from heterotrain_operator.core.model import SERVER_GROUP, WorkerKey
from heterotrain_operator.core.prediction.batch_cost import BatchCost
from heterotrain_operator.core.remembered.job import RestartBudget
from heterotrain_operator.core.remembered_worker import RememberedWorker
from heterotrain_operator.core.state import Remembered
from kube_server.api_server import Document
from unit.kube.documents import CONTAINER, JOB_UID, SMALL, groups, job, pod

KUBERNETES = "1.34"
PEERS = ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ops"}}},)

OWNER = {
    "apiVersion": "heterotrain.dev/v1alpha1",
    "kind": "HeteroTrainingJob",
    "name": "digits",
    "uid": JOB_UID,
    "controller": True,
    "blockOwnerDeletion": True,
}

WHOLE: Document = {
    "metadata": {
        "labels": {"kueue.x-k8s.io/queue-name": "gold", "heterotrain.dev/job-name": "another"},
        "annotations": {"scheduling.k8s.io/group-name": "digits", "sidecar.istio.io/inject": "false"},
    },
    "spec": {
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}},
        "schedulerName": "volcano",
        "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}],
        "terminationGracePeriodSeconds": 120,
        "securityContext": {"runAsNonRoot": True, "fsGroup": 1000},
        "initContainers": [{"name": "fetch", "image": "fetch:1"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        "containers": [
            {
                "name": "trainer",
                "image": "train:1",
                "securityContext": {"readOnlyRootFilesystem": True},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                "ports": [{"name": "debug", "containerPort": 5678}],
            },
            {"name": "proxy", "image": "proxy:1", "env": [{"name": "HETEROTRAIN_JOB", "value": "its own"}]},
        ],
    },
}


def built(spec: Document | None = None, key: WorkerKey = SMALL, **template: Any) -> Document:
    """A pod of the job `digits`."""
    return build_pod(job(spec, **template), JOB_UID, key, secret="digits-s")


def trainer(document: Document) -> Document:
    container: Document = document["spec"]["containers"][0]
    return container


def environment(document: Document) -> dict[str, str]:
    """The trainer's variables that have a value; each name must occur once."""
    entries = trainer(document)["env"]
    assert len({entry["name"] for entry in entries}) == len(entries)
    return {entry["name"]: entry["value"] for entry in entries if "value" in entry}


@pytest.mark.parametrize(
    "document",
    [
        pod(),
        built(),
        built(groups(device="gpu", template=WHOLE)),
        built({"checkpoint": {"path": "/checkpoints", "persistentVolumeClaim": "digits"}}),
        build_service(job(), JOB_UID),
        build_plan_map(job(), JOB_UID, "{}", "{}"),
        build_secret(job(), JOB_UID, "digits-s", "s"),
        build_policy(job(), JOB_UID, PEERS),
    ],
    ids=["as-shown", "pod", "whole-template", "with-claim", "service", "plan-map", "secret", "policy"],
)
def test_document_is_one_that_kubernetes_knows(document: Document) -> None:
    kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_pod_is_named_labelled_and_owned() -> None:
    assert built()["metadata"] == {
        "name": "digits-small-0",
        "namespace": "team-a",
        "labels": {
            "app.kubernetes.io/name": "heterotrain",
            "app.kubernetes.io/instance": "digits",
            "app.kubernetes.io/component": "worker",
            "app.kubernetes.io/part-of": "heterotrain",
            "app.kubernetes.io/managed-by": "heterotrain-operator",
            "heterotrain.dev/job-name": "digits",
            "heterotrain.dev/worker-group": "small",
            "heterotrain.dev/worker-index": "0",
            "heterotrain.dev/job-role": "worker",
        },
        "ownerReferences": [OWNER],
    }


SERVED = {"training": {"mode": "ASP"}, "parameterServer": {}}


def test_parameter_server_is_as_a_worker_of_the_first_group_but_counts_as_none() -> None:
    made = job({**SERVED, "parameterServer": {"template": WHOLE}})
    key = WorkerKey(SERVER_GROUP, 0, "digits-server-0")
    for each, image in ((job(SERVED), CONTAINER["image"]), (made, "train:1")):
        document = build_pod(each, JOB_UID, key, secret="digits-s", beside_training=True)
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
        labels = document["metadata"]["labels"]
        assert (labels["heterotrain.dev/job-role"], labels["heterotrain.dev/worker-group"]) == ("server", "server")
        found = environment(document)
        assert (found[contract.ENV_ROLE], found[contract.ENV_GROUP]) == (contract.ROLE_SERVER, "")
        assert contract.ENV_WARM_UP not in found
        assert TrainingConfig.from_json(found[contract.ENV_CONFIG]).mode == contract.ASP
        assert (trainer(document)["image"], found[contract.ENV_WORKER]) == (image, "digits-server-0")
    worker = build_pod(made, JOB_UID, SMALL, secret="digits-s")
    assert contract.ENV_ROLE not in environment(worker)
    assert worker["metadata"]["labels"]["heterotrain.dev/job-role"] == "worker"
    assert build_service(made, JOB_UID)["spec"]["selector"] == {"heterotrain.dev/job-name": "digits"}
    policy = build_policy(made, JOB_UID, PEERS)
    kubernetes_validate.validate(policy, KUBERNETES, strict=True)
    chosen = policy["spec"]["podSelector"]
    assert chosen["matchExpressions"][0]["values"] == ["worker", "server"]
    assert policy["spec"]["ingress"][0] == {"from": [{"podSelector": chosen}]}
    assert 5678 in [port["port"] for port in policy["spec"]["ingress"][2]["ports"]], "of its own template"


def test_template_passes_whole_and_is_not_changed() -> None:
    made = job(groups(device="gpu", template=WHOLE))
    document = build_pod(made, JOB_UID, SMALL, secret="digits-s")
    assert build_pod(made, JOB_UID, SMALL, secret="digits-s") == document
    spec, template = document["spec"], WHOLE["spec"]
    for name in template.keys() - {"containers", "volumes"}:
        assert spec[name] == template[name], name
    assert spec["containers"][1:] == template["containers"][1:]
    assert spec["volumes"][0] == template["volumes"][0]
    for name, value in template["containers"][0].items():
        found = trainer(document)[name]
        assert (found[: len(value)] if isinstance(value, list) else found) == value, name
    assert document["metadata"]["annotations"] == WHOLE["metadata"]["annotations"]
    labels = WHOLE["metadata"]["labels"] | {"heterotrain.dev/job-name": "digits"}
    assert labels.items() <= document["metadata"]["labels"].items()


def test_what_a_template_may_say_of_the_pod_itself() -> None:
    for name, ours, theirs, kept in (
        ("restartPolicy", "Never", "Always", False),
        ("hostname", "digits-small-0", "mine", False),
        ("subdomain", "digits", "mine", False),
        ("automountServiceAccountToken", False, True, True),
        ("enableServiceLinks", False, True, True),
    ):
        assert built()["spec"][name] == built(pod_spec={name: None})["spec"][name] == ours
        assert built(pod_spec={name: theirs})["spec"][name] == (theirs if kept else ours), name


def test_worker_learns_who_it_is() -> None:
    variables = environment(built())
    config = variables.pop(contract.ENV_CONFIG)
    assert TrainingConfig.from_json(config) == training_config(job(), "small")
    assert variables == {
        "HETEROTRAIN_JOB": "digits",
        "HETEROTRAIN_JOB_UID": JOB_UID,
        "HETEROTRAIN_WORKER": "digits-small-0",
        "HETEROTRAIN_GROUP": "small",
        "HETEROTRAIN_PLAN_DIR": "/var/run/heterotrain/plan",
        "HETEROTRAIN_GLOBAL_BATCH_SIZE": "192",
        "HETEROTRAIN_METRICS_PORT": "9400",
        "HETEROTRAIN_TERMINATION_LOG": "/dev/termination-log",
        "HETEROTRAIN_CPU_LIMIT": "0.25",
        "PYTHONUNBUFFERED": "1",
        "NVIDIA_VISIBLE_DEVICES": "none",
    }
    uid = {"name": "HETEROTRAIN_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    assert uid in trainer(built())["env"]


def test_worker_that_is_created_beside_training_is_to_warm_up_unless_its_template_says_otherwise() -> None:
    def told(**container: Any) -> str:
        return environment(build_pod(job(**container), JOB_UID, SMALL, secret="s", beside_training=True))[
            contract.ENV_WARM_UP
        ]

    assert told() == "1"
    assert told(env=[{"name": contract.ENV_WARM_UP, "value": "0"}]) == "0"
    assert contract.ENV_WARM_UP not in environment(built())


def test_variables_of_the_template_hold_unless_they_are_of_our_contract() -> None:
    theirs = {"PYTHONUNBUFFERED": "0", "HETEROTRAIN_SERIES": "/data/series"}
    forged = {
        "HETEROTRAIN_JOB": "x",
        "HETEROTRAIN_UID": "forged",
        contract.ENV_SECRET: "mine",
        "RUN": "$(HETEROTRAIN_UID)",
    }
    document = built(env=[{"name": name, "value": value} for name, value in {**theirs, **forged}.items()])
    assert theirs.items() <= environment(document).items()
    assert environment(document)["HETEROTRAIN_JOB"] == "digits"
    assert not {"HETEROTRAIN_UID", contract.ENV_SECRET} & environment(document).keys()
    names = [entry["name"] for entry in trainer(document)["env"]]
    assert names.index("HETEROTRAIN_UID") < names.index("RUN"), "the template's may refer to ours"


def test_environment_follows_the_job_and_not_the_number_of_its_workers() -> None:
    assert built() == built(groups(replicas=7))
    assert contract.ENV_GLOBAL_BATCH_SIZE not in environment(built({"batching": {"fixedGlobalBatch": False}}))
    assert contract.ENV_CPU_LIMIT not in environment(built(resources=None))


def test_dollar_sign_in_a_path_is_not_expanded_by_the_cluster() -> None:
    value = environment(built({"checkpoint": {"path": "/data/$(HOME)"}}))[contract.ENV_CONFIG]
    assert json.loads(value.replace("$$", "$"))["checkpoint_path"] == "/data/$(HOME)/digits"
    assert "$$(HOME)" in value


def test_last_words_are_the_log_and_where_the_template_says() -> None:
    assert environment(built(terminationMessagePath="/tmp/end"))[contract.ENV_TERMINATION_LOG] == "/tmp/end"
    assert trainer(built())["terminationMessagePolicy"] == "FallbackToLogsOnError"
    assert trainer(built(terminationMessagePolicy="File"))["terminationMessagePolicy"] == "File"


def test_metrics_port_is_declared_once() -> None:
    ours = {"name": "metrics", "containerPort": 9400, "protocol": "TCP"}
    for theirs in ({"name": "metrics", "containerPort": 8080}, {"containerPort": 9400}, {**ours, "name": "mine"}):
        assert trainer(built(ports=[theirs]))["ports"] == [ours]
    theirs = {"containerPort": 9400, "protocol": "UDP"}
    assert trainer(built(ports=[theirs]))["ports"] == [theirs, ours]


def test_plan_and_claim_are_mounted_and_the_plan_may_be_absent() -> None:
    document = built(
        {"checkpoint": {"path": "/checkpoints", "persistentVolumeClaim": "digits"}},
        pod_spec={"volumes": [{"name": "heterotrain-plan", "emptyDir": {}}]},
    )
    plan, claim = document["spec"]["volumes"]
    items = [{"key": "plan.json", "path": "plan.json"}]
    assert plan["configMap"] == {"name": "digits-plan", "optional": True, "items": items}
    assert claim["persistentVolumeClaim"] == {"claimName": "digits"}
    assert trainer(document)["volumeMounts"] == [
        {"name": plan["name"], "mountPath": "/var/run/heterotrain/plan", "readOnly": True},
        {"name": claim["name"], "mountPath": "/checkpoints"},
    ]
    assert json.loads(environment(document)[contract.ENV_CONFIG])["checkpoint_path"] == "/checkpoints/digits"
    assert len(built({"checkpoint": {"path": "/checkpoints"}})["spec"]["volumes"]) == 1


@pytest.mark.parametrize(
    "theirs",
    [
        {"limits": {"nvidia.com/mig-1g.5gb": "1"}},
        {"limits": {"nvidia.com/gpu.shared": "1"}},
        {"limits": {"amd.com/gpu": "1"}},
        {"requests": {"nvidia.com/gpu": "1"}},
        {"limits": {"nvidia.com/gpu": 0}},
        {"claims": [{"name": "gpu"}]},
    ],
    ids=str,
)
def test_gpu_worker_asks_for_one_gpu_unless_its_template_names_some(theirs: Document) -> None:
    usual = {"limits": {"cpu": "2"}, "requests": {"memory": "1Gi"}}
    for resources, asked in (
        (None, {"limits": {"nvidia.com/gpu": "1"}}),
        (usual, {**usual, "limits": {"cpu": "2", "nvidia.com/gpu": "1"}}),
        (theirs, theirs),
    ):
        container = {"name": "trainer", "image": "train:1", **({} if resources is None else {"resources": resources})}
        document = built(groups(device="gpu", template={"spec": {"containers": [container]}}))
        assert trainer(document)["resources"] == asked
        assert "NVIDIA_VISIBLE_DEVICES" not in environment(document)


def test_service_is_headless_and_finds_workers_before_they_are_ready() -> None:
    service = build_service(job(), JOB_UID)
    assert service["metadata"]["name"] == "digits"
    assert service["metadata"]["ownerReferences"] == [OWNER]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == {"trainer": 29500, "metrics": 9400}
    labels = built()["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()


def test_workers_reach_one_another_and_only_readers_of_metrics_reach_them() -> None:
    policy = build_policy(job(), JOB_UID, PEERS)["spec"]
    labels = build_pod(job(), JOB_UID, SMALL, secret="digits-s")["metadata"]["labels"]
    selected = policy["podSelector"]["matchLabels"]
    assert selected.items() <= labels.items()
    assert selected["heterotrain.dev/job-name"] == "digits", "workers of another job may not connect"
    assert policy["policyTypes"] == ["Ingress"]
    workers, metrics = policy["ingress"]
    assert workers == {"from": [{"podSelector": policy["podSelector"]}]}
    assert metrics == {"from": list(PEERS), "ports": [{"port": 9400, "protocol": "TCP"}]}


def test_ports_that_a_template_names_stay_open_but_for_that_of_the_rendezvous() -> None:
    ports = [{"containerPort": 29500}, {"containerPort": 6006, "protocol": "TCP"}, {"containerPort": 9400}]
    side = {"name": "side", "image": "i", "ports": [{"containerPort": 53, "protocol": "UDP"}]}
    containers = [{"name": "trainer", "image": "i", "ports": ports}, side]
    policy = build_policy(job(groups(template={"spec": {"containers": containers}})), JOB_UID, PEERS)
    assert policy["spec"]["ingress"][2]["ports"] == [
        {"port": 53, "protocol": "UDP"},
        {"port": 6006, "protocol": "TCP"},
    ]


PLAN = Plan(7, 2, "step", (Member("digits-small-0", "u1", "10.0.0.7:29500", "small", 192),))
MEMORY = Remembered(
    plan_version=7,
    generation=2,
    budget=RestartBudget(restarts=1),
    workers=(RememberedWorker(batch_cost=BatchCost(speed=12.5)),),
)


def as_shown(document: Document) -> Document:
    """The ConfigMap with what the API server adds."""
    return {**document, "metadata": {**document["metadata"], "resourceVersion": "42", "uid": "u9"}}


def test_what_is_written_is_read_back() -> None:
    written = build_plan_map(job(), JOB_UID, PLAN.to_json(), MEMORY.to_json())
    assert read_plan_map(as_shown(written)) == StoredPlan("42", PLAN, "", MEMORY, "")
    first = read_plan_map(as_shown(build_plan_map(job(), JOB_UID, None, MEMORY.to_json())))
    assert (first.plan, first.plan_problem, first.memory) == (None, "", MEMORY)
    assert read_plan_map(None) == StoredPlan()
    assert read_plan_map({"metadata": {"resourceVersion": "3"}, "data": None}) == StoredPlan("3")
    # The Service and the operator select workers by their role.
    assert "heterotrain.dev/job-role" not in written["metadata"]["labels"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "plan.json: not JSON"),
        ("[" * 100_000, "plan.json: is nested too deeply"),
        (PLAN.to_json().replace('"schema": 1', '"schema": 9'), "plan.json: schema: 9 is newer"),
        (PLAN.to_json().replace("192", "191", 1), "plan.json: globalBatchSize: 191"),
        ("{}", "memory.json: memory: schema None"),
        ('{"schema": 1, "restarts": "two"}', "memory.json: memory.restarts: expected a whole number"),
        ("[" * 100_000, "memory.json: memory: is nested too deeply"),
    ],
    ids=lambda text: text[:60],
)
def test_corrupt_part_is_reported_and_leaves_the_other(text: str, problem: str) -> None:
    if problem.startswith("plan"):
        stored = read_plan_map(as_shown(build_plan_map(job(), JOB_UID, text, MEMORY.to_json())))
        assert (stored.plan, stored.memory) == (None, MEMORY)
    else:
        stored = read_plan_map(as_shown(build_plan_map(job(), JOB_UID, PLAN.to_json(), text)))
        assert (stored.plan, stored.memory) == (PLAN, None)
    assert (stored.plan_problem or stored.memory_problem).startswith(problem)
