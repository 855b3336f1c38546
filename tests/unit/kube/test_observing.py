"""What a cluster shows of a job: pods as workers, nodes that are lost, and members that a watch does not show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heterotrain.contract import Member
from heterotrain_operator.clusters.kube.api_server.gateway import Gateway, GatewayError
from heterotrain_operator.clusters.kube.objects.names import PLAN_KEY
from heterotrain_operator.clusters.kube.observe.job_pods import Absences
from heterotrain_operator.clusters.kube.observe.nodes import FRESH_SECONDS, Nodes
from heterotrain_operator.clusters.kube.observe.pod_facts import PodFacts, pod_facts, worker_seen
from heterotrain_operator.clusters.kube.observe.watched import Index
from heterotrain_operator.core.model import WorkerMetrics
from kube_server.api_server import ApiServer, Document, StatusError, merged
from unit.kube.documents import JOB_UID, pod, read
from unit.kube.worlds import NAMES, World, refusing, written

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


def facts_of(**status: Any) -> PodFacts:
    """Of a worker's pod that trains, but for this of its status."""
    return pod_facts(pod({"status": status}))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_state_of_a_pod_is_reported(case: Document) -> None:
    facts = pod_facts(changed(case))
    assert {name: getattr(facts if hasattr(facts, name) else facts.words, name) for name in case["facts"]} == case[
        "facts"
    ]


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


def test_addresses_follow_from_the_pod_ip() -> None:
    for ip, address in (("10.244.2.5", "10.244.2.5:29500"), ("fd00::5", "[fd00::5]:29500"), (None, "")):
        assert facts_of(podIP=ip).address == address
        assert facts_of(podIP=ip).metrics_address == address.replace("29500", "9400")


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
    assert facts.words.message == "is being deleted"
    assert facts.ready_to_scrape  # it trains on until its grace ends


def test_disruption_is_reported_in_the_words_of_who_disrupts_unless_it_was_called_off() -> None:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "Eviction", "message": "evicting"}
    facts, off = (facts_of(conditions=[condition | {"status": status}]) for status in ("True", "False"))
    assert (facts.disrupted, facts.words.message) == (True, "Eviction: evicting")
    assert (off.disrupted, off.words.message) == (False, "")
    gone = pod_facts(pod(), gone=True)  # whoever deleted it
    assert (gone.gone, gone.disrupted, gone.words.message) == (True, True, "")
    lost = worker_seen(pod_facts(pod()), None, node_lost=True)
    assert (lost.node_lost, lost.disrupted) == (True, True)


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
    assert facts.gated == worker_seen(facts, None, node_lost=False).gated == gated


def test_long_log_is_cut_to_its_end() -> None:
    words = {"terminated": {"exitCode": 1, "reason": "Error", "message": "x" * 3000 + " the cause"}}
    facts = pod_facts(changed({"status": {"phase": "Failed"}, "trainer": words}))
    assert facts.words.message.endswith("the cause")
    assert len(facts.words.message) == 500


def test_resize_in_place_counts_once_the_kubelet_has_applied_it() -> None:
    resources = {"limits": {"cpu": "1"}}
    asked = pod({"spec": {"containers": [{"name": "trainer", "resources": resources}]}})
    assert pod_facts(asked).cpu_limit == 0.25
    (status,) = read("pod.yaml")["status"]["containerStatuses"]
    applied = {"status": {"containerStatuses": [{**status, "resources": resources}]}}
    assert pod_facts(merged(asked, applied)).cpu_limit == 1.0


def test_metrics_of_a_pod_that_cannot_serve_any_are_left_out() -> None:
    assert worker_seen(facts_of(), METRICS, node_lost=False).metrics == METRICS
    for status in ({"phase": "Unknown"}, {"podIP": None}, {"phase": "Failed", "containerStatuses": None}):
        assert worker_seen(facts_of(**status), METRICS, node_lost=False).metrics is None, status


@pytest.mark.parametrize(
    ("kind", "status", "lost"),
    [
        ("Ready", "True", False),
        ("Ready", "False", True),
        ("Ready", "Unknown", True),
        ("MemoryPressure", "True", False),
    ],
)
def test_node_is_lost_unless_it_is_ready(gateway: Gateway, api: ApiServer, kind: str, status: str, lost: bool) -> None:
    conditions = [{"type": kind, "status": status}]
    api.put("nodes", {"metadata": {"name": "n"}, "status": {"conditions": conditions}}, "")
    assert Nodes(gateway).lost("n", 0.0) is lost


