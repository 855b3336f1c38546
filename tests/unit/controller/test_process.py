"""What the operator is told by its environment, and how seldom its process looks for garbage."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from heterotrain_operator.clusters.local.starting import Ports
from heterotrain_operator.controller.options import DEFAULT_HEALTH_PORT, DEFAULT_LEASE, DEFAULT_METRICS_PORT, Options
from heterotrain_operator.controller.runtime import MOST_PROBES, Health
from heterotrain_operator.garbage import ALLOCATIONS, ROUNDS, seldom_collected


def test_what_the_chart_sets_is_taken_and_nothing_need_be_set() -> None:
    environment = {
        "HETEROTRAIN_NAMESPACES": "team-a, team-b,,team-a",
        "HETEROTRAIN_LEASE": "release",
        "HETEROTRAIN_LOG_LEVEL": "debug",
        "HETEROTRAIN_METRICS_PORT": "9091",
        "HETEROTRAIN_HEALTH_PORT": "8081",
        "HETEROTRAIN_PROMETHEUS_ALLOW": "in-cluster, *.example.com:9090",
        "HETEROTRAIN_METRICS_FROM": '[{"namespaceSelector": {}}, {"podSelector": {}}]',
        "POD_NAME": "operator-1",
        "POD_NAMESPACE": "ops",
    }
    assert Options.from_environment(environment) == Options(
        watched=("team-a", "team-b"),
        namespace="ops",
        identity="operator-1",
        lease="release",
        log_level=logging.DEBUG,
        metrics_port=9091,
        health_port=8081,
        prometheus_allow=("in-cluster", "*.example.com:9090"),
        metrics_from=({"namespaceSelector": {}}, {"podSelector": {}}),
    )
    found = Options.from_environment({})
    assert (found.watched, found.namespace, found.lease) == ((), "default", DEFAULT_LEASE)
    assert (found.metrics_port, found.health_port) == (DEFAULT_METRICS_PORT, DEFAULT_HEALTH_PORT)
    assert (found.log_level, found.prometheus_allow, found.metrics_from) == (logging.INFO, ("in-cluster",), None)
    assert Options.from_environment({"HETEROTRAIN_PROMETHEUS_ALLOW": ""}).prometheus_allow == ()


@pytest.mark.parametrize(
    ("name", "texts", "why"),
    [
        ("HETEROTRAIN_METRICS_PORT", ["", "0", "65536", "-1", "http", "٣", "1e3", "9" * 5000], "'.*' is no port"),
        ("HETEROTRAIN_HEALTH_PORT", ["http"], "'.*' is no port"),
        ("HETEROTRAIN_LOG_LEVEL", ["loud"], "LOUD is none of .*WARNING"),
        (
            "HETEROTRAIN_NAMESPACES",
            ["team-*", "!team-a", "Team", "a" * 64, "team-a,-b"],
            ".* is no name of a namespace",
        ),
        ("HETEROTRAIN_PROMETHEUS_ALLOW", ["in-cluster,http://p"], "'http://p' is neither in-cluster nor a host"),
        ("HETEROTRAIN_METRICS_FROM", ["all", "{}", "[]", "[1]", "[{}]", "[" * 100_000], ".* is no JSON list of"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_name_of_its_variable(name: str, texts: list[str], why: str) -> None:
    for text in texts:
        with pytest.raises(ValueError, match=f"^{name}: {why}"):
            Options.from_environment({name: text})


def test_garbage_is_searched_seldom_only_as_long_as_it_is_asked_for() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), seldom_collected():
        assert gc.get_threshold() == (ALLOCATIONS, ROUNDS, ROUNDS)
        raise KeyError
    assert gc.get_threshold() == before


@pytest.mark.asyncio
async def test_probes_are_answered_whoever_holds_connections_open() -> None:
    health = Health(lambda: {"well": True}, dict)
    port = Ports().take()
    await health.serve(port)
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * MOST_PROBES)]
    for _, writer in held:
        writer.write(b"GET /x HTTP/1.1\r\nX: ")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
    assert b'{"well": true}' in await reader.read()
    assert await held[0][0].read() == b"", "the first one had to go"
    for _, each in (*held, (reader, writer)):
        each.close()
    await health.close()
