"""Pods are read as workers: what they do, how they end, why they wait, and whose fault it was."""

from __future__ import annotations

from typing import Any

import pytest

from heterotrain.contract import Termination
from heterotrain_operator.clusters.kube.observe.pod_facts import NO_INDEX, PodFacts, pod_facts
from heterotrain_operator.clusters.kube.observe.workers import worker_seen
from heterotrain_operator.core.model import WorkerMetrics
from unit.kube.documents import JOB_UID, Document, merged, pod, read

CASES: list[Document] = read("ended_pods.yaml")
METRICS = WorkerMetrics(plan_version=3, batch_size=96, phase="training")
NOON = 1769860800.0  # 2026-01-31T12:00:00Z


def changed(case: Document) -> Document:
    """The pod of a case: pod.yaml with the case's status, and the states of its containers."""
    document = pod({"status": case["status"]})
    states = {name: case[name] for name in ("trainer", "sidecar") if name in case}
    if not states:
        return document
    (trainer,) = read("pod.yaml")["status"]["containerStatuses"]
    statuses = [{**trainer, "state": states["trainer"]}]
    if "sidecar" in states:
        document["spec"]["containers"].append({"name": "proxy", "image": "proxy:1"})
        # The kubelet sorts statuses by name, whatever the order of the containers is.
        statuses.insert(0, {"name": "proxy", "state": states["sidecar"]})
    return merged(document, {"status": {"containerStatuses": statuses}})


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_state_of_a_pod_is_reported(case: Document) -> None:
    facts = pod_facts(changed(case))
    assert {name: getattr(facts, name) for name in case["facts"]} == case["facts"]


def test_training_pod_is_read_in_full() -> None:
    assert pod_facts(pod()) == PodFacts(
        name="digits-small-0",
        uid="0b7c1d5e-5d0c-4b0e-9a52-6a7f1f3c2a10",
        namespace="team-a",
        job="digits",
        group="small",
        index=0,
        owner_uid=JOB_UID,
        created_at=NOON,
        phase="Running",
        ip="10.244.2.5",
        node="kind-worker2",
        cpu_limit=0.25,
        grace_seconds=30.0,
        ready_to_scrape=True,
    )


@pytest.mark.parametrize(
    ("ip", "address", "metrics"),
    [
        ("10.244.2.5", "10.244.2.5:29500", "10.244.2.5:9400"),
        ("fd00::5", "[fd00::5]:29500", "[fd00::5]:9400"),
        (None, "", ""),
    ],
)
def test_addresses_follow_from_the_pod_ip(ip: str | None, address: str, metrics: str) -> None:
    facts = pod_facts(pod({"status": {"podIP": ip}}))
    assert (facts.address, facts.metrics_address) == (address, metrics)


def test_resize_in_place_counts_once_the_kubelet_has_applied_it() -> None:
    asked = pod({"spec": {"containers": [{"name": "trainer", "resources": {"limits": {"cpu": "1"}}}]}})
    assert pod_facts(asked).cpu_limit == 0.25
    (status,) = read("pod.yaml")["status"]["containerStatuses"]
    applied = {**status, "resources": {"limits": {"cpu": "1"}}}
    assert pod_facts(merged(asked, {"status": {"containerStatuses": [applied]}})).cpu_limit == 1.0


@pytest.mark.parametrize("resources", [{}, {"limits": {"memory": "1Gi"}}, {"limits": {"cpu": "0"}}])
def test_pod_without_a_limit_has_none(resources: Document) -> None:
    container = {"name": "trainer", "resources": resources}
    facts = pod_facts(pod({"spec": {"containers": [container]}, "status": {"containerStatuses": None}}))
    assert facts.cpu_limit is None


