"""What reaches kopf of the documents that are watched: the few fields that handlers read, in pages of bounded size.

kopf keeps each document that it is shown until its handler has run, and half a second longer; somebody's hundred
objects of a megabyte, which only have to bear a label, would then be in memory at once, and take ten to twenty times
their size there. So jobs and ConfigMaps are asked for by their metadata alone, lists come in pages of so many objects
as fit into PAGE_BYTES, and of a page or an event only what is read is handed on.

kopf ends the whole process when a list or a watch is answered by an error that it does not know, or says in other words
than seconds when to ask again, and begins again at once when a watch ends at once. Here every error means that the same
is asked again or, where the same would be refused again, that all is listed again; and what begins again soon waits
longer each time.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import aiohttp

from heterotrain.foreign import as_text
from heterotrain_operator.clusters.kube.api_server.gateway import METADATA, METADATA_ONLY
from heterotrain_operator.clusters.kube.objects.names import PLURAL
from heterotrain_operator.clusters.kube.observe.pod_facts import short_metadata, short_pod

logger = logging.getLogger(__name__)

Document = dict[str, Any]

PAGE_BYTES = 4 * 2**20
"""Of one page of a list. A larger one is asked for again with a quarter of the objects; one object has its page
whatever its size."""

PAGE_OBJECTS = 500
"""Of one page at most, as kubectl's."""

OBJECT_BYTES = 16 * 2**20
"""Of one object, which an API server stores none of more than a few MB; a larger one is passed over."""

SOON_SECONDS = 10.0
SHORTEST_PAUSE, LONGEST_PAUSE = 0.25, 5.0
"""A list or a watch that begins again within so many seconds waits before it does, twice as long each time; both of
these are seconds. Where RefusedError is raised kopf pauses by itself."""

OK, REFUSED, UNAUTHORIZED, GONE = 200, 400, 401, 410

PASSES = frozenset({403, 429, *range(500, 600)})
"""Refusals of a watch that are not for what it asks."""

RELIST = b'{"type": "ERROR", "object": {"code": 410}}\n'
"""The one error of a watch that kopf lists everything again for."""


def _short(body: Document) -> Document:
    return {"metadata": short_metadata(body["metadata"])}


SHORT: Mapping[str, Callable[[Document], Document]] = {PLURAL: _short, "configmaps": _short, "pods": short_pod}
"""What is kept of the objects of each resource that is watched."""


class RefusedError(aiohttp.ClientConnectionError):
    """The API server answered with this HTTP status. kopf asks again after a pause, as where there was no answer."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status


class Response(aiohttp.ClientResponse):
    """An answer of which only `short` is handed on, if there is one; `refused` is its status where kopf sees none."""

    short: Document | None = None
    refused: int = 0

    async def json(self, **how: Any) -> Any:
        """As the library's."""
        return await super().json(**how) if self.short is None else self.short


