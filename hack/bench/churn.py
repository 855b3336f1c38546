"""Whether the operator's memory, descriptors and threads stay flat while jobs come, train, change and go.

The operator is a process of its own, beside the tests' API server and workers that answer at one port of all loopback
addresses. Each second something happens to some of the jobs: they end and make room for others, are suspended and
resumed, lose a pod, have their plan edited or their spec spoilt; now and then the API server forgets its history, so
that all is listed again. A sample of the operator's process is written every minute.

    PYTHONPATH=tests .venv/bin/python hack/bench/churn.py --minutes 60 --out FILE.json

Compare the samples after the first ten minutes with the last ones: they are flat if no figure grows with the jobs that
have gone (`ended`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from hostile_jobs import operator
from prometheus_client import CollectorRegistry, generate_latest

from handlers.operators import free_port
from heterotrain import contract
from heterotrain.reporting.metrics import WorkerMetrics
from heterotrain_operator.clusters.kube.objects.names import LABEL_GROUP, LABEL_JOB, PLAN_KEY
from heterotrain_operator.main import main as run_operator
from kube_server.api_server import ApiServer, Document
from kube_server.serving import kubeconfig, serving
from unit.kube.worlds import JOB, READY, TEMPLATE

JOBS = 200
SPACES = tuple(f"team-{number}" for number in range(10))
PORT_VARIABLE = "CHURN_METRICS_PORT"
RELIST_SECONDS = 120.0
STEP_SECONDS = 0.1


@dataclass(slots=True)
class Worker:
    """A pod that runs: its address and what it exports, as it was rendered last; empty: since then it has changed."""

    uid: str
    address: str
    metrics: WorkerMetrics
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    exported: bytes = b""

    def render(self) -> bytes:
        """What it exports."""
        self.exported = self.exported or generate_latest(self.registry)
        return self.exported


class Cluster:
    """Jobs, and what kubelets and users do to them."""

    def __init__(self, seed: int) -> None:
        self.api = ApiServer()
        self.ended = 0
        self._random = random.Random(seed)
        self._made = self._addresses = 0
        self._workers: dict[tuple[str, str], Worker] = {}
        self.by_address: dict[str, Worker] = {}
        for name in SPACES:
            self.api.put("namespaces", {"metadata": {"name": name}}, "")
        self.api.put("nodes", {"metadata": {"name": "node-1"}, "status": READY}, "")

    def second(self) -> None:
        """What happens within one second."""
        for lists in (self.api.writes, self.api.reads, self.api.asked):
            lists.clear()
        self.api.clear("events")
        jobs = self._all("heterotrainingjobs")
        for _ in range(min(JOBS - len(jobs), 10)):
            self._apply()
        self._run_pods()
        self._train(self._random.sample(sorted(jobs), len(jobs) // 10))
        for namespace, name in self._random.sample(sorted(jobs), min(2, len(jobs))):
            with suppress(KeyError):  # it is gone meanwhile
                self._change(namespace, name)

    # --- inside ---------------------------------------------------------------------------------------------

    def _all(self, plural: str) -> dict[tuple[str, str], Document]:
        return {key[1:]: body for key, body in list(self.api.objects.items()) if key[0] == plural}

    def _apply(self) -> None:
        self._made += 1
        group = {"name": "w", "replicas": 2, "template": TEMPLATE}
        training = {"globalBatchSize": 64, "steps": 10_000}
        policy = {"cleanPodPolicy": "None", "backoffLimit": 3}
        spec = {"workerGroups": [group], "training": training, "runPolicy": policy}
        name = f"job-{self._made % (2 * JOBS)}"  # names come again
        key = ("heterotrainingjobs", SPACES[self._made % len(SPACES)], name)
        if key not in self.api.objects:
            self.api.put("heterotrainingjobs", {**JOB, "metadata": {"name": name}, "spec": spec}, key[1])

    def _run_pods(self) -> None:
        pods = self._all("pods")
        for key in [key for key, worker in self._workers.items() if _uid(pods.get(key)) != worker.uid]:
            self.by_address.pop(self._workers.pop(key).address)
        for key, body in pods.items():
            if body["metadata"].get("deletionTimestamp"):
                with suppress(KeyError):
                    self.api.remove("pods", key[1], key[0])
            elif key not in self._workers and not body.get("status", {}).get("phase"):
                self._run(key, body)

    def _run(self, key: tuple[str, str], body: Document) -> None:
        self._addresses += 1
        rest, last = divmod(self._addresses, 250)
        labels = body["metadata"]["labels"]
        made = WorkerMetrics(labels[LABEL_JOB], key[1], labels[LABEL_GROUP], in_collective=lambda: False)
        made.state.phase = contract.PHASE_WAITING
        worker = Worker(_uid(body), f"127.{77 + rest // 250}.{rest % 250}.{last + 2}", made)
        worker.registry.register(made)
        self._workers[key] = self.by_address[worker.address] = worker  # type: ignore[assignment]
        running = {"name": "trainer", "state": {"running": {}}}
        status = {"phase": "Running", "podIP": worker.address, "containerStatuses": [running]}
        with suppress(KeyError):
            self.api.change("pods", key[1], {"spec": {"nodeName": "node-1"}, "status": status}, key[0])

    def _train(self, jobs: list[tuple[str, str]]) -> None:
        """All members follow their plan, and take some steps."""
        for namespace, name in jobs:
            stored = self.api.get("configmaps", f"{name}-plan", namespace)
            if stored is None or PLAN_KEY not in stored["data"]:
                continue
            plan = contract.parse_plan(stored["data"][PLAN_KEY])
            for rank, member in enumerate(plan.members):
                worker = self._workers.get((namespace, member.name))
                if worker is None or worker.uid != member.uid:
                    continue
                if worker.metrics.counters.plan_version != plan.version:
                    worker.metrics.follow(plan, rank)
                    worker.metrics.state.phase = contract.PHASE_TRAINING
                for _ in range(5):
                    worker.metrics.counters.add(member.batch_size, STEP_SECONDS * (1 + rank / 2), 0.01, 0.2)
                worker.metrics.state.step += 5
                worker.exported = b""

    def _change(self, namespace: str, name: str) -> None:
        """Something happens to a job."""
        what = self._random.choice(("end", "end", "end", "suspend", "resume", "pod", "plan", "spoil"))
        spec: Document | None = None
        if what == "end":
            self.api.remove("heterotrainingjobs", name, namespace)
            self.ended += 1
        elif what == "pod":
            self.api.remove("pods", f"{name}-w-{self._random.randrange(2)}", namespace)
        elif what == "plan":
            stored = (self.api.get("configmaps", f"{name}-plan", namespace) or {"data": {}})["data"][PLAN_KEY]
            edited = json.dumps(json.loads(stored) | {"holds": True})
            self.api.change("configmaps", f"{name}-plan", {"data": {PLAN_KEY: edited}}, namespace)
        elif what == "spoil":
            spec = {"batching": {"policy": self._random.choice(("Magic", "Optimal"))}}
        else:
            spec = {"runPolicy": {"suspend": what == "suspend"}}
        if spec is not None:
            self.api.change("heterotrainingjobs", name, {"spec": spec}, namespace)


def _uid(body: Document | None) -> str:
    return "" if body is None else str(body["metadata"]["uid"])


@contextmanager
def workers_at(port: int, cluster: Cluster) -> Iterator[None]:
    """All workers answer at this port, each at its own address, as long as the block lasts."""

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        worker = cluster.by_address.get(request.transport.get_extra_info("sockname")[0])
        if worker is None:
            return web.Response(status=404)
        return web.Response(body=worker.render(), headers={"Content-Type": "text/plain"})

    loop = asyncio.new_event_loop()
    application = web.Application()
    application.add_routes([web.get("/metrics", answer)])
    runner = web.AppRunner(application, access_log=None)
    thread = threading.Thread(target=loop.run_forever, daemon=True)

    async def begin() -> None:
        await runner.setup()
        await web.TCPSite(runner, "0.0.0.0", port).start()

    thread.start()
    asyncio.run_coroutine_threadsafe(begin(), loop).result(30)
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def sampled(pid: int, cluster: Cluster, began: float) -> dict[str, Any]:
    """The operator's process now."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    phases = [body.get("status", {}).get("phase") for key, body in list(cluster.api.objects.items()) if "job" in key[0]]
    return {
        "minute": round((time.monotonic() - began) / 60, 2),
        "rss_mib": round(int(status["VmRSS"].split()[0]) / 1024, 1),
        "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "threads": int(status["Threads"]),
        "cpu_seconds": (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
        "jobs": len(phases),
        "phases": {str(phase): phases.count(phase) for phase in sorted(set(map(str, phases)))},
        "ended": cluster.ended,
    }


def main() -> int:
    """Let the jobs churn. Returns 1 if the operator ends meanwhile."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two samples")
    parser.add_argument("--out", type=Path, help="where the samples go, as JSON")
    parser.add_argument("--log", type=Path, default=Path(os.devnull), help="where the operator's log goes")
    parser.add_argument("--operator", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.operator:
        contract.DEFAULT_METRICS_PORT = int(os.environ[PORT_VARIABLE])
        return run_operator()
    assert chosen.out is not None, "--out is needed"
    port, cluster, samples = free_port(), Cluster(seed=1), list[dict[str, Any]]()
    os.environ[PORT_VARIABLE] = str(port)
    with tempfile.TemporaryDirectory() as folder, serving(cluster.api) as url, workers_at(port, cluster):
        config = kubeconfig(Path(folder) / "kubeconfig", url)
        with operator(config, chosen.log, script=__file__) as process:
            began = time.monotonic()
            sample_at, relist_at = began + chosen.every, began + RELIST_SECONDS
            while (now := time.monotonic()) < began + 60 * chosen.minutes + 1 and process.poll() is None:
                cluster.second()
                if now >= relist_at:
                    cluster.api.forget_history()
                    relist_at += RELIST_SECONDS
                if now >= sample_at:
                    samples.append(sampled(process.pid, cluster, began))
                    chosen.out.write_text(json.dumps(samples, indent=1) + "\n", "utf-8")
                    sample_at += chosen.every
                time.sleep(max(0.0, 1.0 - (time.monotonic() - now)))
            return int(process.poll() is not None)


if __name__ == "__main__":
    sys.exit(main())
