"""A real HTTP(S) server that answers as Prometheus does, or misbehaves as it is told, and what is read of it."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import trustme

from heterotrain import worker_metrics as table
from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.metrics.allowed import allowed_server
from heterotrain_operator.metrics.client import Client
from heterotrain_operator.metrics.prometheus import PrometheusSource, Reading


@dataclass
class Script:
    """What the server does, and what it was asked."""

    answer: object = None
    raw: bytes | None = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    authorization: str | None = None
    silent: threading.Event | None = None
    asked: list[tuple[str, dict[str, list[str]]]] = field(default_factory=list)
    connections: set[object] = field(default_factory=set)


@contextlib.contextmanager
def serving(script: Script, authority: trustme.CA | None = None) -> Iterator[str]:
    """Serve by the script, with TLS if an authority is given; the URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 10

        def do_GET(self) -> None:
            parts = urllib.parse.urlsplit(self.path)
            script.connections.add(self.client_address)
            script.asked.append((parts.path, urllib.parse.parse_qs(parts.query)))
            if script.silent is not None:
                script.silent.wait()
            status = script.status
            if script.authorization is not None and self.headers.get("Authorization") != script.authorization:
                status = 401
            body = script.raw if script.raw is not None else json.dumps(script.answer).encode()
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **script.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class names it so
            pass

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that refuses the certificate is part of the tests."""

    server = Server(("127.0.0.1", 0), Handler)
    scheme = "http"
    if authority is not None:
        scheme = "https"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"{scheme}://127.0.0.1:{server.server_port}"
    finally:
        if script.silent is not None:
            script.silent.set()
        server.shutdown()
        thread.join()
        server.server_close()


NOW = 1_000_000.0
WORKER = "digits-cpu-0"

Row = dict[str, Any]


def row(name: str, samples: list[tuple[float, object]], version: int = 7, **labels: str) -> Row:
    """One series; times are seconds from now."""
    metric = {
        "__name__": name,
        "namespace": "ml",
        "training_job": "digits",
        "worker": WORKER,
        "group": "cpu",
        "plan_version": str(version),
        "instance": "10.0.0.7:9400",
        **labels,
    }
    return {"metric": metric, "values": [[NOW + at, str(value)] for at, value in samples]}


def matrix(*rows: object) -> dict[str, object]:
    return {"status": "success", "data": {"resultType": "matrix", "result": list(rows)}}


def scrape(at: float, version: int = 7, steps: float = 10, own: float = 2.5, **labels: str) -> list[Row]:
    """All series of one scrape of one worker, as far as these tests need them."""
    return [
        row(table.PLAN_VERSION.name, [(at, version)], version, **labels),
        row(table.STEPS.series, [(at, steps)], version, **labels),
        row(table.OWN_SECONDS.series, [(at, own)], version, **labels),
    ]


class Asked:
    """A server that is asked about one job, again and again."""

    def __init__(self, url: str, allowed: Sequence[str] = ("127.0.0.1", "localhost"), **options: Any) -> None:
        self._url, self._allowed = url, allowed
        self._options = {"max_age_seconds": 30, "timeout_seconds": 5.0, **options}
        self.make(Client())  # raises what cannot be used

    def make(self, client: Client) -> PrometheusSource:
        return PrometheusSource(client, allowed_server(self._url, "ml", self._allowed), **self._options)

    def read(
        self,
        *workers: str,
        now: float = NOW,
        since: Mapping[str, float] = MappingProxyType({}),
        times: Sequence[Callable[[], None]] = (),
    ) -> Reading:
        """What is known of the workers; before each time but the first something happens."""

        async def read() -> Reading:
            async with Client() as client:
                made = self.make(client)
                found = await made.read("digits", "ml", workers or [WORKER], now, since=since)
                for happens in times:
                    happens()
                    found = await made.read("digits", "ml", workers or [WORKER], now, since=since)
                return found

        return asyncio.run(read())


def source(url: str, **options: Any) -> Asked:
    return Asked(url, **options)


def read(url: str, **options: Any) -> WorkerMetrics | None:
    reading = source(url, **options).read()
    assert reading.problem == ""
    return reading.metrics[WORKER]


def problem(url: str, **options: Any) -> str:
    reading = source(url, **options).read()
    assert reading.metrics == {WORKER: None}
    assert reading.problem
    return reading.problem
