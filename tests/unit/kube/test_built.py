"""What is built for a job: its template passed through whole, what makes a worker of it, and nothing that changes."""

from __future__ import annotations

import json
from typing import Any

import kubernetes_validate
import pytest

from heterotrain import contract
from heterotrain.contract import TrainingConfig
from heterotrain_operator.api import HeteroTrainingJob, training_config
from heterotrain_operator.clusters.kube.objects.plan_map import build_plan_map
from heterotrain_operator.clusters.kube.objects.pods import build_pod
from heterotrain_operator.clusters.kube.objects.service import build_service
from heterotrain_operator.core.model import WorkerKey
from unit.kube.documents import JOB_UID, LARGE, SMALL, Document, groups, job, pod

KUBERNETES = "1.34"

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
        "labels": {"kueue.x-k8s.io/queue-name": "gold", "team": "vision", "heterotrain.dev/job-name": "another"},
        "annotations": {"scheduling.k8s.io/group-name": "digits", "sidecar.istio.io/inject": "false"},
    },
    "spec": {
        "nodeSelector": {"disk": "ssd"},
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}},
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "priorityClassName": "high",
        "schedulerName": "volcano",
        "runtimeClassName": "nvidia",
        "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}],
        "terminationGracePeriodSeconds": 120,
        "securityContext": {"runAsNonRoot": True, "fsGroup": 1000},
        "imagePullSecrets": [{"name": "registry"}],
        "initContainers": [{"name": "fetch", "image": "fetch:1"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        "containers": [
            {
                "name": "trainer",
                "image": "train:1",
                "securityContext": {"readOnlyRootFilesystem": True},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                "ports": [{"name": "debug", "containerPort": 5678}],
                "lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
            },
            {"name": "proxy", "image": "proxy:1", "env": [{"name": "HETEROTRAIN_JOB", "value": "its own"}]},
        ],
    },
}


def built(spec: Document | None = None, key: WorkerKey = SMALL, **template: Any) -> Document:
    """A pod of the job `digits`."""
    return build_pod(job(spec, **template), JOB_UID, key)


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
    ],
    ids=["as-shown", "pod", "whole-template", "with-claim", "service", "plan-map"],
)
def test_document_is_one_that_kubernetes_knows(document: Document) -> None:
    kubernetes_validate.validate(document, KUBERNETES, strict=True)


# --- metadata


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


def test_annotations_of_the_job_never_reach_its_children() -> None:
    theirs = job(metadata={"annotations": {"kopf.dev/x": "y"}})
    for document in (
        build_pod(theirs, JOB_UID, SMALL),
        build_service(theirs, JOB_UID),
        build_plan_map(theirs, JOB_UID, None, "{}"),
    ):
        assert "annotations" not in document["metadata"]


def test_labels_and_annotations_of_the_template_pass_but_for_ours() -> None:
    metadata = built(groups(template=WHOLE))["metadata"]
    assert metadata["labels"]["kueue.x-k8s.io/queue-name"] == "gold"
    assert metadata["labels"]["team"] == "vision"
    assert metadata["labels"]["heterotrain.dev/job-name"] == "digits"
    assert metadata["annotations"] == WHOLE["metadata"]["annotations"]


def test_unknown_group_is_named() -> None:
    with pytest.raises(ValueError, match="no worker group 'tiny'; it has small, large"):
        built(key=WorkerKey("tiny", 0, "digits-tiny-0"))


# --- the template


def test_template_passes_whole() -> None:
    spec = built(groups(template=WHOLE))["spec"]
    template = WHOLE["spec"]
    for name in template.keys() - {"containers", "volumes"}:
        assert spec[name] == template[name], name
    assert spec["containers"][1:] == template["containers"][1:]
    assert spec["volumes"][0] == template["volumes"][0]
    first = template["containers"][0]
    for name in first.keys() - {"volumeMounts", "ports"}:
        assert trainer({"spec": spec})[name] == first[name], name
    assert trainer({"spec": spec})["volumeMounts"][0] == first["volumeMounts"][0]
    assert trainer({"spec": spec})["ports"][0] == first["ports"][0]


