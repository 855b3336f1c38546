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

from kube_server.api_server import APPLY, CUT, KINDS, ApiServer, Document, Id, StatusError

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
            code, answer = self._served(body)
        except StatusError as refusal:
            code, answer = refusal.code, refusal.status
        if isinstance(answer, Iterator):
            self._stream(answer)
            return
        data = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if isinstance(answer, str) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815  # the base class names them so

    def _served(self, body: Any) -> tuple[int, Document | str | Iterator[Document | str]]:
        """The status and the body: an object, plain text, or the events of a watch."""
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if self.api.broken:
            return 503, "the API server is starting"
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            raise StatusError(401, "Unauthorized", "Unauthorized")
        prefix, namespace, plural, name, subresource = _parts(url.path)
        if KINDS.get(plural, ("",))[0] != prefix or plural in self.api.missing:
            resources = self.api.discover(url.path)
            return (404, "404 page not found\n") if resources is None else (200, resources)
        key = (plural, namespace, name)
        if self.command == "GET":
            self.api.asked.append((url.path, query))
            found = self._read(key, subresource, query)
            return 200, _metadata_alone(found) if "as=PartialObject" in (self.headers["Accept"] or "") else found
        kind = self.headers["Content-Type"]
        assert kind != APPLY or query["force"].lower() == "true"
        exists = key in self.api.objects
        found = self.api.write(VERBS[self.command], key, body, kind=kind, status=subresource == "status")
        return 200 if exists else 201, found

    def _read(self, key: Id, subresource: str, query: dict[str, str]) -> Document | str | Iterator[Document | str]:
        plural, namespace, name = key
        if subresource == "log":
            tail = query.get("tailLines")
            return self.api.log(namespace, name, query["container"], None if tail is None else int(tail))
        if name:
            return self.api.read(key)
        labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
        if query.get("watch") == "true":
            since, seconds = int(query["resourceVersion"]), float(query.get("timeoutSeconds", 300))
            return self.api.watch(plural, namespace, labels, fields=fields, since=since, seconds=seconds)
        limit, token = int(query.get("limit", 0)), query.get("continue", "")
        return self.api.listed(plural, namespace, labels, fields=fields, limit=limit, token=token)

    def _stream(self, events: Iterator[Document | str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with suppress(ConnectionError):  # whoever has seen enough of a watch hangs up
            for event in events:
                if event == CUT:
                    self.wfile.write(b"fff\r\n" + b'{"type": "MODI')
                    self.close_connection = True
                    return
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002  # the base class names it so
        """Tests read what is written to the API server, not this."""


def _metadata_alone(found: Any) -> Any:
    """Of an object, a list or the events of a watch."""
    partial = {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata"}
    if isinstance(found, Iterator):
        return (event if event == CUT else {**event, "object": _metadata_alone(event["object"])} for event in found)
    if "items" in found:
        items = [_metadata_alone(item) for item in found["items"]]
        return {**partial, "kind": "PartialObjectMetadataList", "metadata": found["metadata"], "items": items}
    return found if found["kind"] == "Status" else {**partial, "metadata": found["metadata"]}


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
        """A client that went away is no error."""

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


def kubeconfig(path: Path, url: str, *, token: str = TOKEN, namespace: str = "team-a") -> Path:
    """A kubeconfig for the server at a URL, with the contexts `here` (in use) and `bare` (no namespace)."""
    bare = {"cluster": "c", "user": "ann"}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "ann", "user": {"token": token}}],
        "contexts": [
            {"name": "here", "context": {**bare, "namespace": namespace}},
            {"name": "bare", "context": bare},
        ],
        "current-context": "here",
    }
    path.write_text(yaml.safe_dump(document), "utf-8")
    return path
