"""Another tenant's jobs of one worker each, which do harm, and the rounds of all jobs beside them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from heterotrain_operator.clusters.kube.observe.pod_facts import PodFacts
from heterotrain_operator.controller import rounds
from heterotrain_operator.controller.rounds import InThread, JobRounds
from heterotrain_operator.core.pacing import ANNOUNCED
from kube_server.api_server import ApiServer, Document
from unit.kube.documents import merged
from unit.kube.worlds import JOB, TEMPLATE

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


@contextmanager
def rounds_counted() -> Iterator[Counter[str]]:
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