def test_template_is_not_changed_by_building() -> None:
    made = job(groups(device="gpu", template=WHOLE))
    before = made.model_dump_json()
    first = build_pod(made, JOB_UID, SMALL)
    assert build_pod(made, JOB_UID, SMALL) == first
    assert made.model_dump_json() == before


@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
def test_pods_are_never_restarted_by_the_kubelet(policy: str) -> None:
    assert built(pod_spec={"restartPolicy": policy})["spec"]["restartPolicy"] == "Never"


def test_pod_has_no_token_and_no_service_links_unless_the_template_says_so() -> None:
    assert built()["spec"]["automountServiceAccountToken"] is False
    assert built()["spec"]["enableServiceLinks"] is False
    asked = built(pod_spec={"automountServiceAccountToken": True, "enableServiceLinks": True})["spec"]
    assert asked["automountServiceAccountToken"] is True
    assert asked["enableServiceLinks"] is True


def test_pod_has_a_dns_name_of_its_own() -> None:
    spec = built(pod_spec={"hostname": "mine"})["spec"]
    assert (spec["hostname"], spec["subdomain"]) == ("digits-small-0", "digits")


# --- the container that trains


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
        return environment(build_pod(job(**container), JOB_UID, SMALL, beside_training=True))[contract.ENV_WARM_UP]

    assert told() == "1"
    assert told(env=[{"name": contract.ENV_WARM_UP, "value": "0"}]) == "0"
    assert contract.ENV_WARM_UP not in environment(built())


def test_a_global_batch_that_may_change_is_not_in_the_environment() -> None:
    assert contract.ENV_GLOBAL_BATCH_SIZE not in environment(built({"batching": {"fixedGlobalBatch": False}}))


def test_nothing_in_the_environment_depends_on_the_number_of_workers() -> None:
    assert built() == built(groups(replicas=7))


def test_worker_without_a_cpu_limit_learns_of_none() -> None:
    assert contract.ENV_CPU_LIMIT not in environment(built(resources=None))


def test_variables_of_the_template_hold_unless_they_are_of_our_contract() -> None:
    theirs = {"PYTHONUNBUFFERED": "0", "EPOCHS": "3", "HETEROTRAIN_JOB": "x", "HETEROTRAIN_SERIES": "/data/series"}
    entries = [{"name": name, "value": value} for name, value in theirs.items()]
    entries.append({"name": "HETEROTRAIN_UID", "value": "forged"})
    variables = environment(built(env=entries))
    assert (variables["PYTHONUNBUFFERED"], variables["EPOCHS"]) == ("0", "3")
    assert variables["HETEROTRAIN_JOB"] == "digits"
    assert variables["HETEROTRAIN_SERIES"] == "/data/series"
    assert "HETEROTRAIN_UID" not in variables


def test_variables_of_the_template_may_refer_to_ours() -> None:
    names = [entry["name"] for entry in trainer(built(env=[{"name": "RUN", "value": "$(HETEROTRAIN_UID)"}]))["env"]]
    assert names.index("HETEROTRAIN_UID") < names.index("RUN")


def test_dollar_sign_in_a_path_is_not_expanded_by_the_cluster() -> None:
    value = environment(built({"checkpoint": {"path": "/data/$(HOME)"}}))[contract.ENV_CONFIG]
    assert json.loads(value.replace("$$", "$"))["checkpoint_path"] == "/data/$(HOME)/digits"
    assert "$$(HOME)" in value


def test_last_words_go_where_the_template_says() -> None:
    assert environment(built(terminationMessagePath="/tmp/end"))[contract.ENV_TERMINATION_LOG] == "/tmp/end"


def test_log_stands_for_last_words_unless_the_template_says_otherwise() -> None:
    assert trainer(built())["terminationMessagePolicy"] == "FallbackToLogsOnError"
    assert trainer(built(terminationMessagePolicy="File"))["terminationMessagePolicy"] == "File"


@pytest.mark.parametrize(
    "theirs",
    [
        {"name": "metrics", "containerPort": 8080},
        {"name": "mine", "containerPort": 9400},
        {"containerPort": 9400, "protocol": "TCP"},
    ],
    ids=str,
)
def test_metrics_port_is_declared_once(theirs: Document) -> None:
    assert trainer(built(ports=[theirs]))["ports"] == [{"name": "metrics", "containerPort": 9400, "protocol": "TCP"}]


