"""Names that take for ever to look up, and names that lead to where no Service is."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from heterotrain_operator.metrics.allowed import may_be_of
from heterotrain_operator.metrics.client import Client, UnreachableError
from heterotrain_operator.metrics.lookups import THREADS_PER_DOMAIN
from unit.metrics.servers import Script


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


def test_service_that_leads_to_the_operators_own_machine_is_not_asked(
    url: str, script: Script, stuck: list[str]
) -> None:
    async def run() -> None:
        async with Client() as client:
            with pytest.raises(UnreachableError):
                await client.get(f"http://alias.ours.svc:{url.rpartition(':')[2]}/", owner="", seconds=5, max_bytes=1)

    asyncio.run(run())
    assert script.asked == []


@pytest.mark.parametrize(
    ("address", "may"),
    [
        ("10.96.0.7", True),
        ("fd00::7", True),
        ("127.0.0.1", False),
        ("::1", False),
        ("169.254.169.254", False),
        ("fe80::1%eth0", False),
        ("::ffff:169.254.169.254", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
    ],
)
def test_addresses_that_no_service_has_are_left_out(address: str, may: bool) -> None:
    for host in ("a.b.svc", "a.b.svc.cluster.local"):
        assert may_be_of(host, address) is may
    assert may_be_of("prometheus.example.com", address)
