"""The one way to the API server: plain dicts in and out, every write fenced, every error in our words.

Nothing here decides or retries: what failed is seen again in the next round. Paths are written down, since discovering
all that a cluster serves takes dozens of requests, for the few kinds that are needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from kubernetes.client import ApiClient

from heterotrain_operator.clusters.kube.api_server.transport import (
    CONFLICT,
    JSON,
    ConflictError,
    Document,
    GatewayError,
    Timeout,
    Transport,
)
from heterotrain_operator.clusters.kube.objects.names import FIELD_MANAGER, GROUP, PLURAL, VERSION

__all__ = [
    "FORBIDDEN",
    "JOB_API",
    "JOB_KIND",
    "REFUSALS",
    "REQUESTS_AT_ONCE",
    "ConflictError",
    "Gateway",
    "GatewayError",
    "JobGoneError",
    "missing_right",
]

JOB_KIND = "HeteroTrainingJob"
JOB_API = f"{GROUP}/{VERSION}"
OK, BAD_REQUEST, FORBIDDEN, NOT_FOUND, UNPROCESSABLE = 200, 400, 403, 404, 422

REFUSALS = frozenset({400, 403, 404, 409, 422})
"""HTTP statuses with which the API server refuses an object for what it is, and will again."""

REQUESTS_AT_ONCE = 16
"""Requests that are sent one after another before the thread is given back: what one job needs grows with its workers,
and the threads are everybody's."""

APPLY = "application/apply-patch+yaml"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
METADATA = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1,{JSON}"
METADATA_ONLY = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{JSON}"

