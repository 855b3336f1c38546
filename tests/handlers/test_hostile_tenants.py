"""Jobs of other tenants whose workers and servers mean harm: whoever they are, one's own job keeps its rounds."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from handlers.operators import PATIENCE_SECONDS, Workers, operator, options, trained, until
from heterotrain.contract import DEFAULT_METRICS_PORT
from heterotrain_operator.clusters.kube.observe.pod_facts import PodFacts
from heterotrain_operator.controller import rounds
from heterotrain_operator.controller.rounds import InThread, JobRounds
from kube_server.api_server import ApiServer, Document
from unit.kube.documents import merged
from unit.kube.worlds import JOB, TEMPLATE
from unit.metrics.hostile import (
    DAWDLERS,
    FLOODERS,
    Behaviour,
    Hostile,
    dripping_headers,
    dripping_status,
    hostile,
    informing,
)

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("site")]

JOBS = 32
ROUNDS = 20
PAUSE_SECONDS = 0.1
"""Between looks of a job that trains; a second then holds ten rounds, or a few less on a busy machine."""


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Rounds that were completed, by the namespace and name of their job; pauses are nearly the real ones."""
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

    monkeypatch.setattr(JobRounds, "once", counting)
    monkeypatch.setattr(rounds, "BUSY_SECONDS", 0.5)
    monkeypatch.setattr(rounds, "QUIET_SECONDS", PAUSE_SECONDS)
    return found


def theirs(number: int, source: str, server: Hostile) -> Document:
    """A job of one worker, which does harm, or whose server does."""
    prometheus = {"url": f"http://{server.address}"} if source == "Prometheus" else {}
    spec: Document = {
        "workerGroups": [{"name": "w", "replicas": 1, "template": TEMPLATE}],
        "metrics": {"source": source, "prometheus": prometheus},
    }
    return merged(JOB, {"metadata": {"name": f"theirs-{number}"}, "spec": spec})


def run(api: ApiServer, number: int, server: Hostile) -> None:
    """Their pod runs."""
    running = {"name": "trainer", "state": {"running": {}}}
    status = {"phase": "Running", "podIP": server.address.split(":")[0], "containerStatuses": [running]}
    api.change("pods", f"theirs-{number}-w-0", {"spec": {"nodeName": "node-1"}, "status": status}, "team-b")


@pytest.mark.parametrize(
    ("source", "behaviours"),
    [
        ("Prometheus", (dripping_headers, dripping_status, informing)),
        ("Pods", (*DAWDLERS, *FLOODERS)),
    ],
)
async def test_thirty_two_hostile_jobs_do_not_keep_another_tenants_job_from_its_rounds(
    api: ApiServer, workers: Workers, counted: Counter[str], source: str, behaviours: Sequence[Behaviour]
) -> None:
    own = f"127.{os.getpid() // 256 % 256}.{os.getpid() % 256}"
    behaviours = list(itertools.islice(itertools.cycle(behaviours), JOBS))
    hosts = [f"{own}.{100 + number}" for number in range(JOBS)]
    chosen = options(watched=("team-a", "team-b"), prometheus_allow=("127.*",))
    with hostile(*behaviours, hosts=hosts, port=DEFAULT_METRICS_PORT) as servers:
        async with operator(chosen):
            await trained(api, workers)
            for number, server in enumerate(servers):
                api.put("heterotrainingjobs", theirs(number, source, server), "team-b")
            await until(lambda: len(api.names("pods")) == JOBS + 3)
            for number, server in enumerate(servers):
                run(api, number, server)
            await until(lambda: all(server.connections for server in servers))
            before = counted["team-a/digits"]
            asked = sum(server.connections for server in servers)
            begun = time.monotonic()
            await until(lambda: counted["team-a/digits"] >= before + ROUNDS)  # with readers in threads there was none
            print(
                f"{ROUNDS} rounds in {time.monotonic() - begun:.1f} s beside {JOBS} hostile jobs, "
                f"whose servers were asked {sum(server.connections for server in servers) - asked} times"
            )
            assert max(server.most_open for server in servers) <= 2  # a closed one is noticed late
    async with asyncio.timeout(PATIENCE_SECONDS):
        await until(lambda: not any(server.open for server in servers))
