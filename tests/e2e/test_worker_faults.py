"""Whatever befalls workers ends as promised: told with its reason, counted if it was their own fault, and answered by
another worker in the place of the one that is lost, or where workers need one another, by a restart from the newest
checkpoint.
"""

from __future__ import annotations

import json
from functools import partial

import pytest

from e2e.api import Document
from e2e.cluster import Cluster
from e2e.conftest import Apply
from e2e.history import History
from e2e.jobs import JobOnCluster
from e2e.manifests import KEEP_ALL, digits_with_fault, group, idle, job, staying, two_workers
from e2e.resuming import assert_resumed_from_checkpoint, wait_for_generation
from e2e.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

# --- from outside --------------------------------------------------------------------------------------------------


def test_deleted_pod_restarts_workers_that_need_it_without_counting(apply: Apply, cluster: Cluster) -> None:
    struck = apply(staying(two_workers(checkpoint=KEEP_ALL)))
    with History(struck) as history:
        struck.wait_for_step(30)
        cluster.kubectl("delete", "pod", struck.pod_name("small"), f"--namespace={struck.namespace}", "--wait=false")
        wait_for_generation(struck, history, 2)
    assert history.phases == ["Created", "Running", "Restarting", "Running"]
    assert struck.status["restarts"] == 0
    event = struck.events("WorkerDisrupted")[-1]
    assert event["type"] == "Normal"
    assert struck.pod_name("small") in event["message"]
    assert set(history.pods_made().values()) == {2}
    assert_resumed_from_checkpoint(struck, history)


# --- their own ---------------------------------------------------------------------------------------------------


def test_worker_that_raises_restarts_those_that_need_it_and_is_counted(apply: Apply) -> None:
    fault = 'raise RuntimeError("the data is spoilt")'
    failing = job(
        "failing",
        group("large", "600m", command=digits_with_fault("small", 30, fault)),
        group("small", "300m", command=digits_with_fault("small", 30, fault)),
        steps=45,  # the second attempt begins at step 20, and so ends before its 30th step
        checkpoint={"everySteps": 10, **KEEP_ALL},
        runPolicy={"backoffLimit": 2},
    )
    failed = apply(staying(failing))
    with History(failed) as history:
        status = failed.wait_for_phase("Succeeded", 360)
    assert status["restarts"] == 1
    message = failed.events("WorkerFailed")[-1]["message"]
    assert "failing-small-0 exited with code 1" in message
    assert "RuntimeError: the data is spoilt" in message
    assert_resumed_from_checkpoint(failed, history)


def test_worker_out_of_memory_is_reported_so_and_ends_the_job_at_the_limit_of_its_place(apply: Apply) -> None:
    fault = "hog = bytearray(1 << 30)"
    at = 40  # when the operator has seen that the worker trains
    hungry = apply(
        job(
            "hungry",
            group("large", "600m", command=digits_with_fault("small", at, fault)),
            group("small", "300m", command=digits_with_fault("small", at, fault), memory="600Mi"),
            runPolicy={"backoffLimit": 1},
        )
    )
    status = hungry.wait_for_phase("Failed", 360)
    assert status["restarts"] == 0
    assert "hungry-small-1 was killed by SIGKILL: out of memory (limit 600Mi)" in status["reason"]
    assert "after 1 replacement in its place" in status["reason"]
    assert hungry.condition("Failed")["reason"] == "BackoffLimitExceeded"
    assert [event["reason"] for event in hungry.events("WorkerFailed")] == ["WorkerFailed"] * 2


# --- those that never start --------------------------------------------------------------------------------------


NO_IMAGE = "heterotrain-trainer:of-which-nobody-heard"


def without_image() -> Document:
    """A job whose image is nowhere."""
    manifest = idle("imageless", runPolicy={"startupDeadlineSeconds": 20})
    manifest["spec"]["workerGroups"][0]["template"]["spec"]["containers"][0]["image"] = NO_IMAGE
    return manifest


def without_node() -> Document:
    """A job that fits no node."""
    pod = {"nodeSelector": {"heterotrain.dev/machine": "of-which-nobody-heard"}}
    return job("homeless", group("idle", "100m", pod=pod), runPolicy={"startupDeadlineSeconds": 20})


def test_job_that_cannot_start_says_why_and_fails(apply: Apply) -> None:
    both = ((apply(without_image()), NO_IMAGE), (apply(without_node()), "nodes are available"))
    for never, told in both:
        wait_for(partial(says, never, told), 20, f"{told!r} in the status of the worker")
    for never, told in both:
        status = never.wait_for_phase("Failed", 90)
        assert never.condition("Failed")["reason"] == "StartupDeadlineExceeded"
        assert told in status["reason"]
        assert told in never.events("StartupDeadlineExceeded")[-1]["message"]
        wait_until_gone(never)


def wait_until_gone(never: JobOnCluster) -> None:
    """Wait until it has no pod any more."""
    wait_for(lambda: not never.pods(), 60, "the pod that waits to go")


def says(never: JobOnCluster, told: str) -> bool:
    """Whether the status of its worker says so."""
    return told in never.worker("idle").get("message", "")


# --- the plan ----------------------------------------------------------------------------------------------------


def test_plan_that_is_changed_or_lost_is_restored_while_workers_train_on(apply: Apply, cluster: Cluster) -> None:
    struck = apply(two_workers())
    plan = ("configmap", f"{struck.name}-plan", f"--namespace={struck.namespace}")
    with History(struck) as history:
        struck.wait_for_step(40)
        edited = json.dumps({**json.loads(struck.plan.to_json()), "holds": True})
        for lose in (
            ("patch", *plan, "--type=merge", f"--patch={json.dumps({'data': {'plan.json': edited}})}"),
            ("patch", *plan, "--type=merge", '--patch={"data":{"plan.json":"{"}}'),
            ("delete", *plan),
        ):
            before = struck.plan
            cluster.kubectl(*lose)
            wait_until_followed(struck, before.version + 1)
            assert struck.plan.version > before.version
        struck.wait_for_step(struck.step() + 10)
    wait_for(lambda: len(struck.events("PlanRestored")) > 1, 60, "events of both kinds")
    said = "; ".join(event["message"] for event in struck.events("PlanRestored"))
    assert "somebody else had changed the plan" in said
    assert "the plan was lost" in said
    assert {plan.generation for plan in history.plans.values()} == {1}
    assert struck.status["restarts"] == 0
    assert set(history.pods_made().values()) == {1}
    # The steps go on where they were: none is missing, none was done twice.
    steps = [record.step for record in struck.records("large")]
    assert steps == list(range(len(steps)))


def wait_until_followed(struck: JobOnCluster, version: int) -> None:
    """Wait until both workers follow a plan, or a newer one."""
    wait_for(
        lambda: all(struck.metrics(each)["heterotrain_worker_plan_version"] >= version for each in ("large", "small")),
        60,
        f"all workers to follow plan {version}",
    )
