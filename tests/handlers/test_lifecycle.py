"""The operator's own life: starting, standing by, losing the API server for a while, and leaving in order."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from kubernetes.leaderelection.leaderelection import LeaderElection

from handlers.api_server import ApiServer
from handlers.conftest import Site
from handlers.operators import (
    Team,
    fetched,
    looks,
    loops,
    operator,
    options,
    phase,
    plan_of,
    trained,
    until,
    why_not,
)
from heterotrain_operator.clusters.kube.access import Access, connect
from heterotrain_operator.clusters.kube.client import PatientClient
from heterotrain_operator.clusters.kube.lease import Leadership
from unit.kube.worlds import JOB

pytestmark = pytest.mark.asyncio

UNFINISHED = pytest.mark.filterwarnings("ignore:coroutine 'authenticator' was never awaited:RuntimeWarning")
"""kopf leaves this behind when it does not start."""


def holder(api: ApiServer) -> str | None:
    """Who holds the Lease."""
    found = api.get("leases", "heterotrain", "ops")
    name: str | None = None if found is None else found["spec"].get("holderIdentity")
    return name


@contextmanager
def another_leads(api: ApiServer) -> Iterator[None]:
    """Another replica holds the Lease as long as the block lasts."""
    with connect(Access()).api as found:
        client = PatientClient(found.configuration)
    other = Leadership(client, name="heterotrain", namespace="ops", identity="operator-b", on_change=lambda leads: None)
    other.ask()
    thread = threading.Thread(target=other.run)
    thread.start()
    try:
        yield
    finally:
        other.stop()
        thread.join()
        client.close()


# --- who acts ---------------------------------------------------------------------------------------------------


async def test_replica_writes_nothing_before_it_leads_and_leads_at_once_when_it_may(site: Site, api: ApiServer) -> None:
    chosen = options()
    with ExitStack() as stack:
        stack.enter_context(another_leads(api))
        async with operator(chosen):
            api.put("heterotrainingjobs", JOB)
            await until(loops)
            await until(lambda: api.reads.count(("get", "leases", "heterotrain")) > 2)
            assert await fetched(chosen.health_port, "/healthz") == (200, '{"leading": false}')
            assert [write for write in api.writes if write[1] != "leases"] == []
            assert phase(api) is None
            await asyncio.to_thread(stack.close)
            await until(lambda: phase(api) == "Created")
            assert holder(api) == "operator-a"
    assert holder(api) is None


async def test_operator_that_goes_on_after_another_keeps_the_plan(site: Site, api: ApiServer, workers: Team) -> None:
    async with operator(options(identity="operator-b")):
        await trained(api, workers)
    plan, chosen = plan_of(api), options()
    api.writes.clear()
    async with operator(chosen):
        await looks(chosen.metrics_port, 5)
        assert plan_of(api) == plan
        assert [write[:3] for write in api.writes if write[1] != "leases"] == []


async def test_liveness_fails_once_nobody_asks_for_the_lease(
    site: Site, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
    monkeypatch.setattr(LeaderElection, "update_lock", None)
    api.put("leases", {"metadata": {"name": "heterotrain"}, "spec": {}}, "ops")
    chosen = options()
    async with operator(chosen):
        await until(lambda: "lease" not in {thread.name for thread in threading.enumerate()})
        status, _ = await fetched(chosen.health_port, "/healthz")
        assert status == 500


# --- an API server in trouble -----------------------------------------------------------------------------------


async def test_operator_goes_on_when_the_api_server_is_back(site: Site, api: ApiServer, workers: Team) -> None:
    chosen = options()
    async with operator(chosen):
        await trained(api, workers)
        plan = plan_of(api)
        site.down()
        await looks(chosen.metrics_port, 3)  # a job that trains needs no API server
        site.up()
        api.put("heterotrainingjobs", JOB | {"metadata": {"name": "second"}})
        await until(lambda: "second-small-0" in api.names("pods"))
        assert plan_of(api) == plan
        assert phase(api) == "Running"


async def test_job_that_was_deleted_meanwhile_is_not_begun_anew(site: Site, api: ApiServer, workers: Team) -> None:
    async with operator():
        await trained(api, workers)
        site.down()
        api.remove("heterotrainingjobs", "digits", told=False)
        workers.end(*workers.workers)
        site.up()
        await until(lambda: not loops())
        api.writes.clear()
        api.put("heterotrainingjobs", JOB | {"metadata": {"name": "second"}})
        await until(lambda: "second-small-0" in api.names("pods"))
        assert not [name for name in api.names("pods") if name.startswith("digits")]


# --- starting ---------------------------------------------------------------------------------------------------


async def test_operator_waits_for_the_resource_to_be_installed(
    site: Site, api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    api.missing.add("heterotrainingjobs")
    api.put("heterotrainingjobs", JOB)
    threading.Timer(0.5, api.missing.clear).start()
    async with operator():
        await until(lambda: phase(api) == "Created")
    assert "install the chart heterotrain-crds" in caplog.text


async def test_operator_waits_for_the_api_server(site: Site, api: ApiServer) -> None:
    site.down()
    threading.Timer(0.5, site.up).start()
    api.put("heterotrainingjobs", JOB)
    async with operator():
        await until(lambda: phase(api) == "Created")


@UNFINISHED
async def test_operator_without_a_cluster_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert "none, which does not exist" in await why_not()


@UNFINISHED
async def test_operator_whose_port_is_taken_ends(site: Site, api: ApiServer) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port: int = taken.getsockname()[1]
        assert f"metrics port {port}" in await why_not(options(metrics_port=port))
