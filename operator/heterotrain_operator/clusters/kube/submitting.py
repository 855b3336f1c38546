"""What people change on a cluster: create a job, and delete one; all else they only read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from heterotrain_operator.clusters.kube.api_server.access import Connection
from heterotrain_operator.clusters.kube.api_server.gateway import JOB_KIND
from heterotrain_operator.clusters.kube.api_server.transport import Document
from heterotrain_operator.clusters.kube.reading import NOT_FOUND, RESOURCE, Reader
from heterotrain_operator.clusters.kube.reading_errors import JobExistsError, JobRefusedError, ReadingError

CONFLICT = 409


class Submitter(Reader):
    """A reader that also creates and deletes jobs of its namespace. All methods raise ReadingError in its kinds."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, lambda: None)

    def create(self, document: dict[str, Any]) -> Document:
        """Create a job in the namespace; the object as the cluster stores it.

        Raises JobExistsError if there is one of that name, JobRefusedError with what the cluster finds wrong with it.
        """
        name = document["metadata"]["name"]
        body = {**document, "metadata": {**document["metadata"], "namespace": self.namespace}}
        exists = f"there is a job {name!r} in namespace {self.namespace} already; delete it, or choose another name"
        answers: dict[int, Callable[[str], ReadingError]] = {
            400: JobRefusedError,
            422: JobRefusedError,
            NOT_FOUND: self._not_installed,
            CONFLICT: lambda _: JobExistsError(exists),
        }
        with self._in_words("create", f"{RESOURCE} {self._where}", answers=answers):
            return self._gateway.create(body)

    def delete(self, name: str) -> None:
        """Delete a job; its workers end, and go with it. Raises JobNotFoundError."""
        uid = self.job(name)["metadata"]["uid"]
        with self._in_words("delete", f"{RESOURCE} {self._where}"):
            self._gateway.delete(JOB_KIND, self.namespace, name, uid=uid)
