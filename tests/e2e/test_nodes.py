"""Whatever befalls nodes befalls only the workers there: whether those are preempted, drained or lost, the others train
on, no pod of theirs starts again, and other workers join them.

Other tests run beside these, on the fast machine: nothing is placed on the others that does not ask for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from e2e.api import Document
from e2e.cluster import Cluster
from e2e.conftest import Apply
from e2e.history import History
from e2e.jobs import JobOnCluster
from e2e.manifests import KEEP_ALL, group, job
from e2e.members import (
    REPLACED_SECONDS,
    assert_no_step_lost,
    assert_only_replaced,
    uids,
    wait_for_members,
    wait_for_successor,
    without,
)
from e2e.nodes import Nodes
from e2e.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

DRAINING = (
    "--ignore-daemonsets",
    "--delete-emptydir-data",
    "--force",
    "--timeout=120s",
    "--pod-selector=heterotrain.dev/job-name",  # pods of the tests themselves run there, too
)


def test_cordoned_node_keeps_its_worker_until_it_is_drained_which_does_not_count(
    apply: Apply, cluster: Cluster, nodes: Nodes
) -> None:
    left = nodes.named("slow")
    struck = apply(on_slow_node())
    try:
        with History(struck) as history:
            reached = struck.wait_for_step(30)
            before = struck.pod("small")
            assert before["spec"]["nodeName"] == left
            cluster.kubectl("cordon", left)
            struck.wait_for_step(reached + 30)
            assert struck.pod("small")["metadata"]["uid"] == before["metadata"]["uid"]
            assert {plan.generation for plan in history.plans.values()} == {1}
            cluster.kubectl("drain", left, *DRAINING, seconds=150)
            index = wait_for_successor(struck, "small")
    finally:
        nodes.restore()
    assert struck.pod("small", index)["spec"]["nodeName"] != left
    assert "WorkerDisrupted" in {event["reason"] for event in struck.events()}
    assert_only_replaced(struck, history, "large")


@pytest.mark.parametrize(
    ("lose", "said"),
    [
        (Nodes.stop, {"WorkerDisrupted": "does not answer"}),
        # It may be gone before its worker can say anything.
        (Nodes.shut_down, {"AskedToStop": "asked to stop", "WorkerDisrupted": "does not answer"}),
    ],
    ids=["plug", "shutdown"],
)
def test_lost_node_is_left_without_counting(
    apply: Apply, cluster: Cluster, nodes: Nodes, lose: Callable[[Nodes, str], None], said: dict[str, str]
) -> None:
    """The others may say that the worker there answers nobody before the cluster says so of the node."""
    lost = nodes.named("slow")
    struck = apply(on_slow_node(runPolicy={"backoffLimit": 0}))

    def is_told() -> bool:
        return any(words in event["message"] for reason, words in said.items() for event in struck.events(reason))

    try:
        with History(struck) as history:
            struck.wait_for_step(30)
            assert struck.pod("small")["spec"]["nodeName"] == lost
            # No successor lands there before the cluster knows, to be lost as well.
            cluster.kubectl("cordon", lost)
            lose(nodes, lost)
            index = wait_for_successor(struck, "small")
            wait_for(lambda: not cluster.node_is_ready(lost), 90, f"node {lost} to count as lost")
            wait_for(is_told, 90, f"an event {' or '.join(said)}")
    finally:
        nodes.restore()
    assert struck.pod("small", index)["spec"]["nodeName"] != lost
    assert_only_replaced(struck, history, "large")
    # The node is back, and so is nothing of what ran there.
    assert len(struck.pods()) == 2


def on_slow_node(**spec: Any) -> Document:
    """Two workers, the small one on the slow machine as long as that is open for pods."""
    preferred = {"matchExpressions": [{"key": "heterotrain.dev/machine", "operator": "In", "values": ["slow"]}]}
    affinity = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": preferred}]}
    pod = {
        "affinity": {"nodeAffinity": affinity},
        "tolerations": [{"key": "heterotrain.dev/machine", "operator": "Exists"}],
    }
    fast = {"nodeSelector": {"heterotrain.dev/machine": "fast"}}
    return job("digits", group("large", "600m", pod=fast), group("small", "300m", pod=pod), checkpoint=KEEP_ALL, **spec)


def test_the_others_train_on_over_evictions_a_drained_and_a_lost_node(
    apply: Apply, cluster: Cluster, nodes: Nodes
) -> None:
    struck = apply(spread())
    try:
        with History(struck) as history:
            struck.wait_for_step(20)
            assert len(struck.plan.members) == 4

            preempted = {struck.pod_name("slow", 1), struck.pod_name("gpu")}
            before = uids(struck)
            evict(struck, *preempted)
            wait_for_successors(struck, history, before, preempted)

            drained = nodes.named("gpu")
            on_it = names_on(struck, drained)
            assert on_it, "no worker is where one is to be drained"
            before = uids(struck)
            cluster.kubectl("drain", drained, *DRAINING, seconds=150)
            wait_for_successors(struck, history, before, on_it)
            assert not names_on(struck, drained)
            cluster.kubectl("uncordon", drained)

            lost = nodes.named("slow")
            on_it = names_on(struck, lost)
            assert on_it, "no worker is where one is to be lost"
            before = uids(struck)
            nodes.stop(lost)
            wait_for_successors(struck, history, before, on_it)
            assert not names_on(struck, lost) - on_it
            stay = without(uids(struck), *on_it)
            nodes.start(lost)
            wait_for(lambda: not names_on(struck, lost), 120, "what ran on the node that is back to go")
            struck.wait_for_step(struck.step() + 20)
            assert uids(struck) == stay
    finally:
        nodes.restore()
    # Names are taken again once they are free, so that only those that stayed tell whether anything started again.
    assert history.pods_made()[struck.pod_name("fast")] == 1
    assert [phase for phase in history.phases if phase != "Created"] == ["Running"]
    assert struck.status["restarts"] == 0
    records = struck.records("fast")
    assert_no_step_lost(records)
    gaps = sorted(later.time - sooner.time for sooner, later in pairwise(records))
    print(f"the longest times between two steps were {gaps[-4:]} s, the usual one {gaps[len(gaps) // 2]:.2f} s")


def spread() -> Document:
    """Four workers: one stays on the fast machine, two are rather on the slow one, and one on that with GPUs."""
    fast = {"nodeSelector": {"heterotrain.dev/machine": "fast"}}
    return job(
        "digits",
        group("fast", "400m", pod=fast),
        group("slow", "200m", pod=rather_on("slow", "fast"), replicas=2),
        group("gpu", "200m", pod=rather_on("gpu", "fast")),
    )


def rather_on(machine: str, *others: str) -> Document:
    """Makes pods prefer one machine, and take others as long as it is closed."""
    label = "heterotrain.dev/machine"
    preferred = {"matchExpressions": [{"key": label, "operator": "In", "values": [machine]}]}
    possible = {"matchExpressions": [{"key": label, "operator": "In", "values": [machine, *others]}]}
    affinity = {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": preferred}],
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [possible]},
    }
    tolerations = [{"key": key, "operator": "Exists"} for key in (label, "nvidia.com/gpu")]
    return {"affinity": {"nodeAffinity": affinity}, "tolerations": tolerations}


def evict(struck: JobOnCluster, *names: str) -> None:
    """Ask the eviction API to take pods away, all at the same moment."""

    def ask(name: str) -> None:
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": struck.namespace},
        }
        path = f"/api/v1/namespaces/{struck.namespace}/pods/{name}/eviction"
        struck.cluster.kubectl("create", "--raw", path, "--filename", "-", text=json.dumps(eviction))

    with ThreadPoolExecutor(len(names)) as threads:
        list(threads.map(ask, names))


def wait_for_successors(struck: JobOnCluster, history: History, before: dict[str, str], lost: Collection[str]) -> None:
    """Wait until as many as before train, without those that are lost, and for some steps more. Whoever was there
    before and is not lost has its pod still.
    """
    gone = {before[name] for name in lost}
    wait_for(
        lambda: not {member.uid for member in struck.plan.members} & gone,
        REPLACED_SECONDS,
        f"a plan without {', '.join(lost)}",
    )
    wait_for_members(struck, 4, REPLACED_SECONDS)
    struck.wait_for_step(struck.step() + 10)
    now = uids(struck)
    stay = without(before, *lost)
    assert {name: now.get(name) for name in stay} == stay
    assert "Restarting" not in history.phases


def names_on(struck: JobOnCluster, node: str) -> set[str]:
    """Pods of the job on a node."""
    return {pod["metadata"]["name"] for pod in struck.pods() if pod["spec"].get("nodeName") == node}
