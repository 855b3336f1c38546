"""What the tests of the local backend share: the mechanisms that work here, small jobs, and patience."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heterotrain.contract import Member, Plan
from heterotrain_operator.api import HeteroTrainingJob, parse_manifest
from heterotrain_operator.clusters.local import leftovers
from heterotrain_operator.clusters.local.cluster import LocalCluster
from heterotrain_operator.clusters.local.limits import working
from heterotrain_operator.clusters.local.limits.mechanism import NEIGHBOUR
from heterotrain_operator.core.model import WorkerKey, WorkerSeen
from unit.cli.commands import eventually

MECHANISMS = {mechanism.name: mechanism for mechanism in working()}
"""Those that work on this machine; the duty cycle always does."""

LIMITING_MEMORY = [name for name in MECHANISMS if getattr(MECHANISMS[name], "memory", None)]

SPIN = "while True: pass"
SLEEP = "import time\nwhile True: time.sleep(60)"
PLAN = Plan(1, 1, "step", (Member("job-cpu-0", "u", "127.0.0.1:1", "cpu", 32),))
EACH = "import os, sys\nexec(sys.argv[1 + int(os.environ['HETEROTRAIN_WORKER'].rpartition('-')[2])])"
IGNORE_TERM = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\n" + SLEEP


def make_job(
    script: str,
    *arguments: str,
    replicas: int = 1,
    grace_seconds: int = 1,
    spec: Mapping[str, Any] | None = None,
    **container: Any,
) -> HeteroTrainingJob:
    """A job of workers that run a Python script given as text; `container` and `spec` add or replace fields."""
    fields = {"name": "t", "command": ["python", "-S", "-c", script, *arguments], **container}
    template = {"spec": {"containers": [fields], "terminationGracePeriodSeconds": grace_seconds}}
    return parse_manifest(
        {
            "apiVersion": "heterotrain.dev/v1alpha1",
            "kind": "HeteroTrainingJob",
            "metadata": {"name": "job"},
            "spec": {
                "workerGroups": [{"name": "cpu", "replicas": replicas, "template": template}],
                "training": {"globalBatchSize": 32, "steps": 10},
                **(spec or {}),
            },
        }
    )


def each_does(*scripts: str, **options: Any) -> HeteroTrainingJob:
    """A job with a worker for each script."""
    return make_job(EACH, *scripts, replicas=len(scripts), **options)


def key(index: int = 0) -> WorkerKey:
    """The identity of a worker of that job."""
    return WorkerKey("cpu", index, f"job-cpu-{index}")


def cgroup_folders(pid: int) -> list[Path]:
    """The cgroups of workers of one runner; those of others may come and go meanwhile."""
    parents = {parent for mechanism in MECHANISMS.values() for parent in mechanism.parents}
    return [folder for parent in parents for folder in parent.glob(f"heterotrain-{pid}-*-job-cpu-*")]


def neighbours_of(pid: int) -> list[int]:
    """The busy processes beside workers of one runner that still run."""
    found = []
    for each in leftovers.all_pids():
        marked = any(entry.startswith(f"{leftovers.ENV_RUNNER}={pid}-") for entry in leftovers.environment(each))
        if marked and leftovers.alive(each) and NEIGHBOUR in _words_of(each):
            found.append(each)
    return found


def _words_of(pid: int) -> str:
    try:
        return (leftovers.PROC / str(pid) / "cmdline").read_text()
    except OSError:
        return ""


def only(cluster: LocalCluster) -> WorkerSeen:
    """The one worker."""
    [worker] = cluster.observe()[0].workers
    return worker


def all_ended(cluster: LocalCluster) -> list[WorkerSeen]:
    """The workers, once all have ended."""
    found = cluster.observe()[0].workers
    while None in {worker.exit_code for worker in found}:
        cluster.wait(60)
        found = cluster.observe()[0].workers
    return list(found)


def says(cluster: LocalCluster, text: str, name: str = "job-cpu-0") -> str:
    """Wait until a worker's log holds this text; the log."""
    return eventually(lambda: log if text in (log := cluster.log_file(name).read_text()) else "")
