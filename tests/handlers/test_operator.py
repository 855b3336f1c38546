"""The whole operator against an API server: what a job gets, what wakes its loop, and what is never written."""

from __future__ import annotations

import asyncio

import pytest

from handlers.operators import (
    Workers,
    acts,
    fetched,
    looks,
    loops,
    operator,
    options,
    phase,
    plan_of,
    status_of,
    trained,
    until,
)
from heterotrain_operator.clusters.kube.objects.names import LABEL_JOB
from kube_server.api_server import ApiServer, merged
from unit.kube.worlds import JOB, NAMES

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("site")]

SLOW = NAMES[2]
BOLD = merged(JOB, {"spec": {"batching": {"interval": 5, "deadBand": 0.01}}})
INVALID = merged(JOB, {"spec": {"batching": {"policy": "Magic"}}})


async def test_job_gets_its_parts_and_only_what_the_operator_has_a_right_to_is_read(api: ApiServer) -> None:
    for namespace in ("team-a", "team-b"):
        api.put("heterotrainingjobs", JOB, namespace)
    async with operator():
        await until(lambda: phase(api) == "Created")
        assert {key for key in api.objects if key[0] in ("pods", "services", "configmaps")} == {
            *(("pods", "team-a", name) for name in NAMES),
            ("services", "team-a", "digits"),
            ("configmaps", "team-a", "digits-plan"),
        }
    assert sorted({read[:2] for read in api.reads}) == [
        ("get", "configmaps"),
        ("get", "heterotrainingjobs"),
        ("get", "leases"),
        ("get", "services"),
        ("list", "configmaps"),
        ("list", "heterotrainingjobs"),
        ("list", "pods"),
    ]
    assert ("list", "pods", LABEL_JOB) in api.reads


async def test_operator_of_all_namespaces_steers_jobs_anywhere_with_policies(
    api: ApiServer,
) -> None:
    async with operator(options(watched=(), metrics_from=({"namespaceSelector": {}},))):
        api.put("heterotrainingjobs", JOB, "team-b")
        await until(lambda: ("pods", "team-b", NAMES[0]) in api.objects)
        assert api.names("networkpolicies") == ["digits-workers"]


async def test_batches_follow_a_slow_worker_and_then_all_is_quiet(api: ApiServer, workers: Workers) -> None:
    chosen = options()
    async with operator(chosen):
        await trained(api, workers, BOLD)
        first = plan_of(api)
        workers.train(10, {SLOW: 0.3})
        await until(lambda: plan_of(api).version > first.version)
        plan = plan_of(api)
        slow, *_ = [member.batch_size for member in plan.members if member.name == SLOW]
        assert slow < 64
        assert plan.global_batch_size == 192
        workers.follow(plan)
        await until(lambda: {w.get("planVersion") for w in status_of(api)["workers"]} == {plan.version})
        await looks(chosen.metrics_port, 2)
        api.writes.clear()
        api.reads.clear()
        await looks(chosen.metrics_port, 10)
        assert acts(api) == []
        assert len([write for write in api.writes if write[0] == "patch status"]) <= 3  # not one for each look
        assert [read for read in api.reads if read[1] != "leases"] == []


def owner_of(api: ApiServer, pod: str) -> str:
    """UID of a pod's job; empty as long as there is no such pod."""
    found = api.get("pods", pod)
    return "" if found is None else str(found["metadata"]["ownerReferences"][0]["uid"])


async def test_deleted_pod_restarts_the_workers_and_a_deleted_job_ends_its_loop_and_series_and_is_no_job_of_its_name(
    api: ApiServer, workers: Workers
) -> None:
    chosen = options()
    async with operator(chosen):
        await trained(api, workers)
        assert loops() == ["job team-a/digits"]
        assert 'training_job="digits"' in (await fetched(chosen.metrics_port, "/metrics"))[1]
        api.remove("pods", NAMES[0])
        await until(lambda: phase(api) == "Restarting")
        assert "digits-small-0 was deleted" in status_of(api)["reason"]
        api.remove("heterotrainingjobs", "digits")
        await until(lambda: not loops())
        assert 'training_job="digits"' not in (await fetched(chosen.metrics_port, "/metrics"))[1]
        assert api.names("pods") == []
        api.put("heterotrainingjobs", JOB)
        await until(lambda: phase(api) == "Created")
        api.remove("heterotrainingjobs", "digits")
        uid = api.put("heterotrainingjobs", JOB)["metadata"]["uid"]  # at once
        await until(lambda: [owner_of(api, name) for name in NAMES] == [uid] * len(NAMES))
        await until(lambda: phase(api) == "Created")
        await until(lambda: loops() == ["job team-a/digits"])


async def test_invalid_job_says_so_once_and_is_steered_when_corrected(api: ApiServer) -> None:
    async with operator():
        api.put("heterotrainingjobs", INVALID)
        await until(lambda: phase(api) == "Invalid")
        assert "spec.batching.policy" in status_of(api)["reason"]
        assert api.names("pods") == []
        for _ in range(3):
            api.change("heterotrainingjobs", "digits", {"metadata": {"annotations": {"touched": str(_)}}})
            await asyncio.sleep(0.1)
        assert len([write for write in api.writes if write[0] == "patch status"]) == 1
        api.change("heterotrainingjobs", "digits", {"spec": JOB["spec"] | {"batching": None}})
        await until(lambda: phase(api) == "Created")
        assert "Invalid" not in {condition["type"] for condition in status_of(api)["conditions"]}
