"""The server of a worker's metrics: any number of answers over one connection, and whatever format is asked for."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Gauge

from heterotrain.reporting import serving
from heterotrain.reporting.serving import MetricsServer


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    registry = CollectorRegistry()
    Gauge("digits", "x", registry=registry).set(7)
    made = MetricsServer(registry, 0)
    yield made
    made.close()


def test_a_connection_serves_for_many_answers_and_none_waits_for_another(server: MetricsServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=5)
    connection.connect()
    kept = connection.sock
    began = time.monotonic()
    for _ in range(50):
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        assert (answer.status, "digits 7.0" in answer.read().decode()) == (200, True)
        assert connection.sock is kept
    assert time.monotonic() - began < 1.5  # 40 ms each, where headers and body wait for one another
    connection.close()


@pytest.mark.parametrize(
    ("accepted", "kind", "end"),
    [
        ("*/*", "text/plain; version=", "digits 7.0\n"),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text; version=1.0.0", "# EOF\n"),
    ],
)
def test_the_reader_chooses_the_format(server: MetricsServer, accepted: str, kind: str, end: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=5)
    connection.request("GET", "/metrics", headers={"Accept": accepted})
    answer = connection.getresponse()
    assert answer.headers["Content-Type"].startswith(kind)
    assert answer.read().decode().endswith(end)
    connection.close()


def test_who_says_nothing_is_left(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving._Answers, "timeout", 0.1)
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=5) as silent:
        assert silent.recv(1) == b""


def test_port_that_is_taken_is_named(server: MetricsServer) -> None:
    with pytest.raises(OSError, match=f"metrics port {server.server_port}: "):
        MetricsServer(CollectorRegistry(), server.server_port)


def test_connections_that_ask_for_nothing_make_room_for_others(server: MetricsServer) -> None:
    reader = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=5)
    held = []
    for _ in range(3 * serving.MOST_CONNECTIONS):
        reader.request("GET", "/metrics")
        assert reader.getresponse().read()
        held.append(socket.create_connection(("127.0.0.1", server.server_port), timeout=5))
        held[-1].send(b"GET /metrics HTTP/1.1\r\nX: ")
    assert held[0].recv(1) == b"", "the first one had to go"
    assert len(server._open) <= serving.MOST_CONNECTIONS
    for each in (reader, *held):
        each.close()
