"""Ask HTTP servers that nobody vouches for: every answer is bounded in time and size, up to its last byte.

Whoever dawdles costs neither a thread nor anybody else's turn.

Redirects are not followed, since they would take the operator, and credentials, to wherever a stranger names; nothing
is remembered of a server but its open connection; and compressed answers are not asked for, since they may grow.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

import aiohttp

from heterotrain_operator.metrics.lookups import Lookups
from heterotrain_operator.metrics.shares import Shares

IDLE_SECONDS = 15.0
"""For so long a connection is kept for the next question; longer than any pause between rounds of a job that trains."""

CONNECTIONS_EACH = 128
"""Questions of one owner under way at once."""

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class UnreachableError(Exception):
    """No answer came in time; the text says why, for those who run the operator."""


class WrongAnswerError(Exception):
    """An answer came that is none of HTTP, or too large, or from a server that is not trusted; the text says which."""


class UntrustedError(WrongAnswerError):
    """The server's certificate is not one of the authority's."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said, whatever its status."""

    status: int
    body: bytes


class Client:
    """Asks, and keeps connections for the next time. For one event loop; `close` it there."""

    def __init__(self, *, proxies: bool = False, each: int = CONNECTIONS_EACH) -> None:
        """`proxies`: go through those that the environment names. `each`: an owner's questions at once."""
        self._proxies = proxies
        self._shares = Shares(each)
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
        """What the server answers within so many seconds; the wait for one of the `owner`'s turns comes before them.

        `server_name` is the one in its certificate, if not the URL's.

        Raises UnreachableError, or WrongAnswerError, also beyond `max_bytes`.
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
        """Close what is connected."""
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
        """A session belongs to the loop that runs when it is made."""
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
