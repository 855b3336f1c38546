"""Workers join and leave while the others train: no other pod starts again, and no step is taken twice."""

from __future__ import annotations

from itertools import pairwise

import pytest

from e2e.api import CORE, ApiError, Document
from e2e.cluster import Cluster
from e2e.conftest import Apply
from e2e.history import History
from e2e.jobs import START_SECONDS, JobOnCluster
from e2e.manifests import group, job
from e2e.members import assert_no_step_lost, wait_for_members
from e2e.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

NAMES, CPUS = ("large", "small"), ("500m", "250m")


def set_replicas(changed: JobOnCluster, name: str, replicas: int) -> None:
    """As `kubectl edit` does."""
    document = changed.document()
    assert document is not None
    groups = document["spec"]["workerGroups"]
    changed.patch(
        {"workerGroups": [each | ({"replicas": replicas} if each["name"] == name else {}) for each in groups]}
    )


def digits_of(*replicas: int) -> Document:
    """A job with so many large and small workers."""
    groups = [group(name, cpu) | {"replicas": count} for name, cpu, count in zip(NAMES, CPUS, replicas, strict=True)]
    return job("digits", *groups)


def test_replicas_change_while_the_others_train(apply: Apply) -> None:
    changed = apply(digits_of(1, 1))
    with History(changed) as history:
        changed.wait_for_step(20)
        stay = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in changed.pods()}
        with pytest.raises(AssertionError, match=r"spec\.replicas is only for jobs with one worker group"):
            changed.scale(3)
        set_replicas(changed, "small", 3)
        wait_for_members(changed, 4)
        changed.wait_for_step(changed.step() + 10)
        set_replicas(changed, "small", 1)
        wait_for_members(changed, 2)
        wait_for(lambda: len(changed.pods()) == 2, START_SECONDS, "the pods of those that left to go")
        changed.wait_for_step(changed.step() + 10)
    assert {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in changed.pods()} == stay
    assert [phase for phase in history.phases if phase != "Created"] == ["Running"]
    assert changed.status["restarts"] == 0
    assert {plan.continues > 0 for plan in history.plans.values() if plan.generation > 1} == {True}
    assert len(changed.events("GenerationChanged")) >= 2
    records = changed.records("large")
    assert_no_step_lost(records)
    firsts = [later.time - sooner.time for sooner, later in pairwise(records) if later.mark == "first"]
    usual = sorted(later.time - sooner.time for sooner, later in pairwise(records))[len(records) // 2]
    print(f"first steps under a plan took {', '.join(f'{each:.2f}' for each in firsts)} s, usual ones {usual:.2f} s")


def test_a_job_of_one_group_is_scaled_while_it_trains(apply: Apply) -> None:
    scaled = apply(job("digits", group("cpu", "400m", replicas=2, maxReplicas=3)))
    with History(scaled) as history:
        scaled.wait_for_step(10)
        stay = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in scaled.pods()}
        # What autoscalers begin with is there only once the job says its replicas; kubectl needs nothing before.
        with pytest.raises(ApiError, match="does not exist"):
            scaled.scale_subresource()
        with pytest.raises(AssertionError, match="maxReplicas must be at least replicas"):
            scaled.scale(4)
        scaled.scale(3)
        wait_for_members(scaled, 3)
        shown = wait_for(
            lambda: found if (found := scaled.scale_subresource())["status"]["replicas"] == 3 else None,
            30,
            "three workers in the subresource scale",
        )
        assert shown["spec"]["replicas"] == 3
        path = f"{CORE}/namespaces/{scaled.namespace}/pods"
        selected = scaled.cluster.api.items(path, labelSelector=shown["status"]["selector"])
        assert {pod["metadata"]["name"] for pod in selected} == {scaled.pod_name("cpu", index) for index in range(3)}
        scaled.scale(2, "--current-replicas=3")
        wait_for_members(scaled, 2)
        wait_for(lambda: len(scaled.pods()) == 2, START_SECONDS, "the pod of the worker that left to go")
    assert {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in scaled.pods()} == stay
    assert [phase for phase in history.phases if phase != "Created"] == ["Running"]
    assert scaled.status["restarts"] == 0
    assert_no_step_lost(scaled.records("cpu"))


@pytest.mark.parametrize(
    ("least", "how"),
    [({}, ("--wait=false",)), ({"minReplicas": 1}, ("--force", "--grace-period=0", "--wait=false"))],
    ids=["in order", "by force, and the others hold"],
)
def test_a_deleted_pod_is_replaced_while_the_others_train(
    apply: Apply, cluster: Cluster, least: Document, how: tuple[str, ...]
) -> None:
    struck = apply(job("digits", group("large", "500m", **least), group("small", "250m", replicas=2)))
    with History(struck) as history:
        struck.wait_for_step(20)
        leader = struck.plan.leader
        uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in struck.pods()}
        cluster.kubectl("delete", "pod", leader, f"--namespace={struck.namespace}", *how)
        wait_for(
            lambda: leader not in {member.name for member in struck.plan.members},
            START_SECONDS,
            "a plan without the deleted worker",
        )
        wait_for_members(struck, 3)
        struck.wait_for_step(struck.step() + 10)
    now = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in struck.pods()}
    stay = uids.keys() - {leader}
    assert {name: now[name] for name in stay} == {name: uids[name] for name in stay}
    assert len(now) == 3
    assert any(plan.holds for plan in history.plans.values()) == bool(least)
    assert bool(struck.events("BelowMinReplicas")) == bool(least)
    assert [phase for phase in history.phases if phase != "Created"] == ["Running"]
    assert struck.status["restarts"] == 0
    records = struck.records("small", 0)
    assert_no_step_lost(records)
    gaps = sorted(later.time - sooner.time for sooner, later in pairwise(records))
    print(f"the longest time between two steps was {gaps[-1]:.2f} s, the usual one {gaps[len(gaps) // 2]:.2f} s")
