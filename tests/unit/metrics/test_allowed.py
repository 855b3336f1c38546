"""Which servers a job may name, and what becomes of their names."""

from __future__ import annotations

import pytest

from heterotrain_operator.metrics.allowed import (
    DEFAULT_ALLOWED,
    NotAllowedError,
    Server,
    allowed_server,
    check_pattern,
)


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("http://prometheus:9090", "http://prometheus.ml.svc:9090"),
        ("http://prometheus.monitoring", "http://prometheus.monitoring.svc"),
        ("https://prometheus.monitoring.svc:9090/path/", "https://prometheus.monitoring.svc:9090/path"),
        ("http://prometheus.monitoring.svc.cluster.local:9090", "http://prometheus.monitoring.svc.cluster.local:9090"),
        ("http://Prometheus.Monitoring:9090", "http://prometheus.monitoring.svc:9090"),
        ("http://example.com", "http://example.com.svc"),  # which is a Service, or nothing
    ],
)
def test_any_service_of_the_cluster_is_allowed_and_never_looked_up_outside(url: str, asked: str) -> None:
    assert allowed_server(url, "ml", DEFAULT_ALLOWED).url == asked


def test_certificate_is_still_checked_for_the_name_that_the_user_gave() -> None:
    assert allowed_server("https://prometheus.monitoring", "ml", DEFAULT_ALLOWED) == Server(
        "https://prometheus.monitoring.svc", "prometheus.monitoring"
    )


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "[::1]",
        "localhost",
        "169.254.169.254",
        "10.0.0.1",
        "2130706433",
        "0x7f.1",
        "prometheus.example.com",
        "a.b.svc.example.com",
        "a.b.c.svc",
        "x.svc.cluster.local.example.com",
        "a.b.svc.",
        "-a.b",
        "metadata.google.internal",
        "kubernetes.default.svc@evil.example.com",
    ],
)
def test_nothing_else_is_allowed_by_default(host: str) -> None:
    with pytest.raises(ValueError, match=r"and not|credentials"):
        allowed_server(f"http://{host}:9090", "ml", DEFAULT_ALLOWED)


@pytest.mark.parametrize(
    ("pattern", "allowed", "refused"),
    [
        ("prometheus.example.com", "https://prometheus.example.com", "https://example.com"),
        ("*.example.com", "https://prometheus.example.com:9443", "https://example.com.evil.net"),
        ("*.example.com:9443", "https://prometheus.example.com:9443", "https://prometheus.example.com"),
        ("10.0.0.1:443", "https://10.0.0.1", "http://10.0.0.1"),
        ("[fd00::1]:9090", "http://[fd00::1]:9090", "http://[fd00::2]:9090"),
        ("[fd00::*]", "http://[fd00::1]:9090", "http://[fd01::1]:9090"),
        ("*", "http://anything.example.com", "ftp://anything.example.com"),
    ],
)
def test_patterns_of_the_installation_allow_hosts(pattern: str, allowed: str, refused: str) -> None:
    check_pattern(pattern)
    assert allowed_server(f"{allowed}/p/", "ml", [pattern]).url == f"{allowed}/p"
    with pytest.raises(ValueError, match=r"and not|no URL"):
        allowed_server(refused, "ml", [pattern])


def test_services_can_be_left_out_too() -> None:
    with pytest.raises(NotAllowedError, match=r"allow prometheus\.example\.com, and not prometheus\.monitoring"):
        allowed_server("http://prometheus.monitoring", "ml", ["prometheus.example.com"])
    with pytest.raises(NotAllowedError, match="allow no server"):
        allowed_server("http://prometheus.monitoring", "ml", [])


@pytest.mark.parametrize("pattern", ["", "http://host", "host/path", "host:", "host:port", "a b", "[a-z].b", "me@host"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="neither in-cluster nor a host"):
        check_pattern(pattern)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "prometheus:9090",
        "ftp://prometheus",
        "http://",
        "http://me:pw@host",
        "http://host/?a=b",
        "http://a:b",
        "http://[",
    ],
)
def test_address_that_is_none_is_refused_without_its_credentials(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|[Pp]ort|query") as caught:
        allowed_server(url, "ml", ["*"])
    assert "me:pw" not in str(caught.value)
