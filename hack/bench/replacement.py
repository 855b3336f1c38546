"""Record how a straggler is replaced on a cluster: the job's events, and how long the workers that stay stand still.

With KUBECONFIG naming a cluster that has the images, as after `make kind images`:

    PYTHONPATH=tests .venv/bin/python hack/bench/replacement.py --out hack/bench/results/replacement/digits.json

One of three workers gets busy processes beside it, within its CPU limit. Times are in seconds from then on. It installs
the operator for itself, and removes it with everything else at the end. Idle time is what lies between a worker's last
step under the old plan and its first one under that which swaps the two, less the median of the ten steps that follow,
by the workers' own records.
"""

from __future__ import annotations

import argparse
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime

import runner
import tables_measured
from transition import idle_of

from e2e.api import Document
from e2e.cluster import Cluster
from e2e.conftest import SYSTEM, apply_in, remove_namespace
from e2e.history import History
from e2e.installation import Installation
from e2e.jobs import JobOnCluster
from e2e.manifests import CLAIM
from e2e.shared_folder import FOLDER, SharedFolder, provide
from e2e.slowing import FIRST, INTERVAL, LIMITED, SLOWED, slowed_job, wait_for_replacement
from e2e.waiting import wait_for

HEALTHY_INTERVALS = 15
"""Before the worker is slowed: for so long it is learned what is usual."""

RECORDED = (
    *("StragglerDetected", "StragglerRecovered", "ReplacingStraggler", "ReplacementFailed", "ReplacementGivenUp"),
    *(
        "GenerationChanged",
        "WorkerJoined",
        "WorkerLeft",
        "WorkerReplaced",
        "SuccessfulCreatePod",
        "SuccessfulDeletePod",
    ),
)
"""Events that tell of a replacement, and those that would tell that it went another way."""


@contextmanager
def applied(manifest: Document) -> Iterator[JobOnCluster]:
    """The operator installed, and a job in a namespace of its own; all of it goes at the end."""
    cluster = Cluster()
    with ExitStack() as stack:
        installation = Installation(cluster, SYSTEM)
        installation.install()
        stack.callback(installation.uninstall)
        files = SharedFolder(cluster)
        stack.callback(files.close)
        name = f"bench-{uuid.uuid4().hex[:6]}"
        cluster.make_namespace(name)
        stack.callback(remove_namespace, cluster, name)
        files.make(name)
        stack.callback(files.remove, name)
        provide(cluster, name, name, CLAIM, f"{FOLDER}/{name}")
        yield apply_in(cluster, files, name, manifest)


def moment(event: Document) -> float:
    """When an event was reported."""
    at = event.get("eventTime") or event.get("firstTimestamp") or event["metadata"]["creationTimestamp"]
    return datetime.fromisoformat(at.replace("Z", "+00:00")).timestamp()


def recorded() -> Document:
    """Run the job once, and what came of it."""
    with applied(slowed_job()) as job:
        with History(job) as history:
            job.wait_for_step(HEALTHY_INTERVALS * INTERVAL)
            began = time.time()
            replaced = wait_for_replacement(job)
            wait_for(lambda: len(job.pods()) == 3, 120, "the pod of the straggler to go")
            job.wait_for_step(job.step() + 3 * INTERVAL)
        swap = min(
            version
            for version, plan in history.plans.items()
            if replaced.newcomer in {member.name for member in plan.members}
        )
        idle = [(job.pod_name(group), *idle_of(job.records(group), swap)) for group in (FIRST, LIMITED)]
        left, joined = job.records(SLOWED)[-1], job.records(SLOWED, replaced.index)[0]
        return {
            "benchmark": "replacement",
            "kubernetes": job.cluster.version,
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
            "events": [
                {"seconds": round(moment(event) - began), "reason": event["reason"], "message": event["message"]}
                for event in job.events()
                if event["reason"] in RECORDED and moment(event) >= began - 1
            ],
        }


def main(arguments: Sequence[str]) -> int:
    """Record, and print."""
    parser = argparse.ArgumentParser(description="Record how a straggler is replaced on a cluster.")
    options = runner.options_of(parser).parse_args(arguments)
    result = recorded()
    runner.report(result, tables_measured.replacement([result]), options)
    return 0


if __name__ == "__main__":
    runner.command(main)
