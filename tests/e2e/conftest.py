"""The cluster, the installed operator, and a namespace for each test, removed again with all that the test did."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from e2e.api import Document
from e2e.cluster import Cluster
from e2e.diagnosis import diagnosis
from e2e.installation import Installation, apply_resource, steering_only
from e2e.jobs import JobOnCluster
from e2e.manifests import CLAIM
from e2e.nodes import Nodes
from e2e.shared_folder import FOLDER, SharedFolder, provide
from e2e.side_by_side import Shared
from e2e.waiting import wait_for

SYSTEM = "heterotrain-system"

ONE_AFTER_THE_OTHER = {
    "test_nodes.py",
    "test_devices.py",
    "test_monitoring.py",
    "test_release.py",
    "test_tutorial.py",
}
"""Files of tests that stop nodes, or load images into all of them, which fails where one is stopped."""

Apply = Callable[[Document], JobOnCluster]


class Scheduling(LoadScopeScheduling):
    """Tests go one by one to whoever is free, but for those above."""

    def _split_scope(self, nodeid: str) -> str:
        return "nodes" if nodeid.partition("::")[0].rpartition("/")[2] in ONE_AFTER_THE_OTHER else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    """Used where tests run beside each other."""
    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those first that have an operator of their own, before there is one for all; and of each kind those that may take
    the longest, so that in the end nobody waits for one."""

    def order(item: pytest.Item) -> tuple[bool, float]:
        mark = item.get_closest_marker("timeout")
        return item.get_closest_marker("disruptive") is None, -float(mark.args[0]) if mark else 0.0

    items.sort(key=order)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that failed says so at once, for a whole run takes long, and tells what the cluster looked like."""
    report = yield
    if report.failed:
        item.config.get_terminal_writer().write(f"\n{report.longreprtext}\n")
    arguments = getattr(item, "funcargs", {})
    if report.failed and "installation" in arguments and call.when != "teardown":
        report.sections.append(("cluster", diagnosis(arguments["installation"], arguments.get("_namespaces", []))))
    return report


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The cluster that KUBECONFIG names."""
    return Cluster()


@pytest.fixture(scope="session")
def nodes(cluster: Cluster) -> Iterator[Nodes]:
    """Its nodes, to be stopped and started; whatever a test did to them is undone."""
    nodes = Nodes(cluster)
    yield nodes
    nodes.restore()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """What this process of tests has together with the ones beside it."""
    return Shared(tmp_path_factory.getbasetemp(), os.environ.get("PYTEST_XDIST_WORKER"))


@pytest.fixture(scope="session")
def files(cluster: Cluster, shared: Shared) -> Iterator[SharedFolder]:
    """The folder that all nodes share."""
    files = SharedFolder(cluster)
    with shared("files", files.provide, files.close):
        yield files
        files.remove_all()


@pytest.fixture(scope="session")
def common_installation(cluster: Cluster, shared: Shared) -> Iterator[Installation]:
    """The operator, installed for all namespaces."""
    installation = Installation(cluster, SYSTEM)
    # Those of the tests before go in their own time.
    wait_for(
        lambda: not installation.others(),
        60,
        lambda: f"operators that would steer the same jobs to be removed: {', '.join(installation.others())}",
    )
    with shared("installation", installation.install, installation.uninstall):
        yield installation


@pytest.fixture
def installation(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Installation]:
    """The operator that tests share; a test that disturbs it has one of its own, which knows its namespace alone."""
    disruptive = request.node.get_closest_marker("disruptive")
    if disruptive is None:
        yield request.getfixturevalue("common_installation")
        return
    common = [pod["metadata"]["name"] for pod in Installation(cluster, SYSTEM).pods()]
    assert not common, (
        f"these operators of {SYSTEM} would steer the same jobs, so remove them first: {', '.join(common)}"
    )
    apply_resource(cluster)
    steered = request.getfixturevalue("namespace")
    own = Installation(cluster, f"{steered}-operator", values=steering_only(steered))
    try:
        own.install(*disruptive.args)
        yield own
    finally:
        own.uninstall(wait=False)


@pytest.fixture
def _namespaces() -> list[str]:
    """Those of the running test."""
    return []


@pytest.fixture
def make_namespace(
    cluster: Cluster, files: SharedFolder, _namespaces: list[str], request: pytest.FixtureRequest
) -> Iterator[Callable[[], str]]:
    """Makes namespaces that enforce the *restricted* standard, each with a claim on a volume of its own."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-").removeprefix("test-")

    def make() -> str:
        name = f"{words[:40].strip('-')}-{uuid.uuid4().hex[:6]}"
        cluster.make_namespace(name)
        _namespaces.append(name)
        files.make(name)
        provide(cluster, name, name, CLAIM, f"{FOLDER}/{name}")
        return name

    yield make
    for name in _namespaces:
        remove_namespace(cluster, name)


@pytest.fixture
def namespace(make_namespace: Callable[[], str]) -> str:
    """The test's own namespace."""
    return make_namespace()


@pytest.fixture
def apply(cluster: Cluster, files: SharedFolder, installation: Installation, namespace: str) -> Apply:
    """`kubectl apply` of a job into the test's namespace."""
    return lambda manifest: apply_in(cluster, files, namespace, manifest)


def apply_in(cluster: Cluster, files: SharedFolder, namespace: str, manifest: Document) -> JobOnCluster:
    """`kubectl apply` of a job into a namespace."""
    cluster.apply({**manifest, "metadata": {**manifest["metadata"], "namespace": namespace}})
    return JobOnCluster(cluster, files, namespace, manifest)


def remove_namespace(cluster: Cluster, name: str) -> None:
    """Have a namespace go in its own time; its pods first, and quickly, for they would slow the next test down."""
    where = f"--namespace={name}"
    cluster.kubectl("delete", "heterotrainingjobs", "--all", where, "--wait=false")
    cluster.kubectl("delete", "pods", "--all", where, "--grace-period=1", "--wait=false")
    cluster.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")  # a test may have done so
    cluster.kubectl("delete", "persistentvolume", name, "--wait=false")
