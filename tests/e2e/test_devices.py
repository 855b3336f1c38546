"""CPU and GPU workers in one job: who is placed where, what each may see, and what a GPU that is missing leads to."""

from __future__ import annotations

import pytest

from e2e.api import Document
from e2e.cluster import Cluster, entry_of
from e2e.conftest import Apply
from e2e.manifests import group, job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

ON_GPU_NODE = {
    "nodeSelector": {"heterotrain.dev/machine": "gpu"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
}


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
    insisting = apply(job("insisting", gpu_group("Fail"), group("cpu", "300m"), runPolicy={"backoffLimit": 0}))
    status = insisting.wait_for_phase("Failed")
    assert "torch finds no GPU" in status["reason"]
    assert insisting.pod_name("gpu") in status["reason"]
    assert insisting.condition("Failed")["reason"] == "BackoffLimitExceeded"
    assert "onMissingDevice" in insisting.wait_for_event("WorkerFailed", 10)["message"]
