"""One request to the API server: a time limit, a bound on what is read of the answer, and every error in our words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from kubernetes.client import ApiClient, ApiException
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError

REQUEST_SECONDS = 5.0
"""Time limit of one request; the API server answers within milliseconds or is in trouble.

A holder of the Lease stops acting this many seconds before another may take the Lease, so that whatever it sent has
been answered by then.
"""


class PatientClient(ApiClient):
    """Bounds every request that its caller did not bound."""

    def call_api(self, *arguments: Any, **more: Any) -> Any:
        """As the library's, with a timeout."""
        more["_request_timeout"] = more.get("_request_timeout") or REQUEST_SECONDS
        return super().call_api(*arguments, **more)

    def close(self) -> None:
        """Close what is connected."""
        self.rest_client.close()


CONFLICT = 409

JSON = "application/json"

LARGEST_ANSWER_BYTES = 256 * 2**20
"""A list of 10,000 pods has about 100 MB."""

LONGEST_EVENT_BYTES = 16 * 2**20
"""One event of a watch holds one object, and an API server stores none of more than a few MB."""

PIECE_BYTES = 64 * 1024

Document = dict[str, Any]
Timeout = float | tuple[float, float]
"""Seconds for a whole request, or for its connection and for each wait for more of the answer."""


class GatewayError(Exception):
    """The API server refused or did not answer.

    `status` is its HTTP status, None if there was none; `why` is what it said, without what it was asked.
    """

    def __init__(self, message: str, status: int | None = None, *, why: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.why = why or message


class ConflictError(GatewayError):
    """The object exists already, or is not of the version that was expected, or something that it depends on is not.

    `exists` is true for the first of these alone.
    """

    exists = False


class TooLargeError(GatewayError):
    """The answer is larger than its bound."""


class BrokenOffError(GatewayError):
    """An answer began, and cannot be read to its end."""


class Transport:
    """Sends requests. For use by many threads."""

    def __init__(self, client: ApiClient, timeout: Timeout | None = None) -> None:
        """`timeout` is that of a request which names none of its own; None: the client's."""
        self._client = client
        self._timeout = timeout

    def ask(
        self,
        method: str,
        path: str,
        what: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> Document:
        """The object that answers; `what` the request was for begins the text of every error.

        Raises ConflictError and GatewayError.
        """
        headers = {"Accept": accept, "Content-Type": content_type}
        response = self._open(method, path, what, query=query, body=body, headers=headers)
        document = _document(_whole(response, what))
        if document is None:
            why = "the answer is no object"
            raise GatewayError(f"{what}: {why} (HTTP {response.status})", response.status, why=why)
        return document

    def text(self, path: str, what: str, *, most: int) -> bytes:
        """The answer as it came. Raises TooLargeError if it has more than `most` bytes, GatewayError."""
        return _whole(self._open("GET", path, what, query=None, headers={"Accept": JSON}), what, most)

    def pieces(
        self, path: str, what: str, *, query: Mapping[str, str], accept: str = "*/*", timeout: Timeout | None = None
    ) -> Iterator[bytes]:
        """The bytes of an answer as they come, until it ends or is not wanted any more; sent once they are asked for.

        Raises GatewayError, and BrokenOffError if the answer began.
        """
        response = self._open("GET", path, what, query=query, headers={"Accept": accept}, timeout=timeout)
        try:
            yield from response.stream(PIECE_BYTES)
        except HTTPError as error:
            why = _words(error)
            raise BrokenOffError(f"{what}: the answer broke off ({why})", why=why) from error
        finally:
            response.close()
            response.release_conn()

    def events(
        self, path: str, what: str, *, query: Mapping[str, str], timeout: Timeout | None = None
    ) -> Iterator[Document]:
        """The objects of an answer that has one in each line, as they come.

        Raises GatewayError, and BrokenOffError if the answer began.
        """
        for line in _lines(self.pieces(path, what, query=query, accept=JSON, timeout=timeout), what):
            document = _document(line)
            if document is None:
                raise BrokenOffError(f"{what}: a line of the answer is no object", why="an event is no object")
            yield document

    # --- inside ---------------------------------------------------------------------------------------------

    def _open(
        self,
        method: str,
        path: str,
        what: str,
        *,
        query: Mapping[str, str] | None,
        headers: Mapping[str, str],
        body: Any = None,
        timeout: Timeout | None = None,
    ) -> BaseHTTPResponse:
        """The answer before its body is read, where it is no refusal."""
        request = self._client.param_serialize(
            method=method,
            resource_path=path,
            query_params=list((query or {}).items()),
            header_params=dict(headers),
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            answer = self._client.call_api(*request, _request_timeout=timeout or self._timeout)
        except (HTTPError, ApiException) as error:
            raise _silent(what, error) from error
        response: BaseHTTPResponse = answer.response
        if not 200 <= response.status <= 299:
            raise _refused(what, response.status, answer.reason, _document(_whole(response, what)) or {})
        return response


def _whole(response: BaseHTTPResponse, what: str, most: int | None = None) -> bytes:
    most = most or LARGEST_ANSWER_BYTES
    try:
        data = response.read(most + 1, decode_content=True)
    except HTTPError as error:
        raise _silent(what, error) from error
    if len(data) > most:
        response.close()
        why = f"the answer is larger than {most} bytes"
        raise TooLargeError(f"{what}: {why}", response.status, why=why)
    response.release_conn()
    return data


def _lines(pieces: Iterator[bytes], what: str) -> Iterator[bytes]:
    """Lines that are not empty, each as soon as it is complete."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line for line in whole if line.strip())
        if len(rest) > LONGEST_EVENT_BYTES:
            why = f"an event is larger than {LONGEST_EVENT_BYTES} bytes"
            raise BrokenOffError(f"{what}: {why}", why=why)


def _document(data: bytes) -> Document | None:
    """A JSON object; None if it is none, as when a proxy answers in the API server's place."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _refused(what: str, status: int, reason: str, document: Mapping[str, Any]) -> GatewayError:
    """What went wrong, with the API server's own message where it gave one."""
    answered = document.get("message")
    message, why = f"{what}: {answered or reason} (HTTP {status})", str(answered or f"{status} {reason}")
    if status != CONFLICT:
        return GatewayError(message, status, why=why)
    conflict = ConflictError(message, status, why=why)
    conflict.exists = document.get("reason") == "AlreadyExists"
    return conflict


def _silent(what: str, error: Exception) -> GatewayError:
    """There is no answer, or not all of it."""
    why = _words(error)
    return GatewayError(f"{what}: the API server does not answer ({why})", why=why)


def _words(error: Exception) -> str:
    """What went wrong, without the object that the HTTP library names first."""
    text = str(error.reason) if isinstance(error, ApiException) else str(error)
    return re.sub(r"^\w+\(host=.*?\): ", "", " ".join(text.split())) or type(error).__name__
