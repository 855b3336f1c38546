"""A real HTTP(S) server that answers as Prometheus does, or misbehaves as it is told, on a port of its own."""

from __future__ import annotations

import contextlib
import http.server
import json
import ssl
import threading
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import trustme


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


@contextlib.contextmanager
def serving(script: Script, authority: trustme.CA | None = None) -> Iterator[str]:
    """Serve by the script, with TLS if an authority is given; the URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urllib.parse.urlsplit(self.path)
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
