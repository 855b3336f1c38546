"""The operator's own life: starting, standing by, losing the API server for a while, and leaving in order."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kubernetes.leaderelection.leaderelection import LeaderElection

from handlers.conftest import Site
from handlers.operators import (
    PATIENCE_SECONDS,
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
    why_not,
)
from heterotrain_operator.clusters.kube.api_server.access import Access, connect
from heterotrain_operator.clusters.kube.api_server.lease import Leadership
from heterotrain_operator.clusters.kube.api_server.transport import PatientClient
from heterotrain_operator.clusters.kube.objects.names import LABEL_JOB
from heterotrain_operator.controller import short_documents
from heterotrain_operator.controller.options import Options
from heterotrain_operator.metrics.table import WATCH_UP
from kube_server.api_server import ApiServer, StatusError, merged
from unit.kube.worlds import JOB

pytestmark = pytest.mark.asyncio

SUSPENDED = {"runPolicy": {"suspend": True}}

UNFINISHED = pytest.mark.filterwarnings("ignore:coroutine 'authenticator' was never awaited:RuntimeWarning")
"""kopf leaves this behind when it does not start."""


def holder(api: ApiServer) -> str | None:
    """Who holds the Lease."""
    name: str | None = api.the("leases", "heterotrain", "ops")["spec"].get("holderIdentity")
    return name


async def answers(chosen: Options, path: str, status: int) -> None:
    """Wait until the operator does so to probes."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await fetched(chosen.health_port, path))[0] != status:
            await asyncio.sleep(0.02)


