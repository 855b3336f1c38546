"""What reaches kopf of the documents that are watched: the few fields that handlers read, in pages of bounded size.

kopf keeps each document that it is shown until its handler has run, and half a second longer; somebody's hundred
objects of a megabyte, which only have to bear a label, would then be in memory at once, and take ten to twenty times
their size there. So jobs and ConfigMaps are asked for by their metadata alone, lists come in pages of so many objects
as fit into PAGE_BYTES, and of a page or an event only what is read is handed on.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import aiohttp

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

OK, GONE = 200, 410


def _short(body: Document) -> Document:
    return {"metadata": short_metadata(body["metadata"])}


SHORT: Mapping[str, Callable[[Document], Document]] = {PLURAL: _short, "configmaps": _short, "pods": short_pod}
"""What is kept of the objects of each resource that is watched."""


class Response(aiohttp.ClientResponse):
    """An answer of which only `short` is handed on, if there is one."""

    short: Document | None = None

    async def json(self, **how: Any) -> Any:
        """As the library's."""
        return await super().json(**how) if self.short is None else self.short


class Pages:
    """The middleware of a session: bounds what is read of lists and watches, and shortens it."""

    def __init__(self) -> None:
        self._objects: dict[str, int] = {}
        """Of the next page, by path."""

    async def __call__(self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        """Send a request of kopf's."""
        plural = request.url.path.rpartition("/")[2]
        if plural not in SHORT:
            return await send(request)
        watches = "watch" in request.url.query
        if plural != "pods":
            request.headers["Accept"] = METADATA if watches else METADATA_ONLY
        if not watches:
            return await self._page(request, send, plural)
        response = await send(request)
        if response.status == OK:
            response.content = _Events(response.content, SHORT[plural])  # type: ignore[assignment]
        return response

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
            if response.status == GONE and "continue" in request.url.query:
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

    def __init__(self, content: aiohttp.StreamReader, short: Callable[[Document], Document]) -> None:
        self._content, self._short = content, short

    def __getattr__(self, name: str) -> Any:
        """All else is the stream's own, which the library closes through it."""
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Lines, of which `size` bytes at most are read at once."""
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
        short = _shortened(body, self._short) if kind in ("ADDED", "MODIFIED", "DELETED") else body
        return None if short is None else json.dumps({"type": kind, "object": short}).encode() + b"\n"
