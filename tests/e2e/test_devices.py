"""CPU and GPU workers in one job: who is placed where, what each may see, and what a GPU that is missing leads to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.api import Document
from e2e.cluster import Cluster, entry_of
from e2e.conftest import Apply
from e2e.history import History
from e2e.manifests import IMAGE, RESTRICTED_CONTAINER, RESTRICTED_POD, group, job
from e2e.members import assert_only_replaced, wait_for_members
from e2e.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

ON_GPU_NODE = {
    "nodeSelector": {"heterotrain.dev/machine": "gpu"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
}


IMPORTANT = "heterotrain-e2e-important"


@pytest.fixture
def priority(cluster: Cluster) -> Iterator[str]:
    """The name of a priority above that of all workers."""
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    cluster.apply({**kind, "metadata": {"name": IMPORTANT}, "value": 1000, "description": "Takes workers' GPUs."})
    yield IMPORTANT
    cluster.kubectl("delete", "priorityclass", IMPORTANT)


def greedy_pod(namespace: str, priority: str, gpus: str) -> Document:
    """Nobody's worker, which needs so many GPUs."""
    container = {
        "name": "greedy",
        "image": IMAGE,
        "command": ["sleep", "600"],
        "resources": {"limits": {"nvidia.com/gpu": gpus}},
        "securityContext": RESTRICTED_CONTAINER,
    }
    spec = {"priorityClassName": priority, "securityContext": RESTRICTED_POD, "containers": [container], **ON_GPU_NODE}
    metadata = {"name": "greedy", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def gpu_group(on_missing_device: str) -> Document:
    """A worker for the node whose GPUs only the scheduler sees."""
    return group("gpu", "600m", device="gpu", onMissingDevice=on_missing_device, pod=ON_GPU_NODE)


def trainer(pod: Document) -> Document:
    """The container that trains."""
    found: Document = entry_of(pod["spec"]["containers"], "name", "trainer")
    return found


def test_cpu_and_gpu_workers_train_together(apply: Apply, cluster: Cluster) -> None:
    mixed = apply(job("mixed", gpu_group("UseCPU"), group("cpu", "300m"), steps=40))
    mixed.wait_for_phase("Running")
    gpu, cpu = mixed.pod("gpu"), mixed.pod("cpu")
    gpu_nodes = {node["metadata"]["name"] for node in cluster.nodes("heterotrain.dev/machine=gpu")}

    assert gpu["spec"]["nodeName"] in gpu_nodes
    assert trainer(gpu)["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert entry_of(trainer(gpu)["env"], "name", "NVIDIA_VISIBLE_DEVICES") == {}
    assert cpu["spec"]["nodeName"] not in gpu_nodes
    assert "nvidia.com/gpu" not in trainer(cpu)["resources"]["limits"]
    assert entry_of(trainer(cpu)["env"], "name", "NVIDIA_VISIBLE_DEVICES")["value"] == "none"

    status = mixed.wait_for_phase("Succeeded")
    assert {worker["node"] for worker in status["workers"]} == {gpu["spec"]["nodeName"], cpu["spec"]["nodeName"]}


def test_missing_gpu_ends_a_job_that_insists_on_it(apply: Apply) -> None:
    insisting = apply(job("insisting", gpu_group("Fail"), group("cpu", "300m"), runPolicy={"backoffLimit": 3}))
    status = insisting.wait_for_phase("Failed")
    assert "torch finds no GPU" in status["reason"]
    assert insisting.pod_name("gpu") in status["reason"]
    assert insisting.condition("Failed")["reason"] == "DeviceMissing"
    assert "onMissingDevice" in insisting.wait_for_event("DeviceMissing", 10)["message"]
    assert status["restarts"] == 0


def test_preempted_gpu_worker_waits_for_a_gpu_without_counting(apply: Apply, cluster: Cluster, priority: str) -> None:
    (node,) = cluster.nodes("heterotrain.dev/machine=gpu")
    all_gpus = node["status"]["allocatable"]["nvidia.com/gpu"]
    struck = apply(job("preempted", gpu_group("UseCPU"), group("cpu", "300m"), checkpoint={"keep": 100}))
    with History(struck) as history:
        struck.wait_for_step(30)
        cluster.apply(greedy_pod(struck.namespace, priority, all_gpus))
        event = struck.wait_for_event("WorkerDisrupted", 60)
        wait_for(
            lambda: "nvidia.com/gpu" in struck.worker("gpu", 1).get("message", ""), 90, "the worker to wait for a GPU"
        )
        alone = struck.step()
        struck.wait_for_step(alone + 5)
        where = f"--namespace={struck.namespace}"
        cluster.kubectl("delete", "pod", "greedy", where, "--grace-period=1")
        wait_for_members(struck, 2)
    assert struck.pod_name("gpu") in event["message"]
    assert "PreemptionByScheduler" in event["message"]
    assert_only_replaced(struck, history, "cpu")
