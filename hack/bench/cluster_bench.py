"""The cluster with the operator installed, and namespaces to measure in; all of it goes at the end."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from e2e.api import Document
from e2e.cluster import Cluster
from e2e.conftest import SYSTEM, apply_in, remove_namespace
from e2e.installation import Installation
from e2e.jobs import JobOnCluster
from e2e.manifests import CLAIM
from e2e.shared_folder import FOLDER, SharedFolder, provide


class Bench:
    """A cluster with the operator, and namespaces to measure in."""

    def __init__(self, cluster: Cluster, files: SharedFolder, installation: Installation) -> None:
        self.cluster = cluster
        self.files = files
        self.installation = installation

    def apply(self, namespace: str, manifest: Document) -> JobOnCluster:
        """`kubectl apply` of a job."""
        return apply_in(self.cluster, self.files, namespace, manifest)

    @contextmanager
    def namespace(self) -> Iterator[str]:
        """One with a volume for checkpoints; it goes with what is in it."""
        name = f"bench-{uuid.uuid4().hex[:6]}"
        self.cluster.make_namespace(name)
        self.files.make(name)
        provide(self.cluster, name, name, CLAIM, f"{FOLDER}/{name}")
        try:
            yield name
        finally:
            remove_namespace(self.cluster, name)
            self.files.remove(name)


@contextmanager
def ready() -> Iterator[Bench]:
    """The operator installed, and removed at the end."""
    cluster = Cluster()
    installation = Installation(cluster, SYSTEM)
    installation.install()
    files = SharedFolder(cluster)
    try:
        yield Bench(cluster, files, installation)
    finally:
        files.close()
        installation.uninstall()
