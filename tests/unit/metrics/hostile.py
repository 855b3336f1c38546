"""Servers that want to harm who asks them: real sockets, served from an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
DRIP_SECONDS = 0.02

Behaviour = Callable[[], AsyncIterator[bytes]]


async def dripping_headers() -> AsyncIterator[bytes]:
    """Headers without end, a byte at a time."""
    yield HEAD + b"X-More: "
    while True:
        await asyncio.sleep(DRIP_SECONDS)
        yield b"a"


async def dripping_body() -> AsyncIterator[bytes]:
    """A body that is never complete."""
    yield HEAD + b"Content-Length: 100000\r\n\r\n"
    while True:
        await asyncio.sleep(DRIP_SECONDS)
        yield b"#"


async def silent() -> AsyncIterator[bytes]:
    """Takes the question, and says nothing."""
    await asyncio.sleep(3600)
    yield b""


async def informing() -> AsyncIterator[bytes]:
    """Asks to go on, for ever."""
    while True:
        yield b"HTTP/1.1 100 Continue\r\n\r\n"
        await asyncio.sleep(DRIP_SECONDS)


async def many_headers() -> AsyncIterator[bytes]:
    """Headers as fast as they are read."""
    yield HEAD
    while True:
        yield b"X-More: " + b"a" * 1000 + b"\r\n"


async def long_header() -> AsyncIterator[bytes]:
    """One header as fast as it is read."""
    yield HEAD + b"X-More: "
    while True:
        yield b"a" * 10_000


async def endless_body() -> AsyncIterator[bytes]:
    """A body as fast as it is read."""
    yield HEAD + b"\r\n"
    while True:
        yield b"# nothing\n" * 1000


def _complete(body: str) -> bytes:
    return HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body.encode()


async def _until_they_leave() -> None:
    """To close before the request is read would take back what is not read of the answer."""
    await asyncio.Event().wait()


async def costly_series() -> AsyncIterator[bytes]:
    """A complete answer within a worker's bounds, of what is dearest to parse."""
    version = 'heterotrain_worker_plan_version{plan_version="1"} 1\n'
    labels = "".join(f'{chr(97 + number % 26)}{number}="",' for number in range(64))
    yield _complete(version + "".join(f'heterotrain_worker_x{{{labels[:-2]}{number}"}} 1\n' for number in range(255)))
    await _until_they_leave()


async def costly_matrix() -> AsyncIterator[bytes]:
    """A complete answer within a server's bounds for one worker, of what is dearest to parse."""
    labels = {f"a{number}": "" for number in range(9000)}
    series = [{"metric": {"__name__": "heterotrain_worker_x", **labels}, "values": [[1, "1"]]}]
    document = {"status": "success", "data": {"resultType": "matrix", "result": series}}
    yield _complete(json.dumps(document).ljust(2 << 16))
    await _until_they_leave()


DAWDLERS: tuple[Behaviour, ...] = (dripping_headers, dripping_body, silent, informing)
FLOODERS: tuple[Behaviour, ...] = (many_headers, long_header, endless_body)


@dataclass
class Hostile:
    """One such server: how many connections were made to it, how many there are, and were at most."""

    address: str = ""
    connections: int = 0
    open: int = 0
    most_open: int = 0


async def _serve(
    served: Iterable[tuple[Hostile, Behaviour, str]], port: int, ready: threading.Event, stop: asyncio.Event
) -> None:
    writers: list[asyncio.StreamWriter] = []
    async with contextlib.AsyncExitStack() as stack:
        for one, behaviour, host in served:
            server = await asyncio.start_server(partial(_connected, one, behaviour, writers), host, port)
            stack.callback(server.close)
            address = server.sockets[0].getsockname()
            one.address = f"{address[0]}:{address[1]}"
        ready.set()
        await stop.wait()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    for writer in writers:
        writer.transport.abort()  # a mere close() would wait until what is buffered has been read
    for writer in writers:
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _connected(
    one: Hostile,
    behaviour: Behaviour,
    writers: list[asyncio.StreamWriter],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> asyncio.Task[None]:
    """Note the writer before there is a task, which may be cancelled before it has run at all."""
    writers.append(writer)
    return asyncio.ensure_future(_handle(one, behaviour, reader, writer))


async def _handle(
    one: Hostile, behaviour: Behaviour, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """One connection, until whoever asks goes away."""
    one.connections += 1
    one.open += 1
    one.most_open = max(one.most_open, one.open)
    tasks = [asyncio.ensure_future(_left(reader)), asyncio.ensure_future(_say(behaviour, writer))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        one.open -= 1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        writer.close()


async def _left(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(1 << 16):
            pass


async def _say(behaviour: Behaviour, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        async for part in behaviour():
            writer.write(part)
            await writer.drain()


@contextlib.contextmanager
def hostile(*behaviours: Behaviour, hosts: Sequence[str] = (), port: int = 0) -> Iterator[list[Hostile]]:
    """Serve so as long as the block lasts, each at an address of its own; any free one if none are given."""
    found = [Hostile() for _ in behaviours]
    served = zip(found, behaviours, hosts or ["127.0.0.1"] * len(behaviours), strict=True)
    loop, stop, ready = asyncio.new_event_loop(), asyncio.Event(), threading.Event()

    def run() -> None:
        with contextlib.closing(loop):
            loop.run_until_complete(_serve(served, port, ready, stop))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(10)
        yield found
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
