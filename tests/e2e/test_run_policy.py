"""How a job is started, held, ended and cleaned up: all of spec.runPolicy, dry runs, and several jobs at once."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from e2e.cluster import Cluster
from e2e.conftest import Apply, apply_in
from e2e.history import History
from e2e.installation import Installation, steering_only
from e2e.jobs import JobOnCluster
from e2e.manifests import BATCH, group, idle, job, sleeper, two_workers
from e2e.resuming import assert_resumed_from_checkpoint
from e2e.shared_folder import SharedFolder
from e2e.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

WATCHED_SECONDS = 8.0
"""For so long it is watched that nothing happens."""

STEPS = 30
"""Of a job that ends by itself, after its first checkpoint."""


def test_suspended_job_has_no_pods_and_goes_on_where_it_was(apply: Apply) -> None:
    held = apply(two_workers(checkpoint={"keep": 100}))
    with History(held) as history:
        held.wait_for_step(30)
        held.patch({"runPolicy": {"suspend": True}})
        held.wait_for_phase("Suspended")
        wait_for(lambda: not held.pods(), 60, "the pods of a suspended job to go")
        assert held.condition("Suspended")["status"] == "True"
        assert held.condition("Running")["status"] == "False"
        held.patch({"runPolicy": {"suspend": False}})
        held.wait_for_phase("Running")
        held.wait_for_step(40)
    assert_resumed_from_checkpoint(held, history)
    assert held.status["restarts"] == 0
    assert held.warnings() == []


def test_job_beyond_its_deadline_fails_and_its_pods_go(apply: Apply) -> None:
    late = apply(idle("late", runPolicy={"activeDeadlineSeconds": 8}))
    status = late.wait_for_phase("Failed", 60)
    assert late.condition("Failed")["reason"] == "ActiveDeadlineExceeded"
    assert "active deadline of 8 s" in status["reason"]
    assert status["completionTime"]
    wait_for(lambda: not late.pods(), 60, "the running pod to go")


def test_finished_job_goes_after_its_time(apply: Apply) -> None:
    brief = apply(idle("brief", runPolicy={"activeDeadlineSeconds": 2, "ttlSecondsAfterFinished": 3}))
    brief.wait_for_event("ActiveDeadlineExceeded", 60)
    wait_for(lambda: brief.document() is None, 60, "the job to go")
    wait_for(lambda: not brief.children(), 60, "its objects to go with it")


def test_pods_that_are_left_are_those_of_the_policy(apply: Apply) -> None:
    failing = group("failing", "100m", command=["sh", "-c", "sleep 2; exit 3"])

    def cleaned(policy: str) -> JobOnCluster:
        settings = {"cleanPodPolicy": policy, "backoffLimit": 0}
        return apply(job(f"keeps-{policy.lower()}", sleeper("idle"), failing, runPolicy=settings))

    jobs = {policy: cleaned(policy) for policy in ("All", "Running", "None")}
    left = {"All": set[str](), "Running": {"failing"}, "None": {"failing", "idle"}}
    for policy, each in jobs.items():
        status = each.wait_for_phase("Failed", 60)
        assert f"{each.pod_name('failing')} exited with code 3" in status["reason"]
        wait_until_left(each, {each.pod_name(name) for name in left[policy]})


def wait_until_left(finished: JobOnCluster, names: set[str]) -> None:
    """Wait until only these pods of a job are left."""
    wait_for(lambda: {pod["metadata"]["name"] for pod in finished.pods()} == names, 60, f"only {names} to stay")


def test_pods_behind_a_gate_wait_beyond_the_startup_deadline(apply: Apply, cluster: Cluster) -> None:
    gate = {"schedulingGates": [{"name": "heterotrain.dev/queue"}]}
    groups = (group("large", "600m", pod=gate), group("small", "300m", pod=gate))
    held = apply(job("held", *groups, runPolicy={"startupDeadlineSeconds": 2}))
    wait_for(lambda: "SchedulingGated" in held.worker("small").get("message", ""), 30, "the gates in the status")
    time.sleep(WATCHED_SECONDS)
    assert held.phase == "Created"
    held.patch({"runPolicy": {"startupDeadlineSeconds": 240}})
    opened = '--patch=[{"op": "remove", "path": "/spec/schedulingGates"}]'
    for name in (held.pod_name("large"), held.pod_name("small")):
        cluster.kubectl("patch", "pod", name, f"--namespace={held.namespace}", "--type=json", opened)
    held.wait_for_phase("Running")
    assert held.status["restarts"] == 0


def test_job_created_again_says_what_it_goes_on_from_and_on_request_begins_again(apply: Apply) -> None:
    first = apply(two_workers("again"))
    first.wait_for_step(25)
    document = first.document()
    assert document is not None
    uid = document["metadata"]["uid"]
    first.delete()
    second = apply(two_workers("again"))
    assert uid in second.wait_for_event("ResumedFromEarlierJob", 240)["message"]
    taken_over = wait_for(lambda: second.status.get("resumedFrom"), 30, "what was taken over in the status")
    assert taken_over["jobUid"] == uid
    assert taken_over["step"] >= 20
    second.delete()
    third = apply(two_workers("again", checkpoint={"resume": "Never"}))
    third.wait_for_phase("Running")
    third.wait_for_step(25)
    own = third.document()
    assert own is not None
    folder = f"{third.namespace}/{third.name}/{own['metadata']['uid']}"
    assert "step-0000000020.pt" in third.files.names(folder), "it did not begin at step 0, in a folder of its own"
    assert "resumedFrom" not in third.status


def test_dry_run_explains_and_changes_nothing(apply: Apply) -> None:
    # So unequal that it shows on a machine that has no CPU to spare, too.
    observed = apply(job("digits", group("large", "600m"), group("small", "150m"), batching={"dryRun": True}))
    with History(observed) as history:
        event = observed.wait_for_event("DryRun", 240)
        observed.wait_for_step(observed.step() + 12)
    assert "nothing changes" in event["message"]
    assert set(history.plans) == {1}
    assert history.plans[1].batch_sizes == (BATCH // 2, BATCH // 2)


def test_two_jobs_train_side_by_side(apply: Apply) -> None:
    jobs = [apply(two_workers(name, steps=STEPS)) for name in ("one", "other")]
    for each in jobs:
        each.wait_for_phase("Succeeded", 300)
    for each in jobs:
        # Neither went on from the other's checkpoint.
        assert [record.step for record in each.records("large")] == list(range(STEPS))
        assert {pod["metadata"]["name"] for pod in each.pods()} == {each.pod_name("large"), each.pod_name("small")}
        assert {member.name for member in each.plan.members} == {each.pod_name("large"), each.pod_name("small")}
        assert each.warnings() == []


# --- several installations -----------------------------------------------------------------------------------------


@pytest.mark.disruptive
def test_two_installations_steer_their_own_namespaces(
    cluster: Cluster,
    files: SharedFolder,
    installation: Installation,
    namespace: str,
    make_namespace: Callable[[], str],
) -> None:
    others, nobodys = make_namespace(), make_namespace()
    other = Installation(cluster, f"{others}-operator", values=steering_only(others))
    other.install()
    try:
        jobs = [apply_in(cluster, files, each, idle("idle")) for each in (namespace, others)]
        left = apply_in(cluster, files, nobodys, idle("idle"))
        for each in jobs:
            wait_for(each.pods, 60, f"the pod of the job in {each.namespace}")
        time.sleep(WATCHED_SECONDS)
        for each in jobs:
            # Two operators at one job would each have told that they create its pod.
            assert len(each.events("SuccessfulCreatePod")) == 1
        assert left.phase == ""
        assert left.children() == []
    finally:
        other.uninstall(wait=False)


@pytest.mark.disruptive
def test_deleted_namespace_keeps_the_operator_from_no_other(
    cluster: Cluster,
    files: SharedFolder,
    installation: Installation,
    namespace: str,
    make_namespace: Callable[[], str],
) -> None:
    deleted = make_namespace()
    installation.install(*steering_only(namespace, deleted))
    cluster.kubectl("delete", "namespace", deleted, seconds=120)
    (pod,) = installation.pods()
    installation.remove_at_once(pod)
    idling = apply_in(cluster, files, namespace, idle("idle"))
    wait_for(idling.pods, 60, f"the pod of the job in {namespace}")
    assert f"namespace {deleted} is left out" in installation.log()
