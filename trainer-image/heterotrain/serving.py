"""Serve metrics over IPv4 and IPv6, whichever the pod has; the Prometheus client's own server knows one of them.

Nothing asks for the name of an address here, which takes seconds where no DNS answers.
"""

from __future__ import annotations

import errno
import socket
import socketserver
import threading
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app
from prometheus_client.registry import Collector

SECONDS = 10.0
"""A peer that says nothing for so long is left."""


def listening(port: int) -> socket.socket:
    """A socket that listens at a port for both families, or for IPv4 where there is no IPv6. Raises OSError."""
    try:
        return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise
    return socket.create_server(("", port))


class MetricsServer(socketserver.ThreadingMixIn, WSGIServer):
    """Serves a registry at `/metrics` from a thread of its own until `close`."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, registry: Collector, port: int) -> None:
        """0 takes any free port. Raises OSError, naming the port, if it cannot be had."""
        super().__init__(("", port), _Silent, bind_and_activate=False)
        self.socket.close()
        try:
            self.socket = listening(port)
        except OSError as error:
            raise OSError(error.errno, f"metrics port {port}: {error.strerror}") from error
        self.server_name, self.server_port = "", int(self.socket.getsockname()[1])
        self.setup_environ()
        self.set_app(make_wsgi_app(registry))
        self._thread = threading.Thread(target=self.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End serving."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def handle_error(self, request: object, client_address: object) -> None:
        """A reader that went away is nothing to tell of."""


class _Silent(WSGIRequestHandler):
    timeout = SECONDS

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  # the base class names it so
        """Reading metrics is nothing to tell of either."""
