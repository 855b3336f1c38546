"""Serve metrics over IPv4 and IPv6, whichever the pod has, and again over the same connection; the Prometheus client's
own server knows one family, and closes the connection after each answer, which costs either side most of the CPU time.

Nothing asks for the name of an address here, which takes seconds where no DNS answers.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from typing import Any, cast

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

MOST_CONNECTIONS = 32
"""At a time, each with a thread. Where there are more, the one goes that has asked for nothing for longest."""

SECONDS = 30.0
"""The connection of a peer that is silent for so long is closed. Readers close unused connections earlier."""


def listening(port: int) -> socket.socket:
    """A socket that listens at a port for both families, or for IPv4 where there is no IPv6. Raises OSError."""
    try:
        return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise
    return socket.create_server(("", port))


class MetricsServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Serves a registry at `/metrics` from a thread of its own until `close`, and each connection from one more."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, registry: Collector, port: int) -> None:
        """0 takes any free port. Raises OSError, naming the port, if it cannot be had."""
        handler = type("_Handler", (_Answers,), {"registry": registry})
        super().__init__(("", port), handler, bind_and_activate=False)
        self.socket.close()
        try:
            self.socket = listening(port)
        except OSError as error:
            raise OSError(error.errno, f"metrics port {port}: {error.strerror}") from error
        self.server_port = int(self.socket.getsockname()[1])
        self._lock = threading.Lock()
        self._open: dict[socket.socket, None] = {}  # the one that asked last is the last
        self._thread = threading.Thread(target=self.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End serving."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a new connection in a thread of its own, and end another where there are too many."""
        with self._lock:
            self._open[request] = None
            surplus = next(iter(self._open)) if len(self._open) > MOST_CONNECTIONS else None
            if surplus is not None:
                del self._open[surplus]
        if surplus is not None:
            with contextlib.suppress(OSError):  # its thread has closed it meanwhile
                surplus.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """A connection is over."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def asked(self, request: socket.socket) -> None:
        """A connection has asked for something just now."""
        with self._lock:
            if request in self._open:
                self._open[request] = self._open.pop(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """A reader that went away is not worth a line in the log."""


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = SECONDS
    wbufsize = -1  # the answer in one piece: headers and body, sent apart, wait for one another
    disable_nagle_algorithm = True
    registry: Collector

    def do_GET(self) -> None:
        """Answer with all series, in the format that the reader prefers."""
        cast("MetricsServer", self.server).asked(self.connection)
        encode, kind = choose_encoder(self.headers.get("Accept") or "")
        body = encode(self.registry)
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  # the base class names it so
        """Reading metrics is not worth a line in the log."""
