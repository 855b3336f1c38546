"""Ask HTTP servers that are not trusted: every answer is bounded in time and size, up to its last byte.

A slow server occupies no thread, and delays only requests of the same owner.

Redirects are not followed, since they would lead the operator and its credentials to an address of the server's
choice. Nothing is kept of a server except its open connection. Compressed answers are not requested, since their size
is known only once they are unpacked.

Names are looked up in separate threads, few for each domain: a look-up cannot be cancelled, and the owner of a domain
decides how long one takes. A Service may be an alias for an address that only the operator's own machine reaches; such
addresses are left out.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from heterotrain_operator.metrics.allowed import may_be_of
from heterotrain_operator.metrics.parsing import Parsing
from heterotrain_operator.metrics.shares import Shares

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


IDLE_SECONDS = 15.0
"""Time for which an unused connection is kept; longer than any pause between rounds of a job that trains."""

CONNECTIONS_PER_OWNER = 128
"""Concurrent requests of one owner."""

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class UnreachableError(Exception):
    """No answer came in time; the text says why, for the operator's log."""


class WrongAnswerError(Exception):
    """The answer is not HTTP, too large, or from a server that is not trusted; the text says which."""


class UntrustedError(WrongAnswerError):
    """The server's certificate is not signed by the authority."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's answer, of any status."""

    status: int
    body: bytes


class Client:
    """Sends requests over connections that it keeps. It belongs to one event loop, in which it must be closed."""

    def __init__(self, *, proxies: bool = False, per_owner: int = CONNECTIONS_PER_OWNER) -> None:
        """`proxies`: use those that the environment names. `per_owner`: concurrent requests of one owner."""
        self.parsing = Parsing()
        """For what the servers answer."""
        self._proxies = proxies
        self._shares = Shares(per_owner)
        self._session: aiohttp.ClientSession | None = None
        self._lookups: Lookups | None = None

    async def get(
        self,
        url: str,
        *,
        owner: str,
        seconds: float,
        max_bytes: int,
        headers: Mapping[str, str] = _NO_HEADERS,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> Answer:
        """What the server answers within `seconds`, which begin once the `owner` may send another request.

        `server_name` is the name in the server's certificate, if it is not the URL's.

        Raises UnreachableError, and WrongAnswerError also for an answer of more than `max_bytes`.
        """
        async with self._shares.of(owner):
            try:
                async with asyncio.timeout(seconds):
                    return await self._ask(
                        url, max_bytes, headers=headers, ssl=tls or True, server_hostname=server_name
                    )
            except aiohttp.ClientConnectorCertificateError as error:
                raise UntrustedError(f"TLS: {error.certificate_error}") from None
            except aiohttp.ClientSSLError as error:
                raise WrongAnswerError(f"TLS: {error}") from None
            except TimeoutError:
                raise UnreachableError(f"no answer within {seconds:g} s") from None
            except (OSError, aiohttp.ServerDisconnectedError) as error:
                raise UnreachableError(str(error) or type(error).__name__) from None
            except (aiohttp.ClientError, ValueError) as error:
                raise WrongAnswerError(f"no answer of HTTP: {type(error).__name__}") from None

    async def close(self) -> None:
        """Close all connections."""
        self.parsing.close()
        if self._session is not None:
            await self._session.close()
            self._session = None
        if self._lookups is not None:
            await self._lookups.close()
            self._lookups = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- inside ---------------------------------------------------------------------------------------------

    async def _ask(self, url: str, max_bytes: int, **request: Any) -> Answer:
        session = self._session or self._connected()
        async with session.get(url, allow_redirects=False, **request) as found:
            body = bytearray()
            async for part in found.content.iter_any():
                body += part
                if len(body) > max_bytes:
                    found.close()
                    raise WrongAnswerError(f"the answer is larger than {max_bytes} bytes")
            return Answer(found.status, bytes(body))

    def _connected(self) -> aiohttp.ClientSession:
        """A new session, which belongs to the event loop that runs now."""
        self._lookups = Lookups()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS, resolver=self._lookups),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            headers={"Accept-Encoding": "identity"},
            timeout=aiohttp.ClientTimeout(total=None),
            trust_env=self._proxies,
        )
        return self._session
