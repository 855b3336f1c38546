"""The one way to the API server: plain dicts in and out, every write fenced, every error in our words.

Nothing here decides or retries: what failed is seen again in the next round.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from kubernetes.client import ApiClient, ApiException
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import ResourceNotFoundError
from urllib3.exceptions import HTTPError

from heterotrain_operator.clusters.kube.names import FIELD_MANAGER, GROUP, VERSION

JOB_KIND = "HeteroTrainingJob"
JOB_API = f"{GROUP}/{VERSION}"
NOT_FOUND, CONFLICT = 404, 409

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"


class GatewayError(Exception):
    """The API server refused or did not answer; `status` is its HTTP status, None if there was none."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ConflictError(GatewayError):
    """The object exists already, or is not of the version that was expected."""


class Gateway:
    """Reads and writes objects, each as the dict that the API server shows."""

    def __init__(self, client: ApiClient, fence: Callable[[], None], wrote: Callable[[str, str], None]) -> None:
        """`fence` raises before a write that this process must not do any more; `wrote` counts verb and kind.

        Raises GatewayError if the API server does not answer.
        """
        self._fence = fence
        self._wrote = wrote
        try:
            self._client = DynamicClient(client)
        except (HTTPError, ApiException) as error:
            raise _described("discover", "the API server", "", error) from error

    def read(self, kind: str, namespace: str | None, name: str) -> dict[str, Any] | None:
        """One object; None if there is none. Raises GatewayError."""
        try:
            return self._call("get", kind, name, name=name, namespace=namespace)
        except GatewayError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    def create(self, body: Mapping[str, Any], *, generated: bool = False) -> dict[str, Any]:
        """A new object; `generated`: its name comes from metadata.generateName.

        Raises ConflictError if there is one of that name, GatewayError otherwise.
        """
        name = body["metadata"]["generateName" if generated else "name"]
        return self._write("create", body["kind"], name, body=body, namespace=body["metadata"]["namespace"])

    def apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Server-side apply: make the object what `body` says of it, new or not.

        With a resourceVersion in it, raises ConflictError if the object is of another. Raises GatewayError.
        """
        return self._write(
            "server_side_apply",
            body["kind"],
            body["metadata"]["name"],
            body=body,
            namespace=body["metadata"]["namespace"],
            force_conflicts=True,
        )

    def annotate(self, kind: str, namespace: str, name: str, annotations: Mapping[str, str]) -> None:
        """Set annotations; an object that is gone needs none. Raises GatewayError."""
        body = {"metadata": {"annotations": dict(annotations)}}
        self._write_unless_gone(
            "patch", kind, name, namespace=namespace, name=name, body=body, content_type=MERGE_PATCH
        )

    def delete(self, kind: str, namespace: str, name: str, *, uid: str, grace_seconds: int | None = None) -> None:
        """Delete this very object (by UID); one that is gone, or another of its name, is left alone.

        `grace_seconds` 0 does not wait for its node. Raises GatewayError.
        """
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        try:
            self._write_unless_gone("delete", kind, name, namespace=namespace, name=name, body=body)
        except ConflictError:
            return

    def write_status(self, namespace: str, name: str, uid: str, status: Mapping[str, Any]) -> None:
        """Replace a job's status; a job that is gone, or another of its name, needs none. Raises GatewayError."""
        self._fence()
        body = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "add", "path": "/status", "value": dict(status)},
        ]
        resource = self._resource(JOB_API, JOB_KIND)
        try:
            resource.subresources["status"].patch(
                body=body, name=name, namespace=namespace, content_type=JSON_PATCH, field_manager=FIELD_MANAGER
            )
        except (HTTPError, ApiException) as error:
            described = _described("patch status of", JOB_KIND, name, error)
            if described.status not in (NOT_FOUND, 422):  # 422: the test of the UID failed
                raise described from error
        self._wrote("patch", f"{JOB_KIND}/status")

    # --- inside ---------------------------------------------------------------------------------------------

    def _resource(self, api_version: str, kind: str) -> Any:
        try:
            return self._client.resources.get(api_version=api_version, kind=kind)
        except ResourceNotFoundError as error:
            raise GatewayError(f"the API server knows no {kind} in {api_version}", NOT_FOUND) from error
        except (HTTPError, ApiException) as error:
            raise _described("discover", kind, "", error) from error

    def _write(self, verb: str, kind: str, subject: str, **arguments: Any) -> dict[str, Any]:
        self._fence()
        result = self._call(verb, kind, subject, field_manager=FIELD_MANAGER, **arguments)
        self._wrote("apply" if verb == "server_side_apply" else verb, kind)
        return result

    def _write_unless_gone(self, verb: str, kind: str, subject: str, **arguments: Any) -> None:
        try:
            self._write(verb, kind, subject, **arguments)
        except GatewayError as error:
            if error.status != NOT_FOUND:
                raise

    def _call(self, verb: str, kind: str, subject: str, **arguments: Any) -> dict[str, Any]:
        resource = self._resource(JOB_API if kind == JOB_KIND else "v1", kind)
        if arguments.get("namespace") is None:
            arguments.pop("namespace", None)
        try:
            result = getattr(self._client, verb)(resource, **arguments)
        except (HTTPError, ApiException) as error:
            raise _described(verb, kind, subject, error) from error
        document: dict[str, Any] = result.to_dict()
        return document


def _described(verb: str, kind: str, name: str, error: HTTPError | ApiException) -> GatewayError:
    """What went wrong, with the API server's own reason where it gave one."""
    what = f"{verb.replace('_', ' ')} {kind} {name}".strip()
    if not isinstance(error, ApiException):
        return GatewayError(f"{what}: the API server does not answer ({error})")
    reason = _message(error)
    kind_of = ConflictError if error.status == CONFLICT else GatewayError
    return kind_of(f"{what}: {reason} (HTTP {error.status})", error.status)


def _message(error: ApiException) -> str:
    """The `message` of the Status object in the answer's body, or the HTTP reason."""
    try:
        status = json.loads(error.body or "")
    except (TypeError, ValueError):
        return str(error.reason)
    if isinstance(status, dict) and status.get("message"):
        return str(status["message"])
    return str(error.reason)
