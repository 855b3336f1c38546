"""A tiny API server for each test, named by the environment as kubectl's is, and an operator that does not dawdle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from socketserver import BaseServer

import pytest

from handlers.operators import Workers, serving_workers
from heterotrain_operator.controller import handlers as kopf_handlers
from heterotrain_operator.controller import rounds, short_documents
from heterotrain_operator.controller import supervisor as controller
from heterotrain_operator.core.pacing import Pace
from kube_server.api_server import ApiServer
from kube_server.serving import kubeconfig, serving
from unit.kube.worlds import READY


class Site:
    """Where the API server is served, or not."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._stack = ExitStack()
        self.url = self._stack.enter_context(serving(api))

    def down(self) -> None:
        """Every connection breaks off, and none is accepted any more."""
        self._stack.close()

    def up(self) -> None:
        """At the same address again, with no memory of what was watched."""
        self._api.forget_history()
        self._stack.enter_context(serving(self._api, int(self.url.rpartition(":")[2])))


@pytest.fixture
def api() -> ApiServer:
    made = ApiServer()
    made.put("namespaces", {"metadata": {"name": "team-a"}}, "")
    made.put("nodes", {"metadata": {"name": "node-1"}, "status": READY}, "")
    return made


@pytest.fixture
def site(api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    made = Site(api)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "kubeconfig", made.url)))
    yield made
    made.down()


@pytest.fixture
def workers(api: ApiServer) -> Iterator[Workers]:
    with serving_workers(api) as made:
        yield made


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses are those between the same acts, but shorter."""
    for module, names in {
        rounds: ("TAKEN_SECONDS",),
        controller: ("FAILURE_SECONDS", "GREATEST_FAILURE_SECONDS", "UNEXPECTED_SECONDS"),
        kopf_handlers: ("RETRY_SECONDS",),
        short_documents: ("LONGEST_PAUSE",),
    }.items():
        for name in names:
            monkeypatch.setattr(module, name, 0.05)
    monkeypatch.setattr(rounds, "PACE", Pace(0.05, 0.05, 0.05))
    monkeypatch.setattr(controller, "SETTLING_SECONDS", 0.005)
    monkeypatch.setattr(controller, "DOUBT_SECONDS", 0.5)
    monkeypatch.setattr(kopf_handlers, "BACKOFF_SECONDS", (0.05,))
    # Servers of metrics look this often whether they are to end.
    monkeypatch.setattr(BaseServer.serve_forever, "__defaults__", (0.01,))
