"""What befalls single workers of a job befalls nobody else: whether they are slow, preempted, or lost with their node,
the others train on, no pod of theirs starts again, and other workers join them.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from e2e.api import Document
from e2e.cluster import Cluster
from e2e.conftest import Apply
from e2e.history import History
from e2e.jobs import START_SECONDS, JobOnCluster, shares
from e2e.manifests import group, job
from e2e.members import REPLACED_SECONDS, assert_no_step_lost, assert_only_replaced, wait_for_members
from e2e.nodes import Nodes
from e2e.slowing import INTERVAL, LIMITED, SLOWED, slowed_job, wait_for_replacement
from e2e.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SETTLED_INTERVALS = 6
"""Control intervals after which a worker that is slow by fault would long have been named."""


# --- slow workers ------------------------------------------------------------------------------------------------


@pytest.mark.alone
def test_a_slowed_worker_is_replaced_and_one_with_a_lower_limit_only_rebalanced(apply: Apply) -> None:
    struck = apply(slowed_job())
    with History(struck) as history:
        struck.wait_for_step(8 * INTERVAL)
        before = shares(struck.plan)[struck.pod_name(LIMITED)]
        struck.resize(LIMITED, "150m")
        wait_for(
            lambda: shares(struck.plan)[struck.pod_name(LIMITED)] < 0.8 * before,
            120,
            "fewer samples for the worker whose limit was lowered",
        )
        struck.wait_for_step(struck.step() + SETTLED_INTERVALS * INTERVAL)
        assert struck.pod_name(LIMITED) not in told(struck, "StragglerDetected", "ReplacingStraggler")
        assert not struck.events("WorkerReplaced")
        stay = uids(struck)
        replaced = wait_for_replacement(struck)
        wait_for(lambda: len(struck.pods()) == 3, START_SECONDS, "the pod of the straggler to go")
        struck.wait_for_step(struck.step() + INTERVAL)
    straggler, newcomer = replaced.straggler, replaced.newcomer
    assert newcomer in uids(struck).keys() - stay.keys()
    assert {name: uid for name, uid in uids(struck).items() if name != newcomer} == without(stay, straggler)
    assert_only_replaced(struck, history, "first", LIMITED)
    # It warmed up beside those that trained, and took over between two steps; only then the other one was let go.
    assert "warmed up" in struck.log(newcomer)
    swap = min(version for version, plan in history.plans.items() if newcomer in {each.name for each in plan.members})
    assert straggler not in {each.name for each in history.plans[swap].members}
    assert history.written[swap] <= history.leaving[stay[straggler]]
    (left,) = struck.records(SLOWED)[-1:]
    joined = struck.records(SLOWED, replaced.index)[0]
    assert joined.step == left.step + 1
    assert joined.version == swap
    assert struck.pod_name(LIMITED) not in told(struck, "StragglerDetected", "ReplacingStraggler", "WorkerReplaced")


# --- preempted, drained, lost --------------------------------------------------------------------------------------


@pytest.mark.disruptive
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
            # Pods of the tests themselves run there, too.
            only = "--pod-selector=heterotrain.dev/job-name"
            options = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=120s", only)
            before = uids(struck)
            cluster.kubectl("drain", drained, *options, seconds=150)
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


def uids(struck: JobOnCluster) -> dict[str, str]:
    """UIDs of its pods by name; a pod that starts again in its place has another one."""
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in struck.pods()}


def without(found: dict[str, str], *names: str) -> dict[str, str]:
    """The others."""
    return {name: uid for name, uid in found.items() if name not in names}


def told(struck: JobOnCluster, *reasons: str) -> str:
    """What events with these reasons say."""
    return "\n".join(event["message"] for reason in reasons for event in struck.events(reason))
