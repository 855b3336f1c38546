"""Real processes under real limits: every mechanism that works here, named in the ids of the tests."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from heterotrain_operator.api import HeteroTrainingJob, parse_manifest
from heterotrain_operator.clusters.local.cluster import LocalCluster
from heterotrain_operator.clusters.local.detect import working
from heterotrain_operator.clusters.local.limits import Mechanism
from heterotrain_operator.core.model import Decision, WorkerKey
from heterotrain_operator.core.state import Memory

MECHANISMS = {mechanism.name: mechanism for mechanism in working()}
WITH_MEMORY = [name for name in MECHANISMS if name.startswith("cgroup") and "cannot" not in MECHANISMS[name].describe()]


def pytest_report_header() -> str:
    """Which limits the tests of this machine run under."""
    return "limits tried here: " + "; ".join(mechanism.describe() for mechanism in MECHANISMS.values())


@pytest.fixture(params=MECHANISMS)
def mechanism(request: pytest.FixtureRequest) -> Mechanism:
    """Each mechanism that works here."""
    return MECHANISMS[request.param]


def make_job(script: str, *arguments: str, replicas: int = 1, **container: Any) -> HeteroTrainingJob:
    """A job of workers that run a Python script given as text."""
    spec = {"name": "t", "image": "none", "command": ["python", "-S", "-c", script, *arguments], **container}
    template = {"spec": {"containers": [spec], "terminationGracePeriodSeconds": 1}}
    return parse_manifest(
        {
            "apiVersion": "heterotrain.dev/v1alpha1",
            "kind": "HeteroTrainingJob",
            "metadata": {"name": "job"},
            "spec": {
                "workerGroups": [{"name": "cpu", "replicas": replicas, "template": template}],
                "training": {"globalBatchSize": 32, "steps": 10},
            },
        }
    )


def key(index: int = 0) -> WorkerKey:
    """The identity of a worker of that job."""
    return WorkerKey("cpu", index, f"job-cpu-{index}")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., LocalCluster]]:
    """A cluster that has started all workers of a job; closed in the end."""
    clusters: list[LocalCluster] = []

    def make(job: HeteroTrainingJob, mechanism: Mechanism | None = None) -> LocalCluster:
        cluster = LocalCluster(job, tmp_path / str(len(clusters)), None, mechanism=mechanism)
        clusters.append(cluster)
        cluster.observe()
        replicas = job.spec.worker_groups[0].replicas
        cluster.act(Decision("Running", "", create=tuple(map(key, range(replicas)))), Memory.initial())
        return cluster

    yield make
    for cluster in clusters:
        cluster.close()


def eventually(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Wait for a condition to hold, and return its value; the time only bounds a test that fails."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"did not happen within {seconds} s")


PYTHON = sys.executable
