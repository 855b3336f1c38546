"""Which servers a job may name, what becomes of their names, and what connections and look-ups cost."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from heterotrain_operator.metrics.allowed import (
    DEFAULT_ALLOWED,
    NotAllowedError,
    Server,
    allowed_server,
    check_pattern,
    may_be_of,
)
from heterotrain_operator.metrics.client import THREADS_PER_DOMAIN, Client, UnreachableError
from unit.metrics.servers import Script


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("http://prometheus:9090", "http://prometheus.ml.svc:9090"),
        ("http://Prometheus.Monitoring", "http://prometheus.monitoring.svc"),
        ("https://prometheus.monitoring.svc:9090/path/", "https://prometheus.monitoring.svc:9090/path"),
        ("http://prometheus.monitoring.svc.cluster.local:9090", "http://prometheus.monitoring.svc.cluster.local:9090"),
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
        *(
            "127.0.0.1",
            "[::1]",
            "localhost",
            "169.254.169.254",
            "2130706433",
            "0x7f.1",
            "a.b.c.svc",
            "a.b.svc.",
            "-a.b",
        ),
        *("prometheus.example.com", "a.b.svc.example.com", "x.svc.cluster.local.example.com"),
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
    "url", ["", "prometheus:9090", "ftp://prometheus", "http://", "http://me:pw@host", "http://host/?a=b", "http://["]
)
def test_address_that_is_none_is_refused_without_its_credentials(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|[Pp]ort|query") as caught:
        allowed_server(url, "ml", ["*"])
    assert "me:pw" not in str(caught.value)


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names in theirs.svc are looked up until the test ends; these are under way. All others are of this machine."""
    under_way: list[str] = []
    ends = threading.Event()

    def look_up(host: str, port: int, *_: Any) -> list[Any]:
        if host.endswith(".theirs.svc"):
            under_way.append(host)
            ends.wait(30)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    yield under_way
    ends.set()


def test_names_that_take_for_ever_hold_few_threads_and_nobody_else(url: str, stuck: list[str]) -> None:
    port = url.rpartition(":")[2]

    async def ask(client: Client, host: str, seconds: float) -> int:
        answer = await client.get(f"http://{host}:{port}/", owner=host, seconds=seconds, max_bytes=1 << 20)
        return answer.status

    async def run() -> None:
        async with Client() as client:
            began = time.monotonic()
            theirs = [ask(client, f"{number % 50}.theirs.svc", 0.3) for number in range(100)]
            found = await asyncio.gather(*theirs, return_exceptions=True)
            assert {type(one) for one in found} == {UnreachableError}
            assert await ask(client, "prometheus.example.com", 5.0) == 200
            assert time.monotonic() - began < 5.0

    asyncio.run(run())
    assert len(stuck) == THREADS_PER_DOMAIN


def test_service_that_leads_to_the_own_machine_is_not_asked(url: str, script: Script, stuck: list[str]) -> None:
    async def run() -> None:
        async with Client() as client:
            with pytest.raises(UnreachableError):
                await client.get(f"http://alias.ours.svc:{url.rpartition(':')[2]}/", owner="", seconds=5, max_bytes=1)

    asyncio.run(run())
    assert script.asked == []


def test_addresses_that_no_service_has_are_left_out() -> None:
    ours = ("10.96.0.7", "fd00::7")
    others = ("127.0.0.1", "::1", "169.254.169.254", "fe80::1%eth0", "::ffff:169.254.169.254", "0.0.0.0", "224.0.0.1")
    for host in ("a.b.svc", "a.b.svc.cluster.local"):
        assert [address for address in (*ours, *others) if may_be_of(host, address)] == [*ours]
    assert all(may_be_of("prometheus.example.com", address) for address in (*ours, *others))


def test_a_client_asks_again_over_the_same_connection(url: str, script: Script) -> None:
    async def ask() -> None:
        async with Client() as client:
            for _ in range(3):
                await client.get(f"{url}/", owner="ours", seconds=10.0, max_bytes=100)

    asyncio.run(ask())
    assert (len(script.asked), len(script.connections)) == (3, 1)
