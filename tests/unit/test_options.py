"""What the operator is told by its environment."""

from __future__ import annotations

import logging

import pytest

from heterotrain_operator.controller.options import DEFAULT_HEALTH_PORT, DEFAULT_LEASE, DEFAULT_METRICS_PORT, Options


def test_nothing_need_be_set() -> None:
    found = Options.from_environment({})
    assert (found.watched, found.namespace, found.lease) == ((), "default", DEFAULT_LEASE)
    assert (found.metrics_port, found.health_port) == (DEFAULT_METRICS_PORT, DEFAULT_HEALTH_PORT)
    assert found.log_level == logging.INFO
    assert found.prometheus_allow == ("in-cluster",)
    assert found.identity


def test_what_the_chart_sets_is_taken() -> None:
    environment = {
        "HETEROTRAIN_NAMESPACES": "team-a, team-b,,team-a",
        "HETEROTRAIN_LEASE": "release",
        "HETEROTRAIN_LOG_LEVEL": "debug",
        "HETEROTRAIN_METRICS_PORT": "9091",
        "HETEROTRAIN_HEALTH_PORT": "8081",
        "HETEROTRAIN_PROMETHEUS_ALLOW": "in-cluster, *.example.com:9090",
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
    )


@pytest.mark.parametrize("port", ["", "0", "65536", "-1", "http", "٣", "1e3", "9" * 5000])
@pytest.mark.parametrize("name", ["HETEROTRAIN_METRICS_PORT", "HETEROTRAIN_HEALTH_PORT"])
def test_port_that_is_none_is_named(name: str, port: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: '.*' is no port"):
        Options.from_environment({name: port})


def test_unknown_log_level_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"HETEROTRAIN_LOG_LEVEL: LOUD is none of .*WARNING"):
        Options.from_environment({"HETEROTRAIN_LOG_LEVEL": "loud"})


@pytest.mark.parametrize("names", ["team-*", "!team-a", "Team", "team_a", "a" * 64, "team-a,-b"])
def test_what_is_no_namespace_is_named(names: str) -> None:
    with pytest.raises(ValueError, match=r"HETEROTRAIN_NAMESPACES: .* is no name of a namespace"):
        Options.from_environment({"HETEROTRAIN_NAMESPACES": names})


def test_no_server_at_all_can_be_allowed() -> None:
    assert Options.from_environment({"HETEROTRAIN_PROMETHEUS_ALLOW": ""}).prometheus_allow == ()


def test_what_is_no_pattern_of_servers_is_named() -> None:
    with pytest.raises(ValueError, match=r"^HETEROTRAIN_PROMETHEUS_ALLOW: 'http://p' is neither in-cluster nor a host"):
        Options.from_environment({"HETEROTRAIN_PROMETHEUS_ALLOW": "in-cluster,http://p"})


def test_readers_of_metrics_are_peers_of_network_policies() -> None:
    assert Options.from_environment({}).metrics_from is None
    found = Options.from_environment({"HETEROTRAIN_METRICS_FROM": '[{"namespaceSelector": {}}, {"podSelector": {}}]'})
    assert found.metrics_from == ({"namespaceSelector": {}}, {"podSelector": {}})


@pytest.mark.parametrize("text", ["all", "{}", "[]", "[1]", "[{}]", "[" * 100_000])
def test_what_is_no_list_of_peers_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"HETEROTRAIN_METRICS_FROM: .* is no JSON list of NetworkPolicyPeers"):
        Options.from_environment({"HETEROTRAIN_METRICS_FROM": text})
