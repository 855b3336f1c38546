"""Real processes under real limits: every mechanism that works here, named in the ids of the tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heterotrain_operator.api import HeteroTrainingJob
from heterotrain_operator.clusters.local import leftovers
from heterotrain_operator.clusters.local.chaos import Chaos
from heterotrain_operator.clusters.local.cluster import LocalCluster
from heterotrain_operator.clusters.local.limits import Mechanism
from heterotrain_operator.core.model import Decision
from heterotrain_operator.core.state import Remembered
from unit.local.small_jobs import LIMITING_MEMORY, MECHANISMS, cgroup_folders, key

Start = Callable[..., LocalCluster]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say under which limits the tests of this machine ran."""
    for mechanism in MECHANISMS.values():
        terminalreporter.write_line(f"limits tested here: {mechanism.describe()}")


@pytest.fixture(params=MECHANISMS)
def mechanism(request: pytest.FixtureRequest) -> Mechanism:
    """Each mechanism that works here."""
    return MECHANISMS[request.param]


@pytest.fixture(params=LIMITING_MEMORY)
def memory_mechanism(request: pytest.FixtureRequest) -> Mechanism:
    """Each mechanism that works here and limits memory; without any, its tests are skipped."""
    return MECHANISMS[request.param]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Makes a cluster that has started all workers of a job; it is closed in the end."""
    clusters: list[LocalCluster] = []

    def make(job: HeteroTrainingJob, mechanism: Mechanism | None = None) -> LocalCluster:
        cluster = LocalCluster(job, tmp_path / str(len(clusters)), None, mechanism=mechanism)
        clusters.append(cluster)
        cluster.observe()
        keys = tuple(key(index) for index in range(job.spec.worker_groups[0].replicas))
        cluster.act(Decision("Running", "", create=keys), Remembered.initial())
        return cluster

    yield make
    for cluster in clusters:
        cluster.close()


@pytest.fixture
def nothing_stays_behind() -> Iterator[None]:
    """After every test: no cgroup of ours, no process that carries the mark of a cluster of this process."""
    yield
    assert not cgroup_folders(os.getpid())
    mark = f"{leftovers.ENV_RUNNER}={os.getpid()}-"
    left = [pid for pid in leftovers.all_pids() for entry in leftovers.environment(pid) if entry.startswith(mark)]
    assert not [pid for pid in left if leftovers.alive(pid)]


@pytest.fixture
def chaos_in() -> Iterator[Callable[..., Chaos]]:
    """Makes the chaos of a cluster; it is closed in the end."""
    made: list[Chaos] = []

    def make(cluster: LocalCluster, **options: Callable[[], float]) -> Chaos:
        made.append(Chaos(cluster, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