class Pages:
    """The middleware of a session: bounds what is read of lists and watches, and shortens it."""

    def __init__(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._sleep = sleep
        self._objects: dict[str, int] = {}
        """Of the next page, by path."""
        self._begun: dict[tuple[str, bool], tuple[float, float]] = {}
        """When a list or a watch of a path began last, on the event loop's clock, and how long it had waited."""

    async def __call__(self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        """Send a request of kopf's. Raises RefusedError."""
        plural = request.url.path.rpartition("/")[2]
        if plural not in SHORT:
            return await send(request)
        watches = "watch" in request.url.query
        if plural != "pods":
            request.headers["Accept"] = METADATA if watches else METADATA_ONLY
        what = (request.url.path, watches)
        pause = 0.0 if "continue" in request.url.query else await self._paused(what)
        response = await (send(request) if watches else self._page(request, send, plural))
        status = response.status
        if status == UNAUTHORIZED:  # kopf logs in again
            return response
        relists = watches and status >= REFUSED and status not in PASSES
        if status >= REFUSED and not relists:
            response.close()
            raise RefusedError(status)
        self._begun[what] = (asyncio.get_running_loop().time(), pause)
        if relists:
            response.status = OK
            if isinstance(response, Response):
                response.refused = status
        if watches:
            response.content = _Events(response.content, SHORT[plural], relists=relists)  # type: ignore[assignment]
        return response

    async def _paused(self, what: tuple[str, bool]) -> float:
        """Wait, if the same began a moment ago. Returns the seconds."""
        at, before = self._begun.pop(what, (0.0, 0.0))
        if not at or asyncio.get_running_loop().time() - at >= SOON_SECONDS:
            return 0.0
        pause = min(2 * before or SHORTEST_PAUSE, LONGEST_PAUSE)
        await self._sleep(pause)
        return pause

    async def _page(
        self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType, plural: str
    ) -> aiohttp.ClientResponse:
        """The next page of a list, of as many objects as fit.

        A list that cannot be continued, since the API server was away or its history is gone, begins from its first
        page: kopf does so where an answer breaks off, and ends the whole process for any other reason.
        """
        path = request.url.path
        while True:
            objects = self._objects.get(path, PAGE_OBJECTS)
            request.url = request.url.update_query(limit=str(objects))
            response = await send(request)
            if response.status in (REFUSED, GONE) and "continue" in request.url.query:
                response.close()
                raise aiohttp.ClientPayloadError("the list cannot be continued")
            if response.status != OK:
                return response
            data = await _at_most(response, PAGE_BYTES if objects > 1 else OBJECT_BYTES)
            if data is None and objects == 1:
                raise aiohttp.ClientPayloadError(f"one of {path} is larger than {OBJECT_BYTES} bytes")
            if data is None:
                self._objects[path] = max(1, objects // 4)
                continue
            if len(data) < PAGE_BYTES // 4:
                self._objects[path] = min(2 * objects, PAGE_OBJECTS)
            if isinstance(response, Response):
                response.short = _short_page(data, SHORT[plural])
            return response


async def _at_most(response: aiohttp.ClientResponse, most: int) -> bytes | None:
    """The whole answer; None if it is larger."""
    data = bytearray()
    async for piece in response.content.iter_any():
        data += piece
        if len(data) > most:
            response.close()
            return None
    return bytes(data)


def _short_page(data: bytes, short: Callable[[Document], Document]) -> Document:
    """Raises ClientPayloadError, after which kopf begins again, if a proxy answers in the API server's place."""
    try:
        page: Document = json.loads(data)
        metadata, items = page["metadata"], list(page["items"] or ())
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise aiohttp.ClientPayloadError("the answer is no list") from error
    return {"metadata": metadata, "items": [found for item in items if (found := _shortened(item, short))]}


def _shortened(body: Any, short: Callable[[Document], Document]) -> Document | None:
    """None, of an object that is none of its kind: it must not keep the others from being seen."""
    try:
        return short(body)
    except (KeyError, TypeError, AttributeError):
        logger.warning("an object is passed over, which cannot be read")
        return None


class _Events:
    """In place of a watch's stream: its lines, each shortened as soon as it is complete."""

    def __init__(
        self, content: aiohttp.StreamReader, short: Callable[[Document], Document], *, relists: bool = False
    ) -> None:
        """`relists`: the content is a refusal instead, as where the version that is watched from is too old."""
        self._content, self._short, self._relists = content, short, relists

    def __getattr__(self, name: str) -> Any:
        """All else is the stream's own, which the library closes through it."""
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Lines, of which `size` bytes at most are read at once."""
        if self._relists:
            yield RELIST
            return
        rest, passed_over = bytearray(), 0
        async for piece in self._content.iter_chunked(size):
            *ends, last = piece.split(b"\n")
            for end in ends:
                rest += end
                if passed_over:
                    logger.warning("an event of %d bytes is passed over", passed_over + len(rest))
                elif rest.strip() and (line := self._line(rest)):
                    yield line
                rest, passed_over = bytearray(), 0
            rest += last
            if len(rest) > OBJECT_BYTES:
                passed_over += len(rest)
                rest = bytearray()

    def _line(self, line: bytearray) -> bytes | None:
        """None where the object cannot be read. Raises ClientPayloadError as above."""
        try:
            event = json.loads(line)
            kind, body = event["type"], event["object"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise aiohttp.ClientPayloadError("an event is no object") from error
        if kind == "ERROR":
            if not isinstance(body, Mapping) or body.get("code") != GONE:
                logger.warning("a watch ends with an error, and all is listed again: %s", as_text(str(body), 300))
            return RELIST
        short = _shortened(body, self._short) if kind in ("ADDED", "MODIFIED", "DELETED") else body
        return None if short is None else json.dumps({"type": kind, "object": short}).encode() + b"\n"
