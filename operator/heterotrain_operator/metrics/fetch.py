"""Fetch a JSON document over HTTP(S), bounded in time and size, with every failure in words.

Users read a condition, not a traceback: whatever goes wrong becomes one sentence that says where to look and holds no
secret. Redirects are not followed, since they would carry the credentials to whoever is named.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from email.message import Message
from typing import IO

from heterotrain_operator.metrics.body import TooLargeError, read_body
from heterotrain_operator.metrics.credentials import Credentials

MAX_BYTES = 32 << 20
MAX_ERROR_BYTES = 1 << 16
MAX_WORDS = 300
"""Characters that are repeated of an error that a server reports as Prometheus does; of nothing else, since whoever may
name a server here may be somebody who cannot reach it."""


class FetchError(Exception):
    """Why there is no document, in words."""


class _RefusedRedirects(urllib.request.HTTPRedirectHandler):
    """Makes an error of a redirect."""

    def redirect_request(  # noqa: PLR0917  # the base class has it so
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        """None: do not follow."""


class Fetcher:
    """Asks one server."""

    def __init__(
        self,
        url: str,
        *,
        credentials: Credentials | None = None,
        ca_pem: str | None = None,
        timeout_seconds: float,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """`url` is where paths begin. `ca_pem` replaces the authorities that the system trusts.

        Raises ValueError if the URL, the credentials or the authority cannot be used.
        """
        self._base = _checked(url)
        self._timeout_seconds = timeout_seconds
        self._max_bytes = max_bytes
        self._headers = {"Accept": "application/json"}
        if credentials is not None:
            self._headers["Authorization"] = credentials.header()
        self._has_credentials = credentials is not None
        handlers: list[urllib.request.BaseHandler] = [_RefusedRedirects()]
        if ca_pem is not None or self._base.startswith("https:"):  # reading the system's authorities takes a while
            handlers.append(urllib.request.HTTPSHandler(context=_context(ca_pem)))
        self._opener = urllib.request.build_opener(*handlers)

    def get(self, path: str, query: dict[str, str]) -> object:
        """The document at a path below the URL. Raises FetchError."""
        request = urllib.request.Request(f"{self._base}{path}?{urllib.parse.urlencode(query)}", headers=self._headers)
        deadline = time.monotonic() + self._timeout_seconds
        try:
            with self._opener.open(request, timeout=self._timeout_seconds) as response:
                kind = response.headers.get_content_type()
                body = read_body(response, deadline=deadline, max_bytes=self._max_bytes)
        except urllib.error.HTTPError as error:
            with error:
                raise FetchError(self._refusal(error, deadline)) from None
        except TooLargeError:
            raise FetchError(f"the answer is larger than {self._max_bytes >> 20} MiB") from None
        except (OSError, http.client.HTTPException) as error:
            raise FetchError(self._failure(error)) from None
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise FetchError(f"the answer is not JSON, and calls itself {kind}") from None

    def _refusal(self, error: urllib.error.HTTPError, deadline: float) -> str:
        status = f"{error.code} {http.client.responses.get(error.code, '')}".strip()
        if error.code == http.HTTPStatus.UNAUTHORIZED:
            asked = "refuses the credentials" if self._has_credentials else "asks for credentials, and none are given"
            return f"the server {asked} ({status})"
        if error.code == http.HTTPStatus.FORBIDDEN:
            return f"the server forbids the query to these credentials ({status})"
        if target := error.headers.get("Location"):
            return f"the server redirects to {_server(self._base, target)} ({status}); redirects are not followed"
        return f"the server answers {status}{_told(error, deadline)}"

    def _failure(self, error: Exception) -> str:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, ssl.SSLCertVerificationError):
            return f"TLS: the server's certificate is not trusted: {reason.verify_message}"
        if isinstance(reason, ssl.SSLError):
            return f"TLS: {reason.reason or reason}"
        if isinstance(reason, TimeoutError):
            return f"no answer within {self._timeout_seconds:g} s"
        if isinstance(reason, socket.gaierror):
            return f"the server's name is not known: {reason.strerror}"
        if isinstance(reason, OSError) and reason.strerror:
            return f"the server is away: {reason.strerror}"
        return f"the server is away: {_words(str(reason or type(reason).__name__).encode())}"


def _checked(url: str) -> str:
    """The URL without the slash at its end."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is no URL such as http://prometheus.monitoring:9090")
    if "@" in parts.netloc:
        raise ValueError("the URL holds credentials; put them into a Secret")
    if parts.query or parts.fragment:
        raise ValueError(f"{url!r} has a query or a fragment; leave them out")
    _ = parts.port  # raises ValueError, naming it, if it is no port
    return url.rstrip("/")


def _context(ca_pem: str | None) -> ssl.SSLContext:
    if ca_pem is None:
        return ssl.create_default_context()
    if "-----BEGIN CERTIFICATE-----" not in ca_pem:
        raise ValueError("the authority is no PEM certificate")
    try:
        return ssl.create_default_context(cadata=ca_pem)
    except ssl.SSLError as error:
        raise ValueError(f"the authority is no PEM certificate: {error.reason or error}") from None


def _told(error: urllib.error.HTTPError, deadline: float) -> str:
    """What the server says besides the status, if it says it in Prometheus' manner."""
    try:
        document = json.loads(read_body(error, deadline=deadline, max_bytes=MAX_ERROR_BYTES))
    except (OSError, http.client.HTTPException, ValueError, RecursionError):
        return ""
    if not isinstance(document, dict) or document.get("status") != "error" or "errorType" not in document:
        return ""
    text = document.get("error")
    return f": {_words(text.encode())}" if isinstance(text, str) and text else ""


def _server(base: str, target: str) -> str:
    """Whom a redirect names, without the rest, which may hold what only the asked may know."""
    try:
        parts = urllib.parse.urlsplit(urllib.parse.urljoin(base, target))
    except ValueError:
        return "what is no URL"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _words(text: bytes) -> str:
    """The beginning of a text in one line."""
    return " ".join(text[:MAX_WORDS].decode(errors="replace").split())
