"""Jobs of other tenants whose workers and servers mean harm: whoever they are, one's own job keeps its rounds."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from handlers.operators import PATIENCE_SECONDS, Workers, operator, options, trained, until
from heterotrain.contract import DEFAULT_METRICS_PORT
from heterotrain_operator.clusters.kube.objects.names import LABEL_JOB
from heterotrain_operator.clusters.kube.observe.pod_facts import PodFacts
from heterotrain_operator.controller import rounds
from heterotrain_operator.controller.rounds import InThread, JobRounds
from heterotrain_operator.core.pacing import ANNOUNCED
from kube_server.api_server import ApiServer, Document, merged
from unit.kube.worlds import JOB, TEMPLATE
from unit.metrics.hostile import (
    DAWDLERS,
    FLOODERS,
    Behaviour,
    costly_matrix,
    costly_series,
    hostile,
)

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("site")]

HOSTILE_JOBS = 32
ROUNDS = 20


NAMESPACE = "team-b"

PAUSE_SECONDS = 0.1
"""Between looks of a job that trains; a second then holds ten rounds, or a few less on a busy machine."""


def hosts_for(number: int) -> list[str]:
    """Loopback addresses of as many workers or servers, none of which another process takes."""
    own = f"127.{os.getpid() // 256 % 256}.{os.getpid() % 256}"
    return [f"{own}.{100 + each}" for each in range(number)]


def their_job(number: int, source: str, address: str) -> Document:
    """A job of one worker, which does harm at that address, or whose server does."""
    prometheus = {"url": f"http://{address}"} if source == "Prometheus" else {}
    spec: Document = {
        "workerGroups": [{"name": "w", "replicas": 1, "template": TEMPLATE}],
        "metrics": {"source": source, "prometheus": prometheus},
    }
    return merged(JOB, {"metadata": {"name": f"theirs-{number}"}, "spec": spec})


def run_their_pod(api: ApiServer, number: int, host: str) -> None:
    """What a kubelet does: their pod runs."""
    running = {"name": "trainer", "state": {"running": {}}}
    status = {"phase": "Running", "podIP": host, "containerStatuses": [running]}
    api.change("pods", f"theirs-{number}-w-0", {"spec": {"nodeName": "node-1"}, "status": status}, NAMESPACE)


@pytest.fixture
def counted() -> Iterator[Counter[str]]:
    """Rounds that were completed, by the namespace and name of their job; their pauses are short."""
    found: Counter[str] = Counter()
    once = JobRounds.once

    async def counting(
        self: JobRounds,
        body: Mapping[str, Any],
        pods: Sequence[PodFacts],
        plan_versions: Collection[str],
        in_thread: InThread,
    ) -> float:
        delay = await once(self, body, pods, plan_versions, in_thread)
        found["{namespace}/{name}".format(**body["metadata"])] += 1
        return delay

    with (
        patch.object(JobRounds, "once", counting),
        patch.object(rounds, "PACE", replace(ANNOUNCED, quiet_seconds=PAUSE_SECONDS)),
    ):
        yield found


@pytest.mark.parametrize(
    ("source", "behaviours"),
    [
        pytest.param("Prometheus", DAWDLERS, id="Prometheus", marks=pytest.mark.long),
        pytest.param("Pods", (*DAWDLERS, *FLOODERS), id="Pods"),
        pytest.param("Prometheus", (costly_matrix,), id="Prometheus-costly"),
        pytest.param("Pods", (costly_series,), id="Pods-costly", marks=pytest.mark.long),
    ],
)
async def test_thirty_two_hostile_jobs_do_not_keep_another_tenants_job_from_its_rounds(
    api: ApiServer, workers: Workers, counted: Counter[str], source: str, behaviours: Sequence[Behaviour]
) -> None:
    behaviours = list(itertools.islice(itertools.cycle(behaviours), HOSTILE_JOBS))
    hosts = hosts_for(HOSTILE_JOBS)
    chosen = options(watched=("team-a", NAMESPACE), prometheus_allow=("127.*",))
    with hostile(*behaviours, hosts=hosts, port=DEFAULT_METRICS_PORT) as servers:
        async with operator(chosen):
            await trained(api, workers)
            for number, server in enumerate(servers):
                api.put("heterotrainingjobs", their_job(number, source, server.address), NAMESPACE)
            await until(lambda: len(api.names("pods")) == HOSTILE_JOBS + 3)
            for number, host in enumerate(hosts):
                run_their_pod(api, number, host)
            await until(lambda: all(server.connections for server in servers))
            before = counted["team-a/digits"]
            await until(lambda: counted["team-a/digits"] >= before + ROUNDS)  # with readers in threads there was none
            assert max(server.most_open for server in servers) <= 2  # a closed one is noticed late
    async with asyncio.timeout(PATIENCE_SECONDS):
        await until(lambda: not any(server.open for server in servers))


def stuffed_job(number: int) -> Document:
    """A job of 20,000 values, of which it may have as many, or with more."""
    entries: list[Document] = [{}] * 200_000 if number % 2 else [{"name": f"V{n}", "value": "x"} for n in range(6000)]
    container = {"name": "t", "image": "x", "command": ["x"], "env": entries}
    spec = {"workerGroups": [{"name": "w", "replicas": 1, "template": {"spec": {"containers": [container]}}}]}
    return merged(JOB, {"metadata": {"name": f"theirs-{number}"}, "spec": spec})


async def test_large_and_oversized_documents_do_not_keep_another_tenants_job_from_its_rounds(
    api: ApiServer, workers: Workers, counted: Counter[str]
) -> None:
    labels = {LABEL_JOB: "digits"}
    for number in range(20):
        body = {"metadata": {"name": f"labelled-{number}", "labels": labels}, "data": {"x": "x" * 1_000_000}}
        api.put("configmaps", body, NAMESPACE)
    async with operator(options(watched=("team-a", NAMESPACE))):
        await trained(api, workers)
        before = counted["team-a/digits"]
        for number in range(6):
            api.put("heterotrainingjobs", stuffed_job(number), NAMESPACE)

        def statuses() -> list[Document]:
            names = [f"theirs-{number}" for number in range(6)]
            return [api.the("heterotrainingjobs", name, NAMESPACE).get("status", {}) for name in names]

        await until(lambda: [each.get("phase") for each in statuses()] == ["Created", "Invalid"] * 3)
        assert "spec: must" in statuses()[1]["reason"]
        await until(lambda: counted["team-a/digits"] >= before + ROUNDS)
