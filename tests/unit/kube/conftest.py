"""A tiny API server for each test, and a client of it as the operator has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from heterotrain_operator.clusters.kube.api_server.access import Access, connect
from heterotrain_operator.clusters.kube.api_server.gateway import Gateway
from heterotrain_operator.clusters.kube.api_server.transport import PatientClient
from kube_server.api_server import ApiServer
from kube_server.serving import kubeconfig, serving
from unit.kube.worlds import World


@pytest.fixture
def api() -> ApiServer:
    return ApiServer()


@pytest.fixture
def url(api: ApiServer) -> Iterator[str]:
    with serving(api) as where:
        yield where


@pytest.fixture
def client(url: str, tmp_path: Path) -> Iterator[PatientClient]:
    with connect(Access(str(kubeconfig(tmp_path / "kubeconfig", url)))).api as made:
        yield made


@pytest.fixture
def gateway(client: PatientClient) -> Gateway:
    return Gateway(client, fence=lambda: None, wrote=lambda verb, kind: None)


@pytest.fixture
def world(api: ApiServer, gateway: Gateway) -> World:
    return World(api, gateway)
