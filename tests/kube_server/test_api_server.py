"""What the operator relies on in an API server, checked on the tiny one and, with `-m e2e`, on a cluster.

So the tests that use the tiny one speak of something real.
"""

from __future__ import annotations

import contextlib
import json
import urllib.parse
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heterotrain_operator.clusters.kube.api_server.access import Access, connect
from heterotrain_operator.clusters.kube.api_server.gateway import METADATA, METADATA_ONLY
from heterotrain_operator.clusters.kube.api_server.transport import PatientClient
from kube_server.api_server import APPLY, JSON_PATCH, ApiServer, Document
from kube_server.serving import kubeconfig, serving

JSON = "application/json"
NAMESPACES = "/api/v1/namespaces"
MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "1"}}
MERGE = "application/merge-patch+json"


class Server:
    """Requests to either, below the namespace."""

    def __init__(self, client: PatientClient) -> None:
        self._client = client
        self._namespace = f"contract-{uuid.uuid4().hex[:8]}"

    def __enter__(self) -> Server:
        self.raw("POST", NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self._namespace}})
        return self

    def __exit__(self, *_: object) -> None:
        self.raw("DELETE", f"{NAMESPACES}/{self._namespace}")

    def ask(
        self, method: str, path: str, body: Any = None, kind: str = JSON, accept: str = JSON
    ) -> tuple[int, Document]:
        return self.raw(method, f"{NAMESPACES}/{self._namespace}/{path}", body, kind, accept)

    def raw(
        self, method: str, path: str, body: Any = None, kind: str = JSON, accept: str = JSON
    ) -> tuple[int, Document]:
        """HTTP status and the document of the answer."""
        headers = {"Content-Type": kind, "Accept": accept}
        request = self._client.param_serialize(
            method, path, body=body, header_params=headers, auth_settings=["BearerToken"]
        )
        answer = self._client.call_api(*request)
        return answer.status, json.loads(answer.read())

    def apply(self, body: Document) -> tuple[int, Document]:
        return self.ask("PATCH", f"configmaps/{body['metadata']['name']}?fieldManager=t&force=true", body, APPLY)


def owned_by(owner_name: str, uid: str) -> Document:
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner_name, "uid": uid, "controller": True}
    return {**MAP, "metadata": {"name": "m", "ownerReferences": [owner]}}


def of_version(version: str) -> Document:
    return {**MAP, "metadata": {"name": "m", "resourceVersion": version}, "data": {"a": "2"}}


@pytest.fixture(params=["tiny", pytest.param("cluster", marks=pytest.mark.e2e)])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with contextlib.ExitStack() as stack:
        path = None
        if request.param == "tiny":
            path = str(kubeconfig(tmp_path / "kubeconfig", stack.enter_context(serving(ApiServer()))))
        found = stack.enter_context(connect(Access(path)).api)
        client = stack.enter_context(PatientClient(found.configuration))
        yield stack.enter_context(Server(client))


def test_name_is_taken_once(server: Server) -> None:
    assert server.ask("POST", "configmaps", MAP)[0] == 201
    code, status = server.ask("POST", "configmaps", MAP)
    assert (code, status["reason"]) == (409, "AlreadyExists")


def test_apply_creates_changes_nothing_where_all_is_so_and_conflicts_with_another_version(server: Server) -> None:
    code, first = server.apply(of_version("5"))
    assert code == 201, "whatever version it was of"
    version = first["metadata"]["resourceVersion"]
    code, second = server.apply(of_version(version))
    assert (code, second["metadata"]["resourceVersion"]) == (200, version)
    code, status = server.apply(of_version("5"))
    assert (code, status["reason"]) == (409, "Conflict")


def test_apply_takes_over_from_another_owner(server: Server) -> None:
    # Owners that exist: what nobody owns is collected as garbage, perhaps between two requests.
    uids = {
        name: server.ask("POST", "configmaps", {**MAP, "metadata": {"name": name}})[1]["metadata"]["uid"]
        for name in ("one", "two")
    }
    server.apply(owned_by("one", uids["one"]))
    code, found = server.apply(owned_by("two", uids["two"]))
    assert code == 200
    assert [owner["uid"] for owner in found["metadata"]["ownerReferences"]] == [uids["two"]]


def test_only_the_object_of_the_uid_is_deleted(server: Server) -> None:
    _, found = server.apply(MAP)
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "another"}}
    code, status = server.ask("DELETE", "configmaps/m", options)
    assert (code, status["reason"]) == (409, "Conflict")
    options["preconditions"] = {"uid": found["metadata"]["uid"]}
    assert server.ask("DELETE", "configmaps/m", options)[0] == 200
    assert server.ask("DELETE", "configmaps/m", options)[0] == 404


def test_failed_test_of_a_json_patch_is_refused_without_causes(server: Server) -> None:
    server.apply(MAP)
    patch = [
        {"op": "test", "path": "/metadata/uid", "value": "another"},
        {"op": "add", "path": "/data", "value": {"b": "2"}},
    ]
    code, status = server.ask("PATCH", "configmaps/m", patch, JSON_PATCH)
    assert (code, status.get("details", {}).get("causes")) == (422, None)
    assert server.ask("PATCH", "configmaps/m", patch[1:], JSON_PATCH)[1]["data"] == {"b": "2"}
    assert server.ask("PATCH", "configmaps/none", {"data": {"b": "2"}}, MERGE)[0] == 404


def names(found: Document) -> list[str]:
    return [item["metadata"]["name"] for item in found["items"]]


def test_list_is_of_those_with_the_label_or_field_and_is_continued_until_all_were_there(server: Server) -> None:
    for name in "abc":
        server.apply({**MAP, "metadata": {"name": name, "labels": {"a": "b"}}})
    assert names(server.ask("GET", "configmaps?labelSelector=a%3Dc")[1]) == []
    assert names(server.ask("GET", "configmaps?fieldSelector=metadata.name%3Dc")[1]) == ["c"]
    _, first = server.ask("GET", "configmaps?labelSelector=a%3Db&limit=2")
    assert (names(first), bool(first["metadata"]["resourceVersion"])) == (["a", "b"], True)
    token = urllib.parse.quote(first["metadata"]["continue"])
    _, second = server.ask("GET", f"configmaps?labelSelector=a%3Db&limit=2&continue={token}")
    assert (names(second), second["metadata"].get("continue") or "") == (["c"], "")
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


def test_metadata_are_given_alone_where_no_more_is_asked_for(server: Server) -> None:
    server.apply({**MAP, "metadata": {"name": "m", "labels": {"a": "b"}}})
    _, one = server.ask("GET", "configmaps/m", accept=METADATA)
    _, listed = server.ask("GET", "configmaps?labelSelector=a%3Db", accept=METADATA_ONLY)
    assert [one["kind"], listed["kind"]] == ["PartialObjectMetadata", "PartialObjectMetadataList"]
    assert (names(listed), "data" in one, "data" in listed["items"][0]) == (["m"], False, False)
    assert listed["metadata"]["resourceVersion"]
