"""A small HTTP server that answers as the API server of a cluster does: same paths, same JSON, same refusals."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

Document = dict[str, Any]

JOBS = "heterotrainingjobs"
TOKEN = "let-me-in"
CUT = "cut"
"""In a watch: the connection breaks off in the middle of a line."""


class Api:
    """What the cluster holds, and how it behaves.

    `watches` are scripts, one for each watch request in turn: their events are sent, then the request ends. `forbidden`
    are resources that the user has no right to. `logs` are by pod; one that has none waits to start.
    """

    def __init__(self) -> None:
        self.jobs: list[Document] = []
        self.config_maps: dict[str, dict[str, str]] = {}
        self.events: list[Document] = []
        self.pods: list[Document] = []
        self.logs: dict[str, str] = {}
        self.watches: list[list[Document | str]] = []
        self.installed = True
        self.forbidden: set[str] = set()
        self.broken = False
        self.asked: list[tuple[str, dict[str, str]]] = []

    def answer(self, path: str, query: dict[str, str], token: str | None) -> tuple[int, Document | str | list[Any]]:
        """The status and the body: an object, plain text, or a list of events."""
        self.asked.append((path, query))
        parts = path.strip("/").split("/")
        namespace = parts[parts.index("namespaces") + 1] if "namespaces" in parts else None
        resource = parts[-2] if "configmaps" in parts else parts[-1]
        if self.broken:
            return 503, "the API server is starting"
        if token != TOKEN:
            return 401, status(401, "Unauthorized", "Unauthorized")
        if resource in self.forbidden or f"{resource}:{namespace}" in self.forbidden:
            where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
            message = f'{resource} is forbidden: User "ann" cannot list resource "{resource}" {where}'
            return 403, status(403, "Forbidden", message)
        if resource == JOBS:
            return self._jobs(namespace, query)
        if resource == "configmaps":
            return self._config_map(parts[-1])
        if parts[-1] == "log":
            return self._log(parts[-2], query)
        if resource == "pods":
            pods = [pod for pod in self.pods if _labelled(pod, query.get("labelSelector", ""))]
            return 200, {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": pods}
        found = [event for event in self.events if _selected(event, query.get("fieldSelector", ""))]
        return 200, {"kind": "EventList", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": found}

    def _jobs(self, namespace: str | None, query: dict[str, str]) -> tuple[int, Document | str | list[Any]]:
        if not self.installed:
            return 404, "404 page not found\n"
        if query.get("watch") == "true":
            assert self.watches, "one watch more than the test expects"
            script = self.watches.pop(0)
            return (410, status(410, "Expired", "too old resource version")) if script == ["gone"] else (200, script)
        found = [
            job
            for job in self.jobs
            if namespace in (None, job["metadata"]["namespace"]) and _selected(job, query.get("fieldSelector", ""))
        ]
        kind = {"kind": "HeteroTrainingJobList", "apiVersion": "heterotrain.dev/v1alpha1"}
        return 200, {**kind, "metadata": {"resourceVersion": "100"}, "items": found}

    def _log(self, pod: str, query: dict[str, str]) -> tuple[int, Document | str]:
        if pod not in self.logs:
            reason = f'container "{query["container"]}" in pod "{pod}" is waiting to start: ContainerCreating'
            return 400, status(400, "BadRequest", reason)
        lines = self.logs[pod].splitlines(keepends=True)
        return 200, "".join(lines[-int(query.get("tailLines", len(lines) or 1)) :])

    def _config_map(self, name: str) -> tuple[int, Document]:
        if name not in self.config_maps:
            return 404, status(404, "NotFound", f'configmaps "{name}" not found')
        body = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name, "resourceVersion": "7"}}
        return 200, {**body, "data": self.config_maps[name]}


def status(code: int, reason: str, message: str) -> Document:
    """A refusal as the API server words it."""
    kind = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return {**kind, "message": message, "reason": reason, "code": code}


def _selected(document: Document, selector: str) -> bool:
    for term in filter(None, selector.split(",")):
        path, _, wanted = term.partition("=")
        value: Any = document
        for part in path.split("."):
            value = value.get(part, {})
        if value != wanted:
            return False
    return True


def _labelled(pod: Document, selector: str) -> bool:
    pairs = [term.partition("=") for term in filter(None, selector.split(","))]
    return all(pod["metadata"]["labels"].get(name) == value for name, _, value in pairs)


@contextmanager
def serving(api: Api) -> Iterator[str]:
    """The URL under which the cluster answers."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else every answer waits for an acknowledgement of its headers

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            token = (self.headers["authorization"] or "").removeprefix("Bearer ") or None
            code, body = api.answer(url.path, query, token)
            self.send_response(code)
            if isinstance(body, list):
                self._stream(body)
                return
            data = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_header("Content-Type", "text/plain" if isinstance(body, str) else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _stream(self, events: list[Any]) -> None:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for event in events:
                if event == CUT:
                    self.wfile.write(b"fff\r\n" + b'{"type": "MODI')
                    self.close_connection = True
                    return
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the library's name
            """Tests read what the command says, not this."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exception(), ConnectionError):  # whoever has seen enough of a watch hangs up
                super().handle_error(request, client_address)

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def kubeconfig(path: Path, url: str, *, token: str = TOKEN, namespace: str | None = "team") -> Path:
    """A kubeconfig with the contexts `here` (in use) and `bare` (no namespace)."""
    here = {"cluster": "c", "user": "ann"} | ({"namespace": namespace} if namespace else {})
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "ann", "user": {"token": token}}],
        "contexts": [
            {"name": "here", "context": here},
            {"name": "bare", "context": {"cluster": "c", "user": "ann"}},
        ],
        "current-context": "here",
    }
    path.write_text(yaml.safe_dump(document), "utf-8")
    return path
