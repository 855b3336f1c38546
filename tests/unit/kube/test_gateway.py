"""Every way to the API server: what is fenced, what an error says, and that nothing waits for ever."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.client import Configuration

from heterotrain_operator.clusters.kube.api_server.gateway import ConflictError, Gateway, GatewayError, JobGoneError
from heterotrain_operator.clusters.kube.api_server.lease import NotLeadingError
from heterotrain_operator.clusters.kube.api_server.transport import BrokenOffError, PatientClient
from hostile import spoilt_text
from kube_server.api_server import CUT, ApiServer
from unit.kube.worlds import JOB, refusing

MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "team-a"}, "data": {"a": "1"}}
POD = {"metadata": {"name": "p", "labels": {"job": "digits"}}, "spec": {}}

WRITES: dict[str, Callable[[Gateway], Any]] = {
    "create": lambda gateway: gateway.create(MAP),
    "apply": lambda gateway: gateway.apply(MAP),
    "annotate": lambda gateway: gateway.annotate("Pod", "team-a", "p", {"a": "b"}),
    "delete": lambda gateway: gateway.delete("Pod", "team-a", "p", uid="u"),
    "write_status": lambda gateway: gateway.write_status("team-a", "digits", "u", {"phase": "Running"}),
}
READS: dict[str, Callable[[Gateway], Any]] = {
    "read": lambda gateway: gateway.read("ConfigMap", "team-a", "m"),
    "uids": lambda gateway: gateway.uids("Pod", "team-a", "job", "digits"),
    "may_list": lambda gateway: gateway.may_list("Pod", "team-a"),
    "serves_jobs": lambda gateway: gateway.serves_jobs(),
    "listed": lambda gateway: gateway.listed("Pod", None),
}


def watched(gateway: Gateway, version: str = "1") -> Iterator[dict[str, Any]]:
    return gateway.changes("Pod", "team-a", version, fields="metadata.name=p", seconds=5, timeout=(5, 10))


def uid(body: Any) -> str:
    found: str = body["metadata"]["uid"]
    return found


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_every_write_is_fenced(client: PatientClient, api: ApiServer, write: Callable[[Gateway], Any]) -> None:
    def fence() -> None:
        raise NotLeadingError("not any more")

    with pytest.raises(NotLeadingError):
        write(Gateway(client, fence, lambda verb, kind: None))
    assert api.writes == []


def test_reading_needs_no_lease(client: PatientClient) -> None:
    for read in READS.values():
        read(Gateway(client, lambda: pytest.fail("fenced"), lambda verb, kind: None))


def test_apply_over_another_version_is_a_conflict(gateway: Gateway) -> None:
    gateway.create(MAP)
    with pytest.raises(ConflictError, match="apply ConfigMap m"):
        gateway.apply({**MAP, "metadata": {**MAP["metadata"], "resourceVersion": "7"}})  # type: ignore[dict-item]  # str


def test_only_the_very_object_is_deleted_or_gets_a_status(gateway: Gateway, api: ApiServer) -> None:
    made = api.put("pods", POD)
    assert not gateway.delete("Pod", "team-a", "p", uid="another")
    assert api.names("pods") == ["p"]
    assert gateway.delete("Pod", "team-a", "p", uid=uid(made))
    assert not gateway.delete("Pod", "team-a", "p", uid=uid(made))
    api.put("heterotrainingjobs", JOB)
    for name in ("digits", "none"):
        with pytest.raises(JobGoneError, match=f"job team-a/{name} of UID earlier is gone"):
            gateway.write_status("team-a", name, "earlier", {"phase": "Running"})
    assert "status" not in api.the("heterotrainingjobs", "digits")


@pytest.mark.parametrize("code", [401, 422, 503])
def test_refusal_says_what_was_asked_and_why_not(gateway: Gateway, api: ApiServer, code: int) -> None:
    made = api.put("heterotrainingjobs", JOB)

    api.refuse = refusing("*", "configmaps", code, "not today")
    with pytest.raises(GatewayError, match=rf"^get ConfigMap m: not today: m \(HTTP {code}\)$") as caught:
        gateway.read("ConfigMap", "team-a", "m")
    assert caught.value.status == code
    api.refuse = refusing("patch", "heterotrainingjobs", code, "not today")
    with pytest.raises(GatewayError, match="not today"):
        gateway.write_status("team-a", "digits", uid(made), {"phase": "7"})


def gateway_to(port: int) -> Gateway:
    return Gateway(
        PatientClient(Configuration(f"http://127.0.0.1:{port}", retries=False)), lambda: None, lambda *_: None
    )


def test_server_that_is_away_or_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterotrain_operator.clusters.kube.api_server.transport.REQUEST_SECONDS", 0.1)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        asked = gateway_to(server.getsockname()[1])
        with pytest.raises(GatewayError, match="get Pod p: the API server does not answer") as caught:
            asked.read("Pod", "team-a", "p")
        assert caught.value.status is None
        server.listen()
        with pytest.raises(GatewayError, match=r"does not answer.*timed out"):
            asked.read("Pod", "team-a", "p")


def test_answer_too_large_is_not_read_to_its_end(
    gateway: Gateway, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.put("pods", {**POD, "spec": {"much": "x" * 500}})
    api.put("configmaps", {**MAP, "data": {"much": "x" * 500}} | {"metadata": {"name": "m"}})
    asks = (lambda: gateway.listed("Pod", "team-a"), lambda: READS["read"](gateway))
    monkeypatch.setattr("heterotrain_operator.clusters.kube.api_server.transport.LARGEST_ANSWER_BYTES", 500)
    for ask in asks:
        with pytest.raises(GatewayError, match="the answer is larger than 500 bytes"):
            ask()
    monkeypatch.undo()
    assert [bool(ask()) for ask in asks] == [True, True]


@pytest.mark.parametrize("name", ["a#b", "a?watch=true", "../../../../version", "%2e%2e", "a b"])
def test_namespaces_and_names_stay_parts_of_the_path(name: str, gateway: Gateway, api: ApiServer) -> None:
    assert gateway.read("ConfigMap", "team-a", name) is None
    assert gateway.listed("Pod", name)["items"] == []
    quoted = quote(name, safe="")
    assert [path for path, _ in api.asked] == [
        f"/api/v1/namespaces/team-a/configmaps/{quoted}",
        f"/api/v1/namespaces/{quoted}/pods",
    ]


@pytest.mark.parametrize("name", [".", ".."])
def test_what_can_be_no_name_is_not_asked_for(name: str, gateway: Gateway, api: ApiServer) -> None:
    with pytest.raises(GatewayError, match=f"'{re.escape(name)}' is no name"):
        gateway.listed("Pod", name)
    assert api.asked == []


def test_watch_that_breaks_off_is_an_error_after_what_it_showed(gateway: Gateway, api: ApiServer) -> None:
    api.scripts = [[{"type": "ADDED", "object": POD}, CUT]]
    events = watched(gateway)
    assert next(events)["type"] == "ADDED"
    with pytest.raises(BrokenOffError, match="watch Pod: the answer broke off"):
        next(events)


def test_event_too_large_ends_the_watch(gateway: Gateway, api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterotrain_operator.clusters.kube.api_server.transport.PIECE_BYTES", 64)
    monkeypatch.setattr("heterotrain_operator.clusters.kube.api_server.transport.LONGEST_EVENT_BYTES", 100)
    api.scripts = [[{"type": "ADDED", "object": {"much": "x" * 500}}]]
    with pytest.raises(BrokenOffError, match="watch Pod: an event is larger than 100 bytes"):
        next(watched(gateway))


STATUS = {
    "kind": "Status",
    "message": "pods is forbidden",
    "reason": "Forbidden",
    "details": {"causes": [{"field": "spec"}]},
    "code": 403,
}
LIST = {"kind": "List", "metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "p", "uid": "u"}}]}


class Answer:
    """An answer of HTTP."""

    def __init__(self, status: int, text: str) -> None:
        self.status, self.reason, self._data = status, "said so", text.encode(errors="surrogatepass")
        self.response = self

    def read(self, amount: int, **_: object) -> bytes:
        return self._data[:amount]

    def stream(self, _: int) -> Iterator[bytes]:
        yield self._data

    def release_conn(self) -> None:
        """There is none."""

    def close(self) -> None:
        """There is none."""


def gateway_of(status: int, text: str) -> Gateway:
    """To a server that answers everything so."""
    client = PatientClient(Configuration(host="http://127.0.0.1:9"))
    client.call_api = lambda *_, **__: Answer(status, text)
    return Gateway(client, lambda: None, lambda verb, kind: None)


@pytest.mark.parametrize(("asked", "what"), [("read", "get ConfigMap m"), ("listed", "list Pod")])
def test_answer_that_is_no_object_is_an_error(asked: str, what: str) -> None:
    with pytest.raises(GatewayError, match=rf"{what}: the answer is no object \(HTTP 200\)"):
        READS[asked](gateway_of(200, "<html>please log in</html>"))
    with pytest.raises(GatewayError, match=rf"{what}: the answer is no"):
        READS[asked](gateway_of(200, "{}"))


@given(spoilt_text(STATUS, LIST), st.sampled_from([200, 201, 400, 403, 404, 409, 410, 422, 429, 500, 503]))
def test_any_answer_is_one_of_the_api_server_or_a_failure_in_words(text: str, status: int) -> None:
    gateway = gateway_of(status, text)
    for ask in (*READS.values(), *WRITES.values(), lambda asked: list(watched(asked))):
        try:
            ask(gateway)
        except (GatewayError, JobGoneError) as error:
            assert str(error)