async def shown(chosen: Options, line: str) -> None:
    """Wait for a line among the operator's metrics."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while line not in (await fetched(chosen.metrics_port, "/metrics"))[1]:
            await asyncio.sleep(0.02)


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


async def test_operator_that_goes_on_after_another_keeps_the_plan_and_lists_again_what_it_could_not_continue(
    site: Site, api: ApiServer, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with operator(options(identity="operator-b")):
        await trained(api, workers)
    plan, chosen, lists = plan_of(api), options(), list[str]()
    monkeypatch.setattr(short_documents, "PAGE_OBJECTS", 2)

    def late(verb: str, plural: str, name: str) -> None:
        lists.extend([plural] if (verb, plural) == ("list", "pods") else [])
        if len(lists) == 2 and plural == "pods":
            api.forget_history()

    api.refuse = late
    api.writes.clear()
    async with operator(chosen):
        await answers(chosen, "/readyz", 200)
        await looks(chosen.metrics_port, 3)
        assert len(lists) == 4
        api.reads.clear()
        await looks(chosen.metrics_port, 6)
        assert not [read for read in api.reads if read[:2] == ("get", "pods")], "those of all pages are known"
    assert plan_of(api) == plan
    assert {act[:2] for act in acts(api)} <= {("patch", "pods")}, "touches, of a slow machine that loses a scrape"


async def test_liveness_fails_without_asking_leases(
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


async def test_replica_is_ready_once_it_watches_all_and_may_lead_and_ends_by_its_liveness_if_it_never_is(
    site: Site, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = options(watched=("team-a", "team-b"))
    api.forbidden.add("team-b")
    async with operator(chosen):
        await until(lambda: api.reads.count(("list", "pods", LABEL_JOB)) == 1)
        status, text = await fetched(chosen.health_port, "/readyz")
        assert (status, "not everything is watched yet" in text) == (503, True)
        for host in ("127.0.0.1", "[::1]"):
            assert (await fetched(chosen.health_port, "/healthz", host))[0] == 200
        monkeypatch.setattr("heterotrain_operator.controller.watches.BLOCKED_SECONDS", 0.1)
        await answers(chosen, "/healthz", 500)
        assert "watching pods in namespace team-b" in (await fetched(chosen.health_port, "/healthz"))[1]
        api.forbidden.clear()
        await answers(chosen, "/readyz", 200)


async def test_operator_goes_on_when_the_api_server_is_back(site: Site, api: ApiServer, workers: Workers) -> None:
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


STREAM = 0
"""In place of an HTTP status: the error is an event of a watch that was answered."""


@pytest.mark.parametrize("status", [STREAM, 400, 404, 410, 429])
async def test_lists_and_watches_that_are_answered_by_errors_begin_again_and_it_is_said_once(
    site: Site, api: ApiServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    asked = Counter[str]()
    watch, listed = api.watch, api.listed

    def fail(plural: str, *arguments: Any, **more: Any) -> Any:
        asked["watch"] += 1
        if status == STREAM:
            return iter([{"type": "ERROR", "object": {"kind": "Status", "code": 500}}])
        raise StatusError(status, "Refused", "storm", retryAfterSeconds="Wed, 21 Oct 2026 07:28:00 GMT")

    def fail_to_list(*arguments: Any, **more: Any) -> Any:
        if status != STREAM and asked["list"] < 6:
            asked["list"] += 1
            raise StatusError(status, "Refused", "storm")
        return listed(*arguments, **more)

    async with operator():
        api.put("heterotrainingjobs", JOB)
        await until(lambda: phase(api) == "Created")
        caplog.clear()
        monkeypatch.setattr(api, "watch", fail)
        monkeypatch.setattr(api, "listed", fail_to_list)
        api.forget_history()
        await until(lambda: asked["watch"] > 6)
        monkeypatch.setattr(api, "watch", watch)
        api.put("heterotrainingjobs", JOB | {"metadata": {"name": "second"}})
        await until(lambda: "second-small-0" in api.names("pods"))
        await until(lambda: status == STREAM or "watching pods in namespace team-a goes again" in caplog.messages)
    said = [message for message in caplog.messages if "watching pods" in message]
    assert status == STREAM or said == [
        f"watching pods in namespace team-a: HTTP {status}; trying again until it goes",
        "watching pods in namespace team-a goes again",
    ]


async def test_jobs_deleted_meanwhile_are_not_begun_again_nor_kept(
    site: Site, api: ApiServer, workers: Workers
) -> None:
    async with operator() as runtime:
        for name in ("resting", "deleted"):
            api.put("heterotrainingjobs", merged(JOB, {"metadata": {"name": name}, "spec": SUSPENDED}))
        await until(lambda: all(status_of(api, name).get("phase") == "Suspended" for name in ("resting", "deleted")))
        await trained(api, workers)
        site.down()
        for name in ("digits", "deleted"):
            api.remove("heterotrainingjobs", name, watched=False)
        workers.end(*workers.workers)
        api.reads.clear()
        site.up()
        await until(lambda: loops() == ["job team-a/resting"])
        await until(lambda: runtime.pods.of(("team-a", "digits")) == [])
        asked = {read[2] for read in api.reads if read[:2] == ("get", "heterotrainingjobs")}
        assert asked <= {"deleted", "digits"}, "nobody asks for what the new list shows"
        api.writes.clear()
        api.put("heterotrainingjobs", JOB | {"metadata": {"name": "second"}})
        await until(lambda: "second-small-0" in api.names("pods"))
        assert not [name for name in api.names("pods") if name.startswith("digits")]


async def test_right_that_is_taken_away_shows_and_hinders_no_other_namespace(
    site: Site, api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = options(watched=("team-a", "team-b"))
    async with operator(chosen):
        await answers(chosen, "/readyz", 200)
        api.forbidden.add("team-b")
        api.forget_history()  # watches begin again, and those of team-b are refused
        lost = f'{WATCH_UP.series}{{namespace="team-b",resource="pods"}} 0.0'
        await shown(chosen, lost.replace("pods", "heterotrainingjobs"))
        await shown(chosen, lost)
        status, text = await fetched(chosen.health_port, "/readyz")
        assert (status, "pods in team-b: HTTP 403" in text) == (200, True)
        assert "heterotrainingjobs in team-b: HTTP 403" in text
        api.put("heterotrainingjobs", JOB)
        await until(lambda: phase(api) == "Created")
        api.forbidden.clear()
        api.put("heterotrainingjobs", JOB, "team-b")
        await until(lambda: ("pods", "team-b", "digits-small-0") in api.objects)
        await shown(chosen, lost.replace(" 0.0", " 1.0"))
    logged = [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert [line for line in logged if "pods in namespace team-b" in line] == [
        "watching pods in namespace team-b: HTTP 403; trying again until it goes",
        "watching pods in namespace team-b goes again",
    ]
    assert not [line for line in logged if line.startswith("Request attempt")]


async def test_operator_waits_for_the_api_server_and_for_the_resource_to_be_installed(
    site: Site, api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    site.down()
    api.missing.add("heterotrainingjobs")
    api.put("heterotrainingjobs", JOB)
    threading.Timer(0.5, site.up).start()
    threading.Timer(1.0, api.missing.clear).start()
    async with operator():
        await until(lambda: phase(api) == "Created")
    assert "install the chart heterotrain-crds" in caplog.text


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
        assert f"health port {port}" in await why_not(options(health_port=port))


async def test_replica_that_may_watch_nothing_lives_on_unready(site: Site, api: ApiServer) -> None:
    chosen = options()
    async with operator(chosen):
        await answers(chosen, "/readyz", 200)
        api.forbidden.add("team-a")
        api.forget_history()
        for plural in ("heterotrainingjobs", "pods", "configmaps"):
            await shown(chosen, f'{WATCH_UP.series}{{namespace="team-a",resource="{plural}"}} 0.0')
        assert (await fetched(chosen.health_port, "/readyz"))[0] == 503
        assert (await fetched(chosen.health_port, "/healthz"))[0] == 200
        api.forbidden.clear()
        await answers(chosen, "/readyz", 200)
