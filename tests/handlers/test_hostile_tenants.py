"""Jobs of other tenants whose workers and servers mean harm: whoever they are, one's own job keeps its rounds."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from handlers.operators import PATIENCE_SECONDS, Workers, operator, options, trained, until
from handlers.tenants import NAMESPACE, hosts_for, rounds_counted, run_their_pod, their_job
from heterotrain.contract import DEFAULT_METRICS_PORT
from kube_server.api_server import ApiServer
from unit.metrics.hostile import (
    DAWDLERS,
    FLOODERS,
    Behaviour,
    costly_matrix,
    costly_series,
    dripping_headers,
    dripping_status,
    hostile,
    informing,
)

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("site")]

JOBS = 32
ROUNDS = 20


@pytest.fixture
def counted() -> Iterator[Counter[str]]:
    with rounds_counted() as found:
        yield found


@pytest.mark.parametrize(
    ("source", "behaviours"),
    [
        pytest.param(
            "Prometheus", (dripping_headers, dripping_status, informing), id="Prometheus", marks=pytest.mark.long
        ),
        pytest.param("Pods", (*DAWDLERS, *FLOODERS), id="Pods"),
        pytest.param("Prometheus", (costly_matrix,), id="Prometheus-costly"),
        pytest.param("Pods", (costly_series,), id="Pods-costly", marks=pytest.mark.long),
    ],
)
async def test_thirty_two_hostile_jobs_do_not_keep_another_tenants_job_from_its_rounds(
    api: ApiServer, workers: Workers, counted: Counter[str], source: str, behaviours: Sequence[Behaviour]
) -> None:
    behaviours = list(itertools.islice(itertools.cycle(behaviours), JOBS))
    hosts = hosts_for(JOBS)
    chosen = options(watched=("team-a", NAMESPACE), prometheus_allow=("127.*",))
    with hostile(*behaviours, hosts=hosts, port=DEFAULT_METRICS_PORT) as servers:
        async with operator(chosen):
            await trained(api, workers)
            for number, server in enumerate(servers):
                api.put("heterotrainingjobs", their_job(number, source, server.address), NAMESPACE)
            await until(lambda: len(api.names("pods")) == JOBS + 3)
            for number, host in enumerate(hosts):
                run_their_pod(api, number, host)
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