def test_out_of_memory_without_a_limit_says_that_the_node_ran_out() -> None:
    killed = {"name": "trainer", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    container = {"name": "trainer"}
    facts = pod_facts(
        pod({"spec": {"containers": [container]}, "status": {"phase": "Failed", "containerStatuses": [killed]}})
    )
    assert facts.message == "out of memory (it has no limit; its node ran out)"


def test_allocation_that_failed_is_known_by_the_last_words() -> None:
    words = Termination(finished=False, message="OutOfMemoryError: CUDA out of memory", out_of_memory=True)
    ended = {"exitCode": 1, "reason": "Error", "message": words.to_json()}
    failed = {"name": "trainer", "state": {"terminated": ended}}
    facts = pod_facts(pod({"status": {"phase": "Failed", "containerStatuses": [failed]}}))
    assert facts.out_of_memory
    assert facts.message == "OutOfMemoryError: CUDA out of memory"


def test_container_that_an_admission_controller_put_first_is_not_the_trainer() -> None:
    document = pod()
    document["spec"]["containers"].insert(0, {"name": "istio-proxy", "resources": {"limits": {"cpu": "2"}}})
    ended = {"name": "istio-proxy", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}
    document["status"]["containerStatuses"].append(ended)
    facts = pod_facts(document)
    assert (facts.phase, facts.exit_code, facts.cpu_limit) == ("Running", None, 0.25)


def test_deleted_pod_is_disrupted_and_tells_when_its_grace_ends() -> None:
    deleted = {"deletionTimestamp": "2026-01-31T12:00:40Z", "deletionGracePeriodSeconds": 10}
    facts = pod_facts(pod({"metadata": deleted}))
    # Its own is 30 s: for so long it may run on, if its node does not answer.
    assert (facts.deleting_since, facts.grace_seconds) == (NOON + 40 + 20, 10.0)
    assert facts.disrupted
    assert facts.message == "is being deleted"
    assert facts.ready_to_scrape  # it trains on until its grace ends


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("PreemptionByScheduler", "default-scheduler: preempting to accommodate a higher priority pod"),
        ("EvictionByEvictionAPI", "Eviction API: evicting"),
        ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"),
    ],
)
def test_disruption_is_reported_in_the_words_of_who_disrupts(reason: str, message: str) -> None:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
    facts = pod_facts(pod({"status": {"conditions": [condition]}}))
    assert facts.disrupted
    assert facts.message == f"{reason}: {message}"


def test_pod_that_is_gone_was_disrupted_whoever_deleted_it() -> None:
    facts = pod_facts(pod(), gone=True)
    assert facts.gone
    assert facts.disrupted
    assert facts.message == ""


def test_disruption_that_was_called_off_is_none() -> None:
    condition = {"type": "DisruptionTarget", "status": "False", "reason": "EvictionByEvictionAPI"}
    assert not pod_facts(pod({"status": {"conditions": [condition]}})).disrupted


WAITING = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}


@pytest.mark.parametrize(
    ("changes", "gated"),
    [
        ({"spec": {"nodeName": None}, "status": WAITING}, True),
        ({"spec": {"nodeName": None, "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}}, True),
        ({"spec": {"nodeName": None, "schedulingGates": []}, "status": {"phase": "Pending"}}, False),
        ({"spec": {"nodeName": "node-1"}, "status": WAITING}, False),
    ],
    ids=["condition", "gate", "none", "placed"],
)
def test_pod_behind_a_scheduling_gate_is_known(changes: Document, gated: bool) -> None:
    facts = pod_facts(pod(changes))
    assert facts.gated == gated
    assert worker_seen(facts, None, node_lost=False).gated == gated


@pytest.mark.parametrize("label", ["-1", "one", "", "²"])
def test_spoilt_index_is_no_error(label: str) -> None:
    assert pod_facts(pod({"metadata": {"labels": {"heterotrain.dev/worker-index": label}}})).index == NO_INDEX


def test_pod_that_no_job_controls_has_no_owner() -> None:
    assert not pod_facts(pod({"metadata": {"ownerReferences": None}})).owner_uid


def test_long_log_is_cut_to_its_end() -> None:
    words = {"terminated": {"exitCode": 1, "reason": "Error", "message": "x" * 3000 + " the cause"}}
    facts = pod_facts(changed({"status": {"phase": "Failed"}, "trainer": words}))
    assert facts.message.endswith("the cause")
    assert len(facts.message) == 500


# --- as the core sees it


def test_worker_bears_what_the_pod_says_and_what_it_measures() -> None:
    seen = worker_seen(pod_facts(pod()), METRICS, node_lost=False)
    assert (seen.name, seen.group, seen.index, seen.phase) == ("digits-small-0", "small", 0, "Running")
    assert (seen.address, seen.cpu_limit, seen.node) == ("10.244.2.5:29500", 0.25, "kind-worker2")
    assert seen.metrics == METRICS
    assert not seen.disrupted


def test_worker_of_a_lost_node_is_disrupted() -> None:
    seen = worker_seen(pod_facts(pod()), None, node_lost=True)
    assert seen.node_lost
    assert seen.disrupted


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Unknown"},
        {"phase": "Pending"},
        {"podIP": None},
        {"phase": "Failed", "reason": "Evicted", "containerStatuses": None},
    ],
    ids=str,
)
def test_metrics_of_a_pod_that_cannot_serve_any_are_left_out(status: dict[str, Any]) -> None:
    assert worker_seen(pod_facts(pod({"status": status})), METRICS, node_lost=False).metrics is None
