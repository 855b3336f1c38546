"""The operator may be killed, paused or cut off at any moment: nobody stops training, no pod comes twice, and no batch
jumps.
"""

from __future__ import annotations

import random
import time
from itertools import pairwise

import pytest

from e2e.api import ApiError, Document
from e2e.cluster import Cluster
from e2e.conftest import Apply
from e2e.history import History
from e2e.installation import PROCESS, Installation
from e2e.jobs import JobOnCluster
from e2e.manifests import group, job
from e2e.nodes import Nodes
from e2e.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

JUMP = 0.15
"""Share of the global batch that no plan moves, once the batches have settled: going back to equal shares would take
a quarter of it."""

INTERVAL = 30

SETTLED_STEPS = 3 * INTERVAL
"""A plan that stands for so many has been looked at, and left."""

LEASE_SECONDS = 15.0
AWAY_SECONDS = 20.0

AWAKE_SECONDS = 6.0
"""For so long an operator that goes on after a pause could do harm: it asks for the Lease every two."""

Interval = tuple[float, float]


def unequal() -> Document:
    """A job that follows only differences that last, since starting operators take CPU from its workers; and one
    large enough to show where CPU is short, too.
    """
    groups = (group("large", "500m"), group("small", "150m"))
    return job("digits", *groups, batching={"interval": INTERVAL, "deadBand": 0.1})


def settle(steered: JobOnCluster, history: History) -> int:
    """Wait until the batches stay. Returns the plan's version."""
    steered.wait_for_step(INTERVAL)
    since: dict[int, int] = {}

    def stands() -> int | None:
        newest, step = history.newest, steered.step()
        return newest if newest > 1 and step - since.setdefault(newest, step) >= SETTLED_STEPS else None

    return wait_for(stands, 240, "the batches to settle")


def assert_undisturbed(steered: JobOnCluster, history: History, settled: int, outages: list[Interval]) -> None:
    """Training went on while the operator was away, and went on as before when it was back."""
    records = steered.records("large")
    for began, ended in outages:
        assert any(began < record.time < ended for record in records), "nobody trained while the operator was away"
    # No step was done twice or left out: the workers never noticed.
    steps = [record.step for record in records]
    assert steps == list(range(len(steps)))
    assert set(history.pods_made().values()) == {1}
    assert history.phases == ["Created", "Running"]
    assert steered.status["restarts"] == 0
    assert {plan.generation for plan in history.plans.values()} == {1}
    versions = sorted(version for version in history.plans if version >= settled)
    for before, after in pairwise(versions):
        old, new = history.plans[before], history.plans[after]
        moved = sum(abs(b - a) for a, b in zip(old.batch_sizes, new.batch_sizes, strict=True)) / 2
        assert moved <= JUMP * old.global_batch_size, f"from {old.batch_sizes} to {new.batch_sizes}"


def wait_for_new_decision(steered: JobOnCluster, seconds: float = 120.0) -> None:
    """Show that somebody steers: a change of the job is taken up."""
    document = steered.document()
    assert document is not None
    generation = document["metadata"]["generation"]
    steered.patch({"runPolicy": {"backoffLimit": generation + 10}})
    wait_for(
        lambda: steered.status.get("observedGeneration", 0) > generation, seconds, "somebody to steer the job again"
    )


@pytest.mark.alone
@pytest.mark.disruptive
def test_killed_operator_goes_on_where_it_was(apply: Apply, installation: Installation, nodes: Nodes) -> None:
    moments = random.Random(7)
    steered = apply(unequal())
    outages = []
    with History(steered) as history:
        settled = settle(steered, history)
        for attempt in range(3):
            time.sleep(moments.uniform(1.0, 6.0))
            (pod,) = installation.pods()
            began = time.time()
            nodes.signal(pod, "KILL", PROCESS)
            if attempt % 2:
                # Its successor is another pod, which finds the Lease held by a name that will not renew it.
                installation.remove_at_once(pod)
            wait_for_new_decision(steered)
            outages.append((began, time.time()))
        steered.wait_for_step(steered.step() + SETTLED_STEPS)
    assert_undisturbed(steered, history, settled, outages)


@pytest.mark.alone
@pytest.mark.disruptive("replicas=2")
def test_operator_paused_past_its_lease_leaves_the_job_to_its_replica(
    apply: Apply, installation: Installation, nodes: Nodes
) -> None:
    wait_for(lambda: installation.leader, 60, "a leader")
    steered = apply(unequal())
    with History(steered) as history:
        settled = settle(steered, history)
        paused, standby = installation.pods()
        began = time.time()
        nodes.signal(paused, "STOP", PROCESS)
        try:
            successor = standby["metadata"]["name"]
            wait_for(lambda: installation.leader == successor, 60, f"{successor} to lead")
            wait_for_new_decision(steered)
        finally:
            nodes.signal(paused, "CONT", PROCESS)
        outages = [(began, time.time())]
        time.sleep(AWAKE_SECONDS)
        # Back on its feet, the one that was paused knows that it does not lead any more.
        assert installation.leader == successor
        assert installation.metrics(paused["metadata"]["name"])["heterotrain_operator_leader"] == 0
        assert installation.metrics(successor)["heterotrain_operator_leader"] == 1
        wait_for_new_decision(steered)
    assert_undisturbed(steered, history, settled, outages)


@pytest.mark.disruptive
def test_operator_whose_lease_is_stolen_stops_at_once_and_leads_again_when_that_has_run_out(
    apply: Apply, installation: Installation
) -> None:
    steered = apply(unequal())
    with History(steered) as history:
        settled = settle(steered, history)
        (pod,) = installation.pods()
        name = pod["metadata"]["name"]
        began = time.time()
        installation.steal_lease("somebody-else")
        wait_for(lambda: installation.metrics(name)["heterotrain_operator_leader"] == 0, LEASE_SECONDS, "it to stop")
        assert installation.leader == "somebody-else", "it stopped since it had read so, and not since time had passed"
        wait_for(lambda: installation.leader == name, 4 * LEASE_SECONDS, f"{name} to lead again")
        wait_for_new_decision(steered)
        outages = [(began, time.time())]
    assert_undisturbed(steered, history, settled, outages)


@pytest.mark.alone
def test_job_trains_on_without_an_api_server(
    apply: Apply, cluster: Cluster, installation: Installation, nodes: Nodes
) -> None:
    steered = apply(unequal())
    with History(steered) as history:
        settled = settle(steered, history)
        began = time.time()
        nodes.stop_api_server()
        try:
            time.sleep(AWAY_SECONDS)
        finally:
            nodes.start_api_server()
        outages = [(began, time.time())]
        wait_for(lambda: answers(cluster), 120, "the API server to answer again")
        wait_for(cluster.all_nodes_are_ready, 120, "all nodes to be Ready again")
        wait_for_new_decision(steered)
        steered.wait_for_step(steered.step() + SETTLED_STEPS)
    installation.wait_until_ready()
    assert_undisturbed(steered, history, settled, outages)


def answers(cluster: Cluster) -> bool:
    """Whether the API server is ready."""
    try:
        return cluster.api.text("/readyz") == "ok"
    except ApiError:
        return False