def test_answer_holds_for_a_moment_and_for_each_node_its_own(gateway: Gateway, api: ApiServer) -> None:
    nodes = Nodes(gateway)
    api.put("nodes", {"metadata": {"name": "n"}, "status": {}}, "")
    assert not nodes.lost("n", 100.0)
    api.remove("nodes", "n", "")
    assert not nodes.lost("n", 100.0 + FRESH_SECONDS / 2)
    assert nodes.lost("other", 100.0)
    assert len(api.reads) == 2
    assert nodes.lost("n", 100.0 + FRESH_SECONDS)


def test_nodes_that_must_not_be_read_are_not_lost_and_reported_once(
    gateway: Gateway, api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    nodes, asked = Nodes(gateway), []

    def refuse(verb: str, plural: str, name: str) -> None:
        asked.append(name)
        raise StatusError(403, "Forbidden", "nodes is forbidden")

    api.refuse = refusing("get", "nodes", 503)
    with pytest.raises(GatewayError):
        nodes.lost("n", 0.0)
    api.refuse = refuse
    for seconds in (0.0, 1.0, 2.0, 60.0):
        assert not nodes.lost("n", seconds)
    assert len(caplog.records) == 1
    assert "nodes is forbidden" in caplog.text
    assert len(asked) == 2


def test_objects_are_found_by_their_job_as_they_were_put_last() -> None:
    ours, theirs, index = ("team-a", "a"), ("team-a", "b"), Index[str]()
    for uid, value in (("1", "old"), ("2", "other"), ("1", "new")):
        index.put(ours, uid, value)
    assert (sorted(index.of(ours)), index.of(theirs)) == (["new", "other"], [])
    index.put(theirs, "1", "another job's now")
    assert (index.of(ours), index.of(theirs)) == (["other"], ["another job's now"])
    for _ in range(2):
        index.remove("2")
    assert index.of(ours) == []


LEADER = NAMES[0]


def test_member_that_an_index_lacks_after_a_takeover_costs_nobody_anything(world: World, api: ApiServer) -> None:
    world.train()
    lacking = [pod for pod in world.pods if pod.name != LEADER]
    for takeover in (True, False, True):
        if takeover:
            world.restart_operator()
        world.workers.train()
        decision = world.round(pods=lacking)
        assert (decision.phase, decision.delete, decision.create) == ("Running", (), ())
    assert written(api, "pods") == []
    assert len(world.status["workers"]) == 3


def test_members_that_are_gone_are_asked_for_once(world: World, api: ApiServer) -> None:
    world.train()
    api.remove("pods", LEADER, watched=False)
    owners = [{"kind": "HeteroTrainingJob", "name": "digits", "uid": world.uid, "controller": True}]
    api.put("pods", {"metadata": {"name": LEADER, "ownerReferences": owners}})  # another pod than the member
    api.reads.clear()
    assert world.round(pods=[pod for pod in world.pods if pod.name != LEADER]).phase == "Restarting"
    api.remove("pods", LEADER)
    for _ in range(5):
        world.end_pods()
        world.round(0.1)
    assert sorted(name for _, kind, name in api.reads if kind == "pods") == sorted(NAMES)


def test_pod_that_lost_its_label_is_still_there(world: World) -> None:
    world.train()
    others = [pod for pod in world.pods if pod.name != LEADER]
    (leader,) = (pod for pod in world.pods if pod.name == LEADER)
    world.workers.train()
    assert world.round(pods=[*others, replace(leader, gone=True)]).phase == "Running"
    assert world.round(pods=others).phase == "Running"


def test_worker_that_an_index_lacks_is_no_reason_to_give_up_a_lost_plan(world: World, api: ApiServer) -> None:
    world.train()
    api.remove("configmaps", "digits-plan")
    decision = world.round(20, pods=[pod for pod in world.pods if pod.name != LEADER])
    assert (decision.phase, decision.delete) == ("Running", ())
    assert decision.plan is not None
    assert len(decision.plan.members) == 3


def test_plan_that_names_what_is_no_pod_asks_for_nothing(world: World, api: ApiServer) -> None:
    world.train()
    unknown = replace(world.plan.members[0], name="../secrets/token", uid="none")
    forged = replace(world.plan, members=(*world.plan.members, unknown))
    api.change("configmaps", "digits-plan", {"data": {PLAN_KEY: forged.to_json()}})
    api.reads.clear()
    world.round()
    assert {kind for _, kind, _ in api.reads} <= {"configmaps", "heterotrainingjobs"}


def test_many_absent_members_are_asked_for_at_once(gateway: Gateway, api: ApiServer) -> None:
    members = [Member(f"digits-small-{rank}", f"uid-{rank}", "", "small", 1) for rank in range(40)]
    absences = Absences(gateway, "team-a", "digits", "the job")
    assert absences.members(members, {}) == []
    assert absences.members(members, {}) == []
    assert [verb for verb, _, _ in api.reads] == ["list"]
