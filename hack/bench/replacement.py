"""Record how a straggler is replaced on a cluster: what `kubectl get pods --watch` prints meanwhile, the job's events,
and how long the workers that stay stand still.

With KUBECONFIG naming a cluster that has the images, as after `make kind images`:

    PYTHONPATH=tests .venv/bin/python hack/bench/replacement.py
    .venv/bin/python hack/bench/table.py out/bench/replacement

One of three workers gets busy processes beside it, within its CPU limit. Times are in seconds from then on. It installs
the operator for itself, and removes it with everything else at the end. Idle time is what lies between a worker's last
step under the old plan and its first one under that which swaps the two, less the median of the ten steps before, by
the workers' own records.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from cluster_bench import ready
from transition import idle_of

from e2e.api import Document
from e2e.history import History
from e2e.jobs import JobOnCluster
from e2e.programs import program
from e2e.slowing import FIRST, INTERVAL, LIMITED, SLOWED, slowed_job, wait_for_replacement
from e2e.waiting import wait_for

HEALTHY_INTERVALS = 15
"""Before the worker is slowed: for so long it is learned what is usual."""

RECORDED = (
    "StragglerDetected",
    "ReplacingStraggler",
    "ReplacementFailed",
    "ReplacementGivenUp",
    "GenerationChanged",
    "WorkerJoined",
    "WorkerLeft",
    "WorkerReplaced",
    "StragglerRecovered",
    "SuccessfulCreatePod",
    "SuccessfulDeletePod",
)
"""Events that tell of a replacement, and those that would tell that it went another way."""


@contextmanager
def pods_watched(job: JobOnCluster) -> Iterator[list[tuple[float, str]]]:
    """The lines that `kubectl get pods --watch` prints meanwhile, each with its moment."""
    command = [program("kubectl"), "get", "pods", "--watch", f"--namespace={job.namespace}"]
    lines: list[tuple[float, str]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        output = process.stdout

        def follow() -> None:
            for line in output:
                lines.append((time.time(), line.rstrip()))

        reader = threading.Thread(target=follow)
        reader.start()
        try:
            yield lines
        finally:
            process.terminate()
            reader.join()


def moment(event: Document) -> float:
    """When an event was reported."""
    at = event.get("eventTime") or event.get("firstTimestamp") or event["metadata"]["creationTimestamp"]
    return datetime.fromisoformat(at.replace("Z", "+00:00")).timestamp()


def recorded() -> Document:
    """Run the job once, and what came of it."""
    with ready() as bench, bench.namespace() as namespace:
        job = bench.apply(namespace, slowed_job())
        with History(job) as history:
            job.wait_for_step(HEALTHY_INTERVALS * INTERVAL)
            with pods_watched(job) as pods:
                began = time.time()
                replaced = wait_for_replacement(job)
                wait_for(lambda: len(job.pods()) == 3, 120, "the pod of the straggler to go")
                job.wait_for_step(job.step() + 3 * INTERVAL)
        swap = min(
            version
            for version, plan in history.plans.items()
            if replaced.newcomer in {member.name for member in plan.members}
        )
        survivors = [(group, job.records(group)) for group in (FIRST, LIMITED)]
        idle = [(job.pod_name(group), *idle_of(records, swap)) for group, records in survivors]
        left, joined = job.records(SLOWED)[-1], job.records(SLOWED, replaced.index)[0]
        result: dict[str, Any] = {
            "benchmark": "replacement",
            "kubernetes": bench.cluster.version,
            "machine": {"cpus": os.cpu_count(), "load": round(os.getloadavg()[0], 1)},
            "straggler": replaced.straggler,
            "newcomer": replaced.newcomer,
            "restarts": job.status["restarts"],
            "last_step_of_straggler": left.step,
            "first_step_of_newcomer": joined.step,
            "survivors": [
                {"worker": worker, "idle_seconds": round(seconds, 3), "usual_step_seconds": round(usual, 3)}
                for worker, seconds, usual in idle
            ],
            "pods": [{"seconds": round(at - began, 1), "line": line} for at, line in pods],
            "events": [
                {"seconds": round(moment(event) - began), "reason": event["reason"], "message": event["message"]}
                for event in job.events()
                if event["reason"] in RECORDED and moment(event) >= began - 1
            ],
        }
    return result


def main() -> int:
    """Record, and write it."""
    parser = argparse.ArgumentParser(description="Record how a straggler is replaced on a cluster.")
    parser.add_argument("--out", type=Path, default=Path("out/bench/replacement/digits.json"), help="file to write")
    options = parser.parse_args()
    result = recorded()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result["survivors"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
