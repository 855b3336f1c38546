"""What the operator itself costs: CPU time of its process per round of a job that trains, and of reading its workers.

A round is what the operator does for a job every two seconds: read the metrics of all workers, decide, and write what
differs (here nothing). The workers are one other process, which answers at as many addresses; the API server is a shelf
in memory, since a job that trains asks it nothing. CPU time is that of this process, all threads and the kernel's part.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from heterotrain import contract
from heterotrain.reporting.metrics import WorkerMetrics
from heterotrain.reporting.serving import MetricsServer
from heterotrain_operator.clusters.kube.api_server.gateway import Gateway
from heterotrain_operator.clusters.kube.objects.names import plan_name
from heterotrain_operator.clusters.kube.observe.nodes import Nodes
from heterotrain_operator.clusters.kube.observe.pod_facts import PodFacts
from heterotrain_operator.clusters.kube.observe.sources import Sources
from heterotrain_operator.controller.rounds import JobRounds
from heterotrain_operator.metrics.client import Client
from heterotrain_operator.metrics.own import OperatorMetrics
from heterotrain_operator.metrics.pods import scrape_pods

T = TypeVar("T")

NAMESPACE, JOB, UID = "bench", "digits", "job-uid"
STEP_SECONDS = 0.05
WARM_UP_ROUNDS = 50


class Shelf(Gateway):
    """An API server of one job: it keeps objects by kind and name, and counts what is asked."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.asked = 0

    def check(self) -> None:
        """Whoever measures leads."""

    def read(self, kind: str, namespace: str | None, name: str) -> dict[str, Any] | None:
        """What is on the shelf."""
        self.asked += 1
        return self.objects.get((kind, name))

    def create(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Put it there."""
        self.asked += 1
        metadata = body["metadata"] | {"resourceVersion": str(self.asked)}
        self.objects[body["kind"], metadata.get("name", str(self.asked))] = kept = {**body, "metadata": metadata}
        return kept

    def apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Put it there."""
        return self.create(body)

    def annotate(self, kind: str, namespace: str, name: str, annotations: Mapping[str, str]) -> None:
        """The kubelet's part is left out."""
        self.asked += 1

    def delete(self, kind: str, namespace: str, name: str, *, uid: str, grace_seconds: int | None = None) -> bool:
        """No round that is measured ends a worker. Raises RuntimeError."""
        raise RuntimeError(f"a decision ends {name}: the workers' process is starved, so this measures something else")

    def write_status(self, namespace: str, name: str, uid: str, status: Mapping[str, Any]) -> None:
        """As a cluster does, but the watch shows nothing of it."""
        self.asked += 1
        self.objects["status", name] = dict(status)


def workers() -> None:
    """The other process: a worker that trains under each plan that comes in."""
    worker = WorkerMetrics(JOB, f"{JOB}-cpu-0", "cpu", in_collective=lambda: False)
    worker.state.phase = contract.PHASE_WAITING
    registry = CollectorRegistry()
    registry.register(worker)
    print(MetricsServer(registry, 0).server_port, flush=True)
    threading.Thread(target=_train, args=(worker,), daemon=True).start()
    for line in sys.stdin:
        worker.follow(contract.parse_plan(line), 0)
        worker.state.phase = contract.PHASE_TRAINING


def _train(worker: WorkerMetrics) -> None:
    while True:
        time.sleep(STEP_SECONDS)
        if worker.state.phase == contract.PHASE_TRAINING:
            worker.state.step += 1
            worker.counters.add(worker.counters.batch_size, STEP_SECONDS, 0.01, 0.2)


def job_of(number: int) -> dict[str, Any]:
    """A job of so many workers, as the API server shows it."""
    container = {"name": "trainer", "image": "trainer"}
    group = {"name": "cpu", "replicas": number, "template": {"spec": {"containers": [container]}}}
    return {
        "apiVersion": "heterotrain.dev/v1alpha1",
        "kind": "HeteroTrainingJob",
        "metadata": {"name": JOB, "namespace": NAMESPACE, "uid": UID, "generation": 1},
        "spec": {"workerGroups": [group], "training": {"globalBatchSize": 32 * number, "steps": 1_000_000}},
    }


def pods_of(number: int) -> list[PodFacts]:
    """Its pods, each at a loopback address of its own."""
    return [
        PodFacts(
            f"{JOB}-cpu-{index}",
            f"uid-{index}",
            NAMESPACE,
            JOB,
            "cpu",
            index,
            owner_uid=UID,
            phase="Running",
            ip=f"127.0.{1 + index // 250}.{1 + index % 250}",
            node="node-1",
            ready_to_scrape=True,
        )
        for index in range(number)
    ]


class Operator:
    """One job's rounds, and all that they need."""

    def __init__(self, number: int, publish: Callable[[str], None]) -> None:
        self._body, self._pods, self._publish = job_of(number), pods_of(number), publish
        self.shelf = Shelf()
        self.shelf.objects["HeteroTrainingJob", JOB] = self._body
        self._sources = Sources(self.shelf, ())
        self._client = Client()
        self._rounds = JobRounds(
            self.shelf,
            Nodes(self.shelf),
            OperatorMetrics(),
            self._sources.of,
            clock=time.time,
            monotonic=time.monotonic,
        )
        self._threads = ThreadPoolExecutor(1)
        self._published = ""

    async def round(self) -> None:
        """One round; a new plan reaches the workers."""
        stored = self.shelf.objects.get(("ConfigMap", plan_name(JOB)))
        versions = {stored["metadata"]["resourceVersion"]} if stored is not None else set()
        await self._rounds.once(self._body, self._pods, versions, self._in_thread)
        stored = self.shelf.objects.get(("ConfigMap", plan_name(JOB)))
        plan = (stored or {}).get("data", {}).get(contract.PLAN_FILE, "")
        if plan != self._published:
            self._published = plan
            self._publish(plan)

    async def read(self) -> None:
        """The reading alone."""
        addresses = {pod.name: pod.metrics_address for pod in self._pods}
        found = await scrape_pods(self._client, addresses, owner=NAMESPACE)
        assert None not in found.values(), "a worker could not be read"

    @property
    def phase(self) -> str:
        """Of the job."""
        return str(self.shelf.objects.get(("status", JOB), {}).get("phase"))

    async def close(self) -> None:
        """End it."""
        await self._sources.close()
        await self._client.close()
        self._threads.shutdown()

    async def _in_thread(self, blocking: Callable[..., T], /, *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, blocking, *arguments)


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """CPU milliseconds of one round, or reading: median, least and greatest of the repetitions."""

    what: str
    median: float
    least: float
    greatest: float


async def cost(what: str, do: Callable[[], Awaitable[None]], rounds: int, repetitions: int) -> Cost:
    """Do it so often, so many times."""
    found = []
    for _ in range(repetitions):
        began = time.process_time()
        for _ in range(rounds):
            await do()
        found.append(1e3 * (time.process_time() - began) / rounds)
    return Cost(what, statistics.median(found), min(found), max(found))


async def measure(number: int, rounds: int, repetitions: int, publish: Callable[[str], None]) -> list[Cost]:
    """The costs once the job trains."""
    operator = Operator(number, publish)
    try:
        for _ in range(WARM_UP_ROUNDS):
            await operator.round()
            await asyncio.sleep(STEP_SECONDS)
        assert operator.phase == "Running", f"the job is {operator.phase}"
        return [
            await cost("round", operator.round, rounds, repetitions),
            await cost("reading alone", operator.read, rounds, repetitions),
        ]
    finally:
        await operator.close()


def main(arguments: Sequence[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure the operator's CPU time per round of a job.")
    parser.add_argument("--workers", type=int, default=5, help="of the job (5; at most 60,000)")
    parser.add_argument("--rounds", type=int, default=200, help="of one repetition (200)")
    parser.add_argument("--repetitions", type=int, default=7, help="(7)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if min(options.workers, options.rounds, options.repetitions) < 1 or options.workers > 60_000:
        parser.error("--workers, --rounds and --repetitions must be at least 1, --workers at most 60,000")
    with subprocess.Popen(
        [sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        plans = child.stdin

        def publish(plan: str) -> None:
            print(json.dumps(json.loads(plan)), file=plans, flush=True)

        contract.DEFAULT_METRICS_PORT = int(child.stdout.readline())  # every pod of a cluster has the same
        try:
            costs = asyncio.run(measure(options.workers, options.rounds, options.repetitions, publish))
        finally:
            child.terminate()
    if options.json:
        print(json.dumps({"workers": options.workers, "costs": [dataclasses.asdict(each) for each in costs]}))
        return 0
    for each in costs:
        print(f"{each.what}: {each.median:.2f} ms of CPU ({each.least:.2f} .. {each.greatest:.2f})")
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        workers()
    else:
        sys.exit(main(sys.argv[1:]))
