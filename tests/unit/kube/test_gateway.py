"""Every way to the API server: what is fenced, what an error says, and that nothing waits for ever."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
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
from kube_server.api_server import CUT, ApiServer, StatusError
from unit.kube.worlds import JOB

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


# --- writing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_every_write_is_fenced(client: PatientClient, api: ApiServer, write: Callable[[Gateway], Any]) -> None:
    def fence() -> None:
        raise NotLeadingError("not any more")

    with pytest.raises(NotLeadingError):
        write(Gateway(client, fence, lambda verb, kind: None))
    assert api.writes == []


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_reading_needs_no_lease(client: PatientClient, read: Callable[[Gateway], Any]) -> None:
    read(Gateway(client, lambda: pytest.fail("fenced"), lambda verb, kind: None))


def test_apply_over_another_version_is_a_conflict(gateway: Gateway) -> None:
    gateway.create(MAP)
    with pytest.raises(ConflictError, match="apply ConfigMap m"):
        gateway.apply({**MAP, "metadata": {**MAP["metadata"], "resourceVersion": "7"}})  # type: ignore[dict-item]  # str


def test_only_the_very_object_is_deleted(gateway: Gateway, api: ApiServer) -> None:
    made = api.put("pods", POD)
    assert not gateway.delete("Pod", "team-a", "p", uid="another")
    assert api.names("pods") == ["p"]
    assert gateway.delete("Pod", "team-a", "p", uid=uid(made))
    assert not gateway.delete("Pod", "team-a", "p", uid=uid(made))


@pytest.mark.parametrize("name", ["digits", "none"])
def test_job_that_is_another_or_gone_gets_no_status(gateway: Gateway, api: ApiServer, name: str) -> None:
    api.put("heterotrainingjobs", JOB)
    with pytest.raises(JobGoneError, match=f"job team-a/{name} of UID earlier is gone"):
        gateway.write_status("team-a", name, "earlier", {"phase": "Running"})
    assert "status" not in (api.get("heterotrainingjobs", "digits") or {})


def test_status_that_the_schema_forbids_is_an_error(gateway: Gateway, api: ApiServer) -> None:
    made = api.put("heterotrainingjobs", JOB)

    def refuse(verb: str, plural: str, name: str) -> None:
        raise StatusError(422, "Invalid", "status.phase: Unsupported value", causes=[{"field": "status.phase"}])

    api.refuse = refuse
    with pytest.raises(GatewayError, match=r"status.phase: Unsupported value \(HTTP 422\)"):
        gateway.write_status("team-a", "digits", uid(made), {"phase": "7"})


# --- reading ----------------------------------------------------------------------------------------------------


def test_object_that_is_none_of_the_clusters_is_an_error(
    gateway: Gateway, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "read", lambda key: {})
    with pytest.raises(GatewayError, match="get ConfigMap m: the answer is no object of the cluster"):
        gateway.read("ConfigMap", "team-a", "m")


# --- trouble ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [401, 403, 429, 500, 503])
def test_refusal_says_what_was_asked_and_why_not(gateway: Gateway, api: ApiServer, code: int) -> None:
    def refuse(verb: str, plural: str, name: str) -> None:
        raise StatusError(code, "Refused", "not today")

    api.refuse = refuse
    with pytest.raises(GatewayError, match=rf"^get ConfigMap m: not today \(HTTP {code}\)$") as caught:
        gateway.read("ConfigMap", "team-a", "m")
    assert caught.value.status == code


def gateway_to(port: int) -> Gateway:
    return Gateway(
        PatientClient(Configuration(f"http://127.0.0.1:{port}", retries=False)), lambda: None, lambda *_: None
    )


def test_server_that_is_away_is_an_error_without_a_status() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(GatewayError, match="get Pod p: the API server does not answer") as caught:
            gateway_to(closed.getsockname()[1]).read("Pod", "team-a", "p")
    assert caught.value.status is None


def test_server_that_accepts_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterotrain_operator.clusters.kube.api_server.transport.REQUEST_SECONDS", 0.1)
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        with pytest.raises(GatewayError, match=r"does not answer.*timed out"):
            gateway_to(mute.getsockname()[1]).read("Pod", "team-a", "p")


@pytest.fixture
def proxy() -> Iterator[int]:
    """The port of something in front of the API server that has a page of its own."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>please log in</html>")

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002  # the base class names it so
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("asked", "what"), [("read", "get ConfigMap m"), ("listed", "list Pod")])
def test_answer_that_is_no_object_is_an_error(proxy: int, asked: str, what: str) -> None:
    with pytest.raises(GatewayError, match=rf"{what}: the answer is no object \(HTTP 200\)"):
        READS[asked](gateway_to(proxy))


@pytest.mark.parametrize("ask", [lambda gateway: gateway.listed("Pod", "team-a"), READS["read"]], ids=["list", "read"])
def test_answer_that_is_too_large_is_not_read_to_its_end(
    ask: Callable[[Gateway], Any], gateway: Gateway, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.put("pods", {**POD, "spec": {"much": "x" * 500}})
    api.put("configmaps", {**MAP, "data": {"much": "x" * 500}} | {"metadata": {"name": "m"}})
    monkeypatch.setattr("heterotrain_operator.clusters.kube.api_server.transport.LARGEST_ANSWER_BYTES", 500)
    with pytest.raises(GatewayError, match="the answer is larger than 500 bytes"):
        ask(gateway)
    monkeypatch.undo()
    ask(gateway)


@pytest.mark.parametrize("name", ["a#b", "a?watch=true", "a/b", "../../../../version", "%2e%2e", "a b"])
def test_namespaces_and_names_stay_parts_of_the_path_whatever_they_hold(
    name: str, gateway: Gateway, api: ApiServer
) -> None:
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


def test_event_that_is_too_large_ends_the_watch(
    gateway: Gateway, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heterotrain_operator.clusters.kube.api_server.transport.PIECE_BYTES", 64)
    monkeypatch.setattr("heterotrain_operator.clusters.kube.api_server.transport.LONGEST_EVENT_BYTES", 100)
    api.scripts = [[{"type": "ADDED", "object": {"much": "x" * 500}}]]
    with pytest.raises(BrokenOffError, match="watch Pod: an event is larger than 100 bytes"):
        next(watched(gateway))


# --- answers of whatever stands in the API server's place --------------------------------------------------------

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


@given(spoilt_text(STATUS, LIST), st.sampled_from([200, 201, 400, 403, 404, 409, 410, 422, 429, 500, 503]))
def test_any_answer_is_one_of_the_api_server_or_a_failure_in_words(text: str, status: int) -> None:
    client = PatientClient(Configuration(host="http://127.0.0.1:9"))
    client.call_api = lambda *_, **__: Answer(status, text)
    gateway = Gateway(client, lambda: None, lambda verb, kind: None)
    for ask in (*READS.values(), *WRITES.values(), lambda asked: list(watched(asked))):
        try:
            ask(gateway)
        except (GatewayError, JobGoneError) as error:
            assert str(error)
