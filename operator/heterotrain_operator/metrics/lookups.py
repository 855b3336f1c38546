"""Look names up in separate threads, few for each domain.

A look-up cannot be cancelled, and the owner of a domain decides how long one takes.

A Service may be an alias for an address that only the operator's own machine reaches; such addresses are left out.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from heterotrain_operator.metrics.allowed import may_be_of

THREADS = 32
THREADS_PER_DOMAIN = 4
"""Concurrent look-ups in one domain; a further one fails at once."""


class Lookups(AbstractResolver):
    """The system's resolver, for use by one event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="lookup")
        self._under_way: Counter[str] = Counter()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The addresses of a name. Raises OSError if there are none that may be asked."""
        domain = host.partition(".")[2]
        if self._under_way[domain] >= THREADS_PER_DOMAIN:
            raise OSError(f"{THREADS_PER_DOMAIN} names of {domain} are being looked up")
        self._under_way[domain] += 1
        loop = asyncio.get_running_loop()

        def ended(_: Future[Any]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._ended, domain)

        found = self._threads.submit(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM)
        found.add_done_callback(ended)
        addresses = [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=int(address[1]),
                family=kind,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, _, protocol, _, address in await asyncio.wrap_future(found)
            if may_be_of(host, str(address[0]))
        ]
        if not addresses:
            raise OSError(f"{host} has no address that may be asked")
        return addresses

    async def close(self) -> None:
        """Begin no further look-ups; those that have begun end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ended(self, domain: str) -> None:
        self._under_way[domain] -= 1
        if not self._under_way[domain]:
            del self._under_way[domain]