_RESOURCES = {
    "ConfigMap": ("/api/v1", "configmaps"),
    "Event": ("/api/v1", "events"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "Node": ("/api/v1", "nodes"),
    "Pod": ("/api/v1", "pods"),
    "Secret": ("/api/v1", "secrets"),
    "Service": ("/api/v1", "services"),
    JOB_KIND: (f"/apis/{JOB_API}", PLURAL),
}
"""The path of each kind's API group, and its plural."""

_MANAGED = {"fieldManager": FIELD_MANAGER}


_RIGHT = re.compile(
    r'cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]+)")?'
)
"""Of the answer with which an API server says that RBAC grants something to nobody."""


def missing_right(error: GatewayError) -> str:
    """Which right the operator lacks, in words; empty if the refusal is for something else, such as a quota."""
    found = _RIGHT.search(error.why) if error.status == FORBIDDEN else None
    if found is None:
        return ""
    resource = ".".join(filter(None, (found["resource"], found["group"])))
    where = f"in namespace {found['namespace']}" if found["namespace"] else "in all namespaces"
    return f"the operator lacks the right to {found['verb']} {resource} {where}"


class JobGoneError(Exception):
    """The job of this UID is no more; perhaps another one has its name."""


class Gateway:
    """Reads and writes objects, each as the dict that the API server shows. For use by many threads."""

    def __init__(
        self,
        client: ApiClient,
        fence: Callable[[], None],
        wrote: Callable[[str, str], None],
        timeout: Timeout | None = None,
    ) -> None:
        """`fence` raises before a write that this process must not do any more; `wrote` counts verb and kind;
        `timeout` is that of one request, None: the client's.
        """
        self._transport = Transport(client, timeout)
        self._fence = fence
        self._wrote = wrote

    def check(self) -> None:
        """The fence itself, for what is no write to the API server: raises if this process must not act any more."""
        self._fence()

    def serves_jobs(self) -> bool:
        """Whether the cluster has our resource. Raises GatewayError."""
        return self._found(f"/apis/{JOB_API}", f"discover {JOB_API}") is not None

    def read(self, kind: str, namespace: str | None, name: str, *, accept: str = JSON) -> Document | None:
        """One object; None if there is none. Raises GatewayError."""
        found = self._found(_path(kind, namespace, name), f"get {kind} {name}", accept)
        if found is not None and not isinstance(found.get("metadata"), dict):
            why = "the answer is no object of the cluster"
            raise GatewayError(f"get {kind} {name}: {why}", OK, why=why)
        return found

    def job_text(self, metadata: Mapping[str, Any], *, most: int) -> bytes:
        """A job as the API server writes it; `metadata` hold its namespace and name.

        Raises TooLargeError if it has more than `most` bytes, JobGoneError if there is none, GatewayError.
        """
        namespace, name = metadata["namespace"], metadata["name"]
        try:
            return self._transport.text(_path(JOB_KIND, namespace, name), f"get {JOB_KIND} {name}", most=most)
        except GatewayError as error:
            if error.status != NOT_FOUND:
                raise
            raise JobGoneError(f"job {namespace}/{name} is gone") from error

    def may_list(self, kind: str, namespace: str) -> bool:
        """Whether the API server lets this account list a kind there. Raises GatewayError."""
        try:
            self._transport.ask(
                "GET", _path(kind, namespace), f"list {kind}", query={"limit": "1"}, accept=METADATA_ONLY
            )
        except GatewayError as error:
            if error.status != FORBIDDEN:
                raise
            return False
        return True

    def check_job(self, body: Mapping[str, Any]) -> None:
        """Raises JobGoneError if this very job is no more or is being deleted, GatewayError if the API server fails."""
        metadata = body["metadata"]
        found = self.read(JOB_KIND, metadata["namespace"], metadata["name"], accept=METADATA)
        there = {} if found is None else found["metadata"]
        if there.get("uid") != metadata["uid"] or "deletionTimestamp" in there:
            raise JobGoneError(f"job {metadata['namespace']}/{metadata['name']} of UID {metadata['uid']} is gone")

    def uids(self, kind: str, namespace: str, label: str, value: str) -> frozenset[str]:
        """UIDs of the objects of a kind that bear the label now. Raises GatewayError."""
        query = {"labelSelector": f"{label}={value}"}
        what = f"list {kind} of {value}"
        found = self._transport.ask("GET", _path(kind, namespace), what, query=query, accept=METADATA_ONLY)
        try:
            return frozenset(str(item["metadata"]["uid"]) for item in found["items"])
        except (KeyError, TypeError):
            raise _no_list(what) from None

    def listed(self, kind: str, namespace: str | None, *, labels: str = "", fields: str = "") -> Document:
        """The list of a kind, in a namespace or (None) in all: `items`, and in `metadata` the version to watch from.

        `labels` and `fields` are selectors. Raises GatewayError.
        """
        selectors = {"labelSelector": labels, "fieldSelector": fields}
        query = {name: value for name, value in selectors.items() if value}
        what = f"list {kind}"
        found = self._transport.ask("GET", _path(kind, namespace), what, query=query)
        if not isinstance(found.get("items"), list) or not isinstance(found.get("metadata"), dict):
            raise _no_list(what)
        return found

    def changes(
        self, kind: str, namespace: str, version: str, *, fields: str, seconds: int, timeout: Timeout
    ) -> Iterator[Document]:
        """The events of a watch from a version on, for so many seconds at most, each with a `type` and an `object`.

        Raises GatewayError, of status 410 if the version is too old.
        """
        query = {
            "fieldSelector": fields,
            "resourceVersion": version,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        return self._transport.events(_path(kind, namespace), f"watch {kind}", query=query, timeout=timeout)

    def log(
        self, namespace: str, pod: str, container: str, *, tail: int | None = None, follow: Timeout | None = None
    ) -> Iterator[bytes]:
        """What a container has printed, or its last `tail` lines, piece by piece; with `follow`, the time limit of
        such a request, until it ends. Raises GatewayError.
        """
        query = {"container": container} | ({} if tail is None else {"tailLines": str(tail)})
        query |= {} if follow is None else {"follow": "true"}
        path = f"{_path('Pod', namespace, pod)}/log"
        return self._transport.pieces(path, f"get the log of Pod {pod}", query=query, timeout=follow)

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
            # So is a failed test of the patch answered, and what a schema or a webhook refuses.
            refused = error.status == UNPROCESSABLE
            if error.status == NOT_FOUND or (refused and not self._is_there(namespace, name, uid)):
                raise JobGoneError(f"job {namespace}/{name} of UID {uid} is gone") from error
            raise

    # --- inside ---------------------------------------------------------------------------------------------

    def _is_there(self, namespace: str, name: str, uid: str) -> bool:
        job = self.read(JOB_KIND, namespace, name, accept=METADATA)
        return job is not None and job["metadata"].get("uid") == uid

    def _found(self, path: str, what: str, accept: str = JSON) -> Document | None:
        try:
            return self._transport.ask("GET", path, what, accept=accept)
        except GatewayError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    def _write(self, verb: str, method: str, path: str, kind: str, name: str, **request: Any) -> Document:
        self._fence()
        written = self._transport.ask(method, path, f"{verb} {kind} {name}", **request)
        self._wrote(verb, kind)
        return written


def _no_list(what: str) -> GatewayError:
    why = "the answer is no list"
    return GatewayError(f"{what}: {why}", OK, why=why)


def _path(kind: str, namespace: str | None, name: str = "") -> str:
    """Of one object, or of all of its kind; in a namespace, or without one: of all namespaces, or of the cluster.

    Namespace and name may come from a command line, so each is quoted: it stays one part of the path, whatever it
    holds. Raises GatewayError if nothing can have that name.
    """
    prefix, plural = _RESOURCES[kind]
    parts = (prefix, f"namespaces/{_part(namespace)}" if namespace is not None else "", plural, _part(name))
    return "/".join(filter(None, parts))


def _part(text: str) -> str:
    if text in (".", ".."):  # in a path these are the folder itself and the one above it, quoted or not
        raise GatewayError(f"{text!r} is no name", BAD_REQUEST)
    return quote(text, safe="")
