"""Whether a node is lost, asked seldom."""

from __future__ import annotations

from typing import Any

import pytest

from heterotrain_operator.clusters.kube.api_server.gateway import Gateway, GatewayError
from heterotrain_operator.clusters.kube.observe.nodes import FRESH_SECONDS, Nodes
from kube_server.api_server import ApiServer, StatusError


@pytest.fixture
def nodes(gateway: Gateway) -> Nodes:
    return Nodes(gateway)


def refusing(code: int) -> Any:
    def refuse(verb: str, plural: str, name: str) -> None:
        raise StatusError(code, "Refused", "nodes is forbidden")

    return refuse


@pytest.mark.parametrize(
    ("conditions", "lost"),
    [
        ([{"type": "Ready", "status": "True"}], False),
        ([{"type": "Ready", "status": "False"}], True),
        ([{"type": "Ready", "status": "Unknown"}], True),
        ([{"type": "MemoryPressure", "status": "True"}], False),
        ([], False),
    ],
)
def test_node_is_lost_unless_it_is_ready(
    nodes: Nodes, api: ApiServer, conditions: list[dict[str, str]], lost: bool
) -> None:
    api.put("nodes", {"metadata": {"name": "n"}, "status": {"conditions": conditions}}, "")
    assert nodes.lost("n", 0.0) is lost


def test_node_that_is_gone_is_lost(nodes: Nodes) -> None:
    assert nodes.lost("n", 0.0)


def test_answer_holds_for_a_moment_and_for_each_node_its_own(nodes: Nodes, api: ApiServer) -> None:
    api.put("nodes", {"metadata": {"name": "n"}, "status": {}}, "")
    assert not nodes.lost("n", 100.0)
    api.remove("nodes", "n", "")
    assert not nodes.lost("n", 100.0 + FRESH_SECONDS / 2)
    assert nodes.lost("other", 100.0)
    assert len(api.reads) == 2
    assert nodes.lost("n", 100.0 + FRESH_SECONDS)


def test_nodes_that_must_not_be_read_are_not_lost_and_reported_once(
    nodes: Nodes, api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    def refuse(verb: str, plural: str, name: str) -> None:
        asked.append(name)
        raise StatusError(403, "Forbidden", "nodes is forbidden")

    api.refuse = refuse
    for seconds in (0.0, 1.0, 2.0, 60.0):
        assert not nodes.lost("n", seconds)
    assert len(caplog.records) == 1
    assert "nodes is forbidden" in caplog.text
    assert len(asked) == 2


def test_trouble_of_the_api_server_is_no_answer(nodes: Nodes, api: ApiServer) -> None:
    api.refuse = refusing(503)
    with pytest.raises(GatewayError):
        nodes.lost("n", 0.0)
