"""HTTP in front of the tiny API server: paths, bodies and watches as Kubernetes has them; it can go away and return."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from handlers.api_server import APPLY, KINDS, ApiServer, StatusError

VERBS = {"POST": "create", "PUT": "replace", "PATCH": "patch", "DELETE": "delete"}
TOKEN = "let-me-in"


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else headers and body, sent apart, wait for one another
    api: ApiServer

    def _answer(self) -> None:
        size = int(self.headers["Content-Length"] or 0)
        body = json.loads(self.rfile.read(size)) if size else None
        try:
            assert self.headers["Authorization"] == f"Bearer {TOKEN}", "who asks?"
            code, document = self._served(body)
        except StatusError as refusal:
            code, document = refusal.code, refusal.status
        if document is None:
            return
        data = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815  # the base class names them so

    def _served(self, body: Any) -> tuple[int, Any]:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        prefix, namespace, plural, name, subresource = _parts(url.path)
        if KINDS.get(plural, ("",))[0] != prefix or plural in self.api.missing:
            return 200, self.api.discover(url.path)
        key = (plural, namespace, name)
        if self.command != "GET":
            kind = self.headers["Content-Type"]
            assert kind != APPLY or query["force"].lower() == "true"
            exists = key in self.api.objects
            found = self.api.write(VERBS[self.command], key, body, kind=kind, status=subresource == "status")
            return 200 if exists else 201, found
        if name:
            return 200, self.api.read(key)
        if query.get("watch") != "true":
            limit, token = int(query.get("limit", 0)), query.get("continue", "")
            selector = query.get("labelSelector", "")
            return 200, self.api.listed(plural, namespace, selector, limit=limit, token=token)
        self._stream(plural, namespace, query)
        return 200, None

    def _stream(self, plural: str, namespace: str, query: dict[str, str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        since, seconds = int(query["resourceVersion"]), float(query.get("timeoutSeconds", 300))
        with suppress(ConnectionError):
            for event in self.api.watch(plural, namespace, query.get("labelSelector", ""), since, seconds):
                self.wfile.write(json.dumps(event).encode() + b"\n")

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002  # the base class names it so
        """Tests read what is written to the API server, not this."""


def _parts(path: str) -> tuple[str, str, str, str, str]:
    """Prefix, namespace, plural, name and subresource; empty where there is none."""
    parts = path.strip("/").split("/")
    depth = 2 if parts[0] == "api" else 3
    prefix, rest = "/" + "/".join(parts[:depth]), parts[depth:]
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource = (*rest, "", "", "")[:3]
    return prefix, namespace, plural, name, subresource


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # watches end when their time is over

    def __init__(self, api: ApiServer, port: int) -> None:
        super().__init__(("127.0.0.1", port), type("Handler", (_Handler,), {"api": api}))
        self._open: set[Any] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is nothing to tell of."""

    def cut(self) -> None:
        """Break every connection off."""
        for request in list(self._open):
            with suppress(OSError):
                request.shutdown(2)


@contextmanager
def serving(api: ApiServer, port: int = 0) -> Iterator[str]:
    """The URL of the API server, as long as the block lasts; then nothing answers there any more."""
    server = _Server(api, port)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        server.cut()
        thread.join()


def kubeconfig(path: Path, url: str) -> Path:
    """A kubeconfig for the server at a URL."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": TOKEN}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "team-a"}}],
        "current-context": "c",
    }
    path.write_text(yaml.safe_dump(document), "utf-8")
    return path
