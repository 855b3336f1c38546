"""The one way to the API server: plain dicts in and out, every write fenced, every error in our words.

Nothing here decides or retries: what failed is seen again in the next round. Paths are written down, since discovering
all that a cluster serves takes dozens of requests, for the few kinds that are needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from kubernetes.client import ApiClient, ApiException
from urllib3.exceptions import HTTPError

from heterotrain_operator.clusters.kube.objects.names import FIELD_MANAGER, GROUP, PLURAL, VERSION

JOB_KIND = "HeteroTrainingJob"
JOB_API = f"{GROUP}/{VERSION}"
FORBIDDEN, NOT_FOUND, CONFLICT, UNPROCESSABLE = 403, 404, 409, 422

JSON = "application/json"
APPLY = "application/apply-patch+yaml"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
METADATA_ONLY = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{JSON}"

_PATHS = {
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Event": "/api/v1/namespaces/{}/events",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "Node": "/api/v1/nodes",
    "Pod": "/api/v1/namespaces/{}/pods",
    "Secret": "/api/v1/namespaces/{}/secrets",
    "Service": "/api/v1/namespaces/{}/services",
    JOB_KIND: f"/apis/{JOB_API}/namespaces/{{}}/{PLURAL}",
}

_MANAGED = {"fieldManager": FIELD_MANAGER}

Document = dict[str, Any]


class GatewayError(Exception):
    """The API server refused or did not answer.

    `status` is its HTTP status, None if there was none; `causes`: it named the fields at fault.
    """

    def __init__(self, message: str, status: int | None = None, *, causes: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.causes = causes


class ConflictError(GatewayError):
    """The object exists already, or is not of the version that was expected, or something that it depends on is not.

    `exists` tells the first from the others.
    """

    exists = False


class JobGoneError(Exception):
    """The job of this UID is no more; perhaps another one has its name."""


class Gateway:
    """Reads and writes objects, each as the dict that the API server shows. For use by many threads."""

    def __init__(self, client: ApiClient, fence: Callable[[], None], wrote: Callable[[str, str], None]) -> None:
        """`fence` raises before a write that this process must not do any more; `wrote` counts verb and kind."""
        self._client = client
        self._fence = fence
        self._wrote = wrote

    def check(self) -> None:
        """The fence itself, for what is no write to the API server: raises if this process must not act any more."""
        self._fence()

    def serves_jobs(self) -> bool:
        """Whether the cluster has our resource. Raises GatewayError."""
        return self._found(f"/apis/{JOB_API}", f"discover {JOB_API}") is not None

    def read(self, kind: str, namespace: str | None, name: str) -> Document | None:
        """One object; None if there is none. Raises GatewayError."""
        return self._found(_path(kind, namespace, name), f"get {kind} {name}")

    def may_list(self, kind: str, namespace: str) -> bool:
        """Whether the API server lets this account list a kind there. Raises GatewayError."""
        try:
            self._call("GET", _path(kind, namespace), f"list {kind}", query={"limit": "1"}, accept=METADATA_ONLY)
        except GatewayError as error:
            if error.status != FORBIDDEN:
                raise
            return False
        return True

    def uids(self, kind: str, namespace: str, label: str, value: str) -> frozenset[str]:
        """UIDs of the objects of a kind that bear the label now. Raises GatewayError."""
        query = {"labelSelector": f"{label}={value}"}
        what = f"list {kind} of {value}"
        found = self._call("GET", _path(kind, namespace), what, query=query, accept=METADATA_ONLY)
        return frozenset(item["metadata"]["uid"] for item in found["items"])

    def create(self, body: Mapping[str, Any]) -> Document:
        """A new object, without fields that the API server does not know.

        Raises ConflictError if there is one of that name, GatewayError otherwise.
        """
        metadata = body["metadata"]
        name = metadata["name"] if "name" in metadata else metadata["generateName"]
        path = _path(body["kind"], metadata["namespace"])
        query = {**_MANAGED, "fieldValidation": "Strict"}
        return self._write("create", "POST", path, body["kind"], name, query=query, body=body)

    def apply(self, body: Mapping[str, Any]) -> Document:
        """Server-side apply: make the object what `body` says of it, new or not.

        With a resourceVersion in it, raises ConflictError if the object is of another. Raises GatewayError.
        """
        metadata = body["metadata"]
        path = _path(body["kind"], metadata["namespace"], metadata["name"])
        query = {**_MANAGED, "force": "true"}
        return self._write(
            "apply", "PATCH", path, body["kind"], metadata["name"], query=query, body=body, content_type=APPLY
        )

    def annotate(self, kind: str, namespace: str, name: str, annotations: Mapping[str, str]) -> None:
        """Set annotations; an object that is gone needs none. Raises GatewayError."""
        path = _path(kind, namespace, name)
        body = {"metadata": {"annotations": dict(annotations)}}
        try:
            self._write("patch", "PATCH", path, kind, name, query=_MANAGED, body=body, content_type=MERGE_PATCH)
        except GatewayError as error:
            if error.status != NOT_FOUND:
                raise

    def delete(self, kind: str, namespace: str, name: str, *, uid: str, grace_seconds: int | None = None) -> bool:
        """Delete this very object, by its UID. Returns whether it was still there; another of its name stays.

        `grace_seconds` 0 does not wait for its node. Raises GatewayError.
        """
        body: Document = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        try:
            self._write("delete", "DELETE", _path(kind, namespace, name), kind, name, body=body)
        except GatewayError as error:
            if error.status not in (NOT_FOUND, CONFLICT):
                raise
            return False
        return True

    def write_status(self, namespace: str, name: str, uid: str, status: Mapping[str, Any]) -> None:
        """Replace a job's status.

        Raises JobGoneError if the job is no more, or another has its name; GatewayError otherwise.
        """
        path = f"{_path(JOB_KIND, namespace, name)}/status"
        body = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "add", "path": "/status", "value": dict(status)},
        ]
        kind = f"{JOB_KIND}/status"
        try:
            self._write("patch", "PATCH", path, kind, name, query=_MANAGED, body=body, content_type=JSON_PATCH)
        except GatewayError as error:
            # A schema names the fields that it forbids; a test that failed is answered without a word.
            another = error.status == UNPROCESSABLE and not error.causes
            if another or error.status == NOT_FOUND:
                raise JobGoneError(f"job {namespace}/{name} of UID {uid} is gone") from error
            raise

    # --- inside ---------------------------------------------------------------------------------------------

    def _found(self, path: str, what: str) -> Document | None:
        try:
            return self._call("GET", path, what)
        except GatewayError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    def _write(self, verb: str, method: str, path: str, kind: str, name: str, **request: Any) -> Document:
        self._fence()
        written = self._call(method, path, f"{verb} {kind} {name}", **request)
        self._wrote(verb, kind)
        return written

    def _call(
        self,
        method: str,
        path: str,
        what: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> Document:
        """One request; `what` it was for begins the text of every error."""
        request = self._client.param_serialize(
            method=method,
            resource_path=path,
            query_params=list((query or {}).items()),
            header_params={"Accept": accept, "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            response = self._client.call_api(*request)
            data = response.read()
        except (HTTPError, ApiException) as error:
            raise GatewayError(f"{what}: the API server does not answer ({error})") from error
        document = _document(data)
        if not 200 <= response.status <= 299:
            raise _refused(what, response.status, response.reason, document or {})
        if document is None:
            raise GatewayError(f"{what}: the answer is no object (HTTP {response.status})", response.status)
        return document


def _path(kind: str, namespace: str | None, name: str = "") -> str:
    path = _PATHS[kind].format(namespace)
    return f"{path}/{name}" if name else path


def _document(data: bytes) -> Document | None:
    """A JSON object; None if it is none, as what a proxy says in the API server's place."""
    try:
        document = json.loads(data)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _refused(what: str, status: int, reason: str, document: Mapping[str, Any]) -> GatewayError:
    """What went wrong, with the API server's own message where it gave one."""
    message = f"{what}: {document.get('message') or reason} (HTTP {status})"
    causes = (document.get("details") or {}).get("causes")
    if status != CONFLICT:
        return GatewayError(message, status, causes=bool(causes))
    conflict = ConflictError(message, status, causes=bool(causes))
    conflict.exists = document.get("reason") == "AlreadyExists"
    return conflict
