"""The operator as its process runs it, kopf and all, against the tiny API server; and workers that serve metrics.

A pod's address is one of this machine's loopback addresses, at which the training library's own metrics answer.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import kopf
from kopf._core.engines.activities import ActivityError
from prometheus_client import CollectorRegistry, start_http_server

from heterotrain import contract
from heterotrain.reporting.metrics import WorkerMetrics
from heterotrain_operator.clusters.local.starting import Ports
from heterotrain_operator.controller.handlers import start
from heterotrain_operator.controller.options import Options
from heterotrain_operator.controller.runtime import Runtime
from kube_server.api_server import ApiServer, Document
from unit.kube.worlds import JOB, NAMES

PATIENCE_SECONDS = 60.0
"""Far more than anything takes that is waited for here."""


free_port = Ports().take
"""A port that nothing listens at, and that no outgoing connection is given meanwhile."""


def options(**changes: Any) -> Options:
    """Of an operator that watches team-a."""
    given = {
        "watched": ("team-a",),
        "namespace": "ops",
        "identity": "operator-a",
        "lease": "heterotrain",
        "log_level": 20,
        "metrics_port": free_port(),
        "health_port": free_port(),
    }
    return Options(**{**given, **changes})


def _run(
    chosen: Options, runtime: Runtime, ready: asyncio.Event | None = None, stop: asyncio.Event | None = None
) -> Coroutine[Any, Any, None]:
    assert start is not None  # imported for what it registers
    return kopf.operator(
        standalone=True,
        clusterwide=not chosen.watched,
        namespaces=chosen.watched,
        memo=kopf.Memo(runtime=runtime),
        ready_flag=ready,
        stop_flag=stop,
    )


@asynccontextmanager
async def operator(chosen: Options | None = None) -> AsyncIterator[Runtime]:
    """The operator runs in this event loop as long as the block lasts, and then ends as at SIGTERM."""
    chosen = chosen or options()
    runtime = Runtime(chosen)
    ready, stop = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(_run(chosen, runtime, ready, stop))
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await ready.wait()
        yield runtime
    finally:
        stop.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await task


async def why_not(chosen: Options | None = None) -> str:
    """Why an operator does not start."""
    chosen = chosen or options()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await _run(chosen, Runtime(chosen))
    except ActivityError as error:
        return str(error.__cause__)
    raise AssertionError("it ran")


async def until(true: Callable[[], Any], what: str = "") -> None:
    """Wait for something to become true."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not true():
            await asyncio.sleep(0.01)


class Workers:
    """Workers of one job: a metrics server each, at a loopback address of its own."""

    def __init__(self, api: ApiServer) -> None:
        self.api = api
        self.workers: dict[str, WorkerMetrics] = {}
        self._servers: dict[str, Any] = {}
        own = f"127.{os.getpid() // 256 % 256}.{os.getpid() % 256}"  # other tests may run on this machine
        self._addresses = (f"{own}.{number}" for number in itertools.count(2))

    def run_pods(self) -> None:
        """What a kubelet does: each pod of team-a that is not run yet gets an address, and its worker waits."""
        for name in self.api.names("pods"):
            if name in self.workers or self.api.get("pods", name) is None:
                continue
            address = next(self._addresses)
            worker = WorkerMetrics("digits", name, name.split("-")[1], in_collective=lambda: False)
            worker.state.phase = contract.PHASE_WAITING
            registry = CollectorRegistry()
            registry.register(worker)
            self._servers[name] = start_http_server(contract.DEFAULT_METRICS_PORT, address, registry)
            self.workers[name] = worker
            running = {"name": "trainer", "state": {"running": {}}}
            status = {"phase": "Running", "podIP": address, "containerStatuses": [running]}
            self.api.change("pods", name, {"spec": {"nodeName": "node-1"}, "status": status})

    def follow(self, plan: contract.Plan) -> None:
        """All members train under the plan."""
        for rank, member in enumerate(plan.members):
            worker = self.workers[member.name]
            worker.follow(plan, rank)
            worker.state.phase = contract.PHASE_TRAINING

    def train(self, steps: int, own_seconds: dict[str, float]) -> None:
        """So many steps, each of a tenth of a second of own time; of those named, of another."""
        for name, worker in self.workers.items():
            for _ in range(steps):
                worker.counters.add(worker.counters.batch_size, own_seconds.get(name, 0.1), 0.01, 0.2)
            worker.state.step += steps

    def end(self, *names: str) -> None:
        """These workers are no more."""
        with ThreadPoolExecutor() as pool:  # each server takes its time
            list(pool.map(_closed, [self._servers.pop(name) for name in names]))
        for name in names:
            del self.workers[name]

    def close(self) -> None:
        """Nor is any other."""
        self.end(*self._servers)


def _closed(served: tuple[Any, threading.Thread]) -> None:
    server, thread = served
    server.shutdown()
    server.server_close()
    thread.join()


@contextmanager
def serving_workers(api: ApiServer) -> Iterator[Workers]:
    """Workers as long as the block lasts."""
    made = Workers(api)
    try:
        yield made
    finally:
        made.close()


def status_of(api: ApiServer, name: str = "digits") -> Document:
    """The job's status as it is now, empty before the first."""
    found = api.get("heterotrainingjobs", name)
    status: Document = {} if found is None else found.get("status", {})
    return status


def plan_of(api: ApiServer) -> contract.Plan:
    """The job's plan as it is now."""
    return contract.parse_plan(api.the("configmaps", "digits-plan")["data"][contract.PLAN_FILE])


async def fetched(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    """HTTP status and body of what the operator serves, as soon as it does."""

    def ask() -> tuple[int, str] | None:
        try:
            with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=PATIENCE_SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except urllib.error.URLError:
            return None

    async with asyncio.timeout(PATIENCE_SECONDS):
        while (found := await asyncio.to_thread(ask)) is None:
            await asyncio.sleep(0.01)
    return found


def loops() -> list[str]:
    """The jobs that are steered."""
    return sorted(task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("job "))


def phase(api: ApiServer) -> str | None:
    """Of the job, None before its first status."""
    found: str | None = status_of(api).get("phase")
    return found


async def looks(port: int, more: int) -> None:
    """Wait until the operator has looked at its jobs so many times more, by its own account."""

    async def so_far() -> float:
        _, text = await fetched(port, "/metrics")
        found = re.search(r"^heterotrain_operator_reconcile_duration_seconds_count (\S+)$", text, re.MULTILINE)
        assert found is not None
        return float(found[1])

    wanted = await so_far() + more
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await so_far() < wanted:
            await asyncio.sleep(0.02)


def acts(api: ApiServer) -> list[tuple[str, str, str]]:
    """What was written, without statuses: a slow machine may lose a scrape, which the status tells."""
    return [write[:3] for write in api.writes if write[1] != "leases" and write[0] != "patch status"]


async def trained(api: ApiServer, workers: Workers, job: Document = JOB) -> None:
    """The job is applied, its pods run, and all follow the first plan."""
    api.put("heterotrainingjobs", job)
    await until(lambda: api.names("pods") == sorted(NAMES))
    workers.run_pods()
    await until(lambda: status_of(api).get("planVersion"))
    workers.follow(plan_of(api))
    await until(lambda: status_of(api).get("ready") == "3/3")