def test_other_ports_stay_beside_it() -> None:
    udp = {"containerPort": 9400, "protocol": "UDP"}
    assert trainer(built(ports=[udp]))["ports"][0] == udp


def test_only_the_plan_is_mounted_and_may_be_absent() -> None:
    document = built()
    (volume,) = document["spec"]["volumes"]
    assert volume["configMap"] == {
        "name": "digits-plan",
        "optional": True,
        "items": [{"key": "plan.json", "path": "plan.json"}],
    }
    assert trainer(document)["volumeMounts"] == [
        {"name": volume["name"], "mountPath": "/var/run/heterotrain/plan", "readOnly": True}
    ]


def test_claim_is_mounted_where_checkpoints_are_kept() -> None:
    document = built({"checkpoint": {"path": "/checkpoints", "persistentVolumeClaim": "digits"}})
    volume = document["spec"]["volumes"][-1]
    assert volume["persistentVolumeClaim"] == {"claimName": "digits"}
    assert trainer(document)["volumeMounts"][-1] == {"name": volume["name"], "mountPath": "/checkpoints"}
    assert json.loads(environment(document)[contract.ENV_CONFIG])["checkpoint_path"] == "/checkpoints/digits"


def test_path_without_a_claim_mounts_nothing_of_ours() -> None:
    assert len(built({"checkpoint": {"path": "/checkpoints"}})["spec"]["volumes"]) == 1


def test_volume_of_the_template_under_a_name_of_ours_gives_way() -> None:
    theirs = [{"name": "heterotrain-plan", "emptyDir": {}}]
    (volume,) = built(pod_spec={"volumes": theirs})["spec"]["volumes"]
    assert "configMap" in volume


# --- devices


def gpu_job(resources: Document | None) -> HeteroTrainingJob:
    container: Document = {"name": "trainer", "image": "train:1"}
    if resources is not None:
        container["resources"] = resources
    return job(groups(device="gpu", template={"spec": {"containers": [container]}}))


@pytest.mark.parametrize("resources", [None, {}, {"limits": {"cpu": "2"}, "requests": {"memory": "1Gi"}}], ids=str)
def test_gpu_worker_asks_for_one_gpu(resources: Document | None) -> None:
    found = trainer(build_pod(gpu_job(resources), JOB_UID, SMALL))["resources"]
    before = resources or {}
    assert found == {**before, "limits": {**before.get("limits", {}), "nvidia.com/gpu": "1"}}


@pytest.mark.parametrize(
    "resources",
    [
        {"limits": {"nvidia.com/gpu": 2}},
        {"limits": {"nvidia.com/mig-1g.5gb": "1"}},
        {"limits": {"nvidia.com/gpu.shared": "1"}},
        {"limits": {"amd.com/gpu": "1"}},
        {"requests": {"nvidia.com/gpu": "1"}},
        {"limits": {"nvidia.com/gpu": 0}},
        {"claims": [{"name": "gpu"}]},
    ],
    ids=str,
)
def test_gpu_worker_asks_for_what_its_template_names(resources: Document) -> None:
    assert trainer(build_pod(gpu_job(resources), JOB_UID, SMALL))["resources"] == resources


def test_gpus_are_hidden_from_cpu_workers_only() -> None:
    assert environment(built())["NVIDIA_VISIBLE_DEVICES"] == "none"
    assert "NVIDIA_VISIBLE_DEVICES" not in environment(build_pod(gpu_job(None), JOB_UID, SMALL))


def test_cpu_worker_asks_for_no_gpu() -> None:
    assert trainer(built(key=LARGE))["resources"] == {
        "requests": {"cpu": "100m"},
        "limits": {"cpu": "250m", "memory": "256Mi"},
    }


# --- the Service


def test_service_is_headless_and_finds_workers_before_they_are_ready() -> None:
    service = build_service(job(), JOB_UID)
    assert service["metadata"]["name"] == "digits"
    assert service["metadata"]["ownerReferences"] == [OWNER]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == {"trainer": 29500, "metrics": 9400}
    labels = built()["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
