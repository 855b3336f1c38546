"""A job finds its size on a cluster: under a quota, beside users who scale it, and while its operator is killed; and it
says what that has cost.

Workers sleep for each sample instead of computing, so that more of them pay however busy the machine is.
"""

from __future__ import annotations

from datetime import datetime

import pytest

from e2e.api import Document
from e2e.cluster import Cluster
from e2e.conftest import Apply
from e2e.history import History
from e2e.installation import PROCESS, Installation
from e2e.jobs import START_SECONDS, JobOnCluster
from e2e.manifests import MOUNTED, group, job
from e2e.members import assert_no_step_lost
from e2e.nodes import Nodes
from e2e.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.disruptive, pytest.mark.timeout(600)]

PRICE = 36.0
"""For an hour of a worker, which is a hundredth for each second."""

END = f"{MOUNTED}/end"
"""Workers end the job once this file is there."""

SLEEPING = f"""
import os, time, torch, heterotrain

session = heterotrain.join(batch_size=64, epochs=3)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(4096, 4), torch.randn(4096, 1))
model, optimizer, batches = session.prepare(model, optimizer, data)
for inputs, targets in batches:
    time.sleep(0.01 * len(inputs))
    session.scale(torch.nn.functional.mse_loss(model(inputs), targets)).backward()
    optimizer.step()
    optimizer.zero_grad()
    if os.path.exists({END!r}):
        session.stop("the test has seen enough")
"""

QUOTA = "two-pods"


def test_job_grows_around_a_quota_follows_kubectl_scale_and_outlives_its_operator(
    apply: Apply, cluster: Cluster, namespace: str, installation: Installation, nodes: Nodes
) -> None:
    quota = {"metadata": {"name": QUOTA, "namespace": namespace}, "spec": {"hard": {"pods": "2"}}}
    cluster.apply({"apiVersion": "v1", "kind": "ResourceQuota", **quota})
    scaled = apply(growing())
    with History(scaled) as history:
        wait_for_size(scaled, history, 1)
        scaled.wait_for_event("Scaled", START_SECONDS)
        kill(installation, nodes)  # a worker is on its way
        wait_for_size(scaled, history, 2)
        blocked = scaled.wait_for_condition("ScalingBlocked", "True", START_SECONDS)
        assert (blocked["reason"], QUOTA in blocked["message"]) == ("WorkersNotGiven", True)
        assert QUOTA in scaled.status["scaling"]["blocked"]
        (given_up,) = scaled.events("ScalingGivenUp")
        assert QUOTA in given_up["message"]
        # The search ends with the two that it may have.
        scaled.wait_for_event("ScalingStopped", START_SECONDS)
        wait_for_size(scaled, history, 2)

        cluster.kubectl("delete", "resourcequota", QUOTA, f"--namespace={namespace}")
        installation.remove_at_once(installation.pods()[0])  # nobody is on the way
        # An edit spares the test the ten minutes for which the group is left alone.
        scaled.patch({"scaling": {"everyBatches": 6}})
        wait_for_size(scaled, history, 3)
        scaled.wait_for_condition("ScalingBlocked", "False", 30)
        sizes = [{"group": "small", "workers": 3}]
        wait_for(lambda: scaled.status["scaling"]["sizes"] == sizes, 30, "three workers in its status")

        scaled.scale(2)
        kill(installation, nodes)  # a worker is to leave
        wait_for_size(scaled, history, 2)
        wait_for_size(scaled, history, 3)  # the search begins again
        scaled.patch({"scaling": {"condition": "None"}})
        wait_for_size(scaled, history, 2)
        # For long enough that the second or so after which the end of a pod is seen is little of its life.
        scaled.wait_for_step(scaled.step() + 120)
        scaled.execute(scaled.pod_name("small"), "touch", END)
        ended = scaled.wait_for_phase("Succeeded")
        pods = history.last_seen
        wait_for(lambda: all(map(lifetime, pods.values())), 30, "the recorded end of all pods")
    assert [phase for phase in history.phases if phase != "Created"] == ["Running", "Succeeded"]
    assert ended["restarts"] == 0
    assert_no_step_lost(scaled.records("small"))
    paid = sum(map(lifetime, pods.values())) * PRICE / 3600
    print(f"{len(pods)} pods cost {paid:g}, of which the status says {ended['cost']['total']:g}")
    assert ended["cost"]["total"] == pytest.approx(paid, rel=0.02)


def growing() -> Document:
    """One worker of at most three."""
    small = group("small", "300m", command=["python", "-c", SLEEPING], maxReplicas=3, pricePerHour=PRICE)
    scaling = {"condition": "Throughput", "step": 1, "everyBatches": 5}
    return job("digits", small, batch=64, batching={"policy": "Uniform", "interval": 5}, scaling=scaling)


def wait_for_size(scaled: JobOnCluster, history: History, count: int) -> None:
    """Wait until the newest plan has so many workers."""
    wait_for(
        lambda: history.plans and len(history.plans[history.newest].members) == count,
        START_SECONDS,
        f"a plan of {count} workers for job {scaled.name}",
        every=0.2,
    )


def lifetime(pod: Document) -> float:
    """Seconds from a pod's creation to the end of its container, as recorded; 0 before."""
    states = [container["state"].get("terminated") for container in pod["status"].get("containerStatuses") or ()]
    if not all(states) or not states:
        return 0.0
    created, ended = map(datetime.fromisoformat, (pod["metadata"]["creationTimestamp"], states[0]["finishedAt"]))
    return (ended - created).total_seconds()


def kill(installation: Installation, nodes: Nodes) -> None:
    """Kill the operator's process, which is started again."""
    nodes.signal(installation.pods()[0], "KILL", PROCESS)
