"""A connection to one peer, over which messages travel in both directions.

The thread of `PeerServer` alone reads, writes and closes its socket. Any other thread may send, which never waits,
close, and wait for the connection to be open.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, TypeAlias

from heterotrain.groups.peering.event_loop import READ, WRITE
from heterotrain.groups.peering.frames import FrameError, Frames
from heterotrain.groups.peering.message_documents import encode_message, parse_message
from heterotrain.groups.peering.messages import Hello, Message
from heterotrain.peers import MAX_BYTES

MAX_UNSENT_BYTES = 4 * MAX_BYTES
"""What waits for a peer that does not read, before it is given up."""

LIFE_BYTES = 2**16
"""Fewer of them, of what is longer, are no sign that a peer lives: it may send or read one at a time for ever."""

USER_TIMEOUT_MS = 5000
"""For how long written bytes may go unacknowledged: so the loss of a whole machine shows."""

_READ_BYTES = 2**18
_MAX_PARTS = 1024  # of memory that Linux reads or writes in one call
_TCP_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", 18)


class End(Enum):
    """Why a channel has ended, as far as this worker can tell."""

    REFUSED = "refused"  # nobody listens at the peer's address: its process is dead, if it was alive a moment ago
    SILENT = "silent"  # no answer within the time, or no way to the address; that proves nothing
    CLOSED = "closed"  # the peer closed it, or died
    DISTRUSTED = "distrusted"  # the other side is another worker, or wrote what no worker of this job would write
    HERE = "here"  # this worker closed it


Room: TypeAlias = "Callable[[Channel, Any], Sequence[memoryview] | None]"
"""Where to write the bytes that follow a message, part by part; None if nobody waits for them now."""


class Channel:
    """A connection that is being made, is open, or has ended; it never begins again."""

    def __init__(self, frames: Frames, name: str, wake: Callable[[Channel], None], *, dials: bool) -> None:
        """`name` is for people until the peer has said its own; `wake` makes the server's thread call `write`."""
        self.name = name
        self.dials = dials
        self.end: End | None = None
        self.why = ""
        self.has_opened = False
        self.is_finishing = False
        self.addresses: list[tuple[socket.AddressFamily, Any]] = []
        self.tries = 0
        self.expected = (name, "")
        self.rooms: Mapping[type[Any], Room] = {}
        """By the kinds of messages that bulk bytes follow: as many as the room has that this side gives them."""
        self.moved_at = time.monotonic()
        """When `LIFE_BYTES` had last gone, or there was nothing to be sent."""
        self.received_at = self.moved_at
        """When they, or all of a message, had last arrived."""
        self.is_connecting = dials
        self.socket: socket.socket | None = None
        self._frames = frames
        self._wake = wake
        self._settled = threading.Event()
        self._lock = threading.Lock()
        self._bodies: deque[tuple[bytes, Sequence[memoryview]]] = deque()
        self._unsent_bytes = 0
        self._arrived = self._gone = 0  # bytes since then
        self._parts: list[memoryview] = []  # of the frame that is being written
        self._closing = ""
        self._bulk: list[memoryview] = []  # where the bytes that are still to be read are written
        self._before_bulk: Message | None = None

    def __repr__(self) -> str:
        state = self.end.value if self.end else "open" if self.has_opened else "opening"
        return f"Channel({self.name}, {state})"

    # --- for any thread -----------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the peer has proven who it is, and the connection has not ended."""
        return self.has_opened and self.end is None

    @property
    def peer(self) -> Hello:
        """Who is on the other side, of a channel that is or was open."""
        if self._frames.peer is None:
            raise ValueError(f"{self.name} has not said yet who it is")
        return self._frames.peer

    def send(self, message: Message) -> bool:
        """Let a message be written as soon as the channel is open and the peer reads. False if it has ended."""
        return self.send_document(encode_message(message))

    def send_document(self, document: bytes) -> bool:
        """Do as `send` does, with a message that is written already; channels may share it."""
        return self._send(document, ())

    def send_bulk(self, message: Message, bulk: Sequence[memoryview]) -> bool:
        """Do as `send` does, with the bytes of all parts after the message, which must not change until all
        `is_written`. The other side knows how many they are. They have no HMAC."""
        return self._send(encode_message(message), bulk)

    @property
    def is_written(self) -> bool:
        """Whether the system has taken all that was to be sent."""
        return not self._parts and not self._bodies

    @property
    def is_receiving(self) -> bool:
        """Whether a message has arrived in part."""
        return bool(self._bulk or self._frames.unread_bytes)

    def _send(self, document: bytes, bulk: Sequence[memoryview]) -> bool:
        with self._lock:
            if self.end is not None or self._closing or self.is_finishing:
                return False
            if self.is_written:
                self.moved_at = time.monotonic()
            self._bodies.append((document, bulk))
            self._unsent_bytes += len(document)
            if self._unsent_bytes > MAX_UNSENT_BYTES:
                self._closing = "it does not read what is written to it"
        self._wake(self)
        return True

    def finish(self) -> None:
        """Send nothing more; close once all is written and the peer has closed its side. What arrives meanwhile is
        passed over."""
        self.is_finishing = True
        self._wake(self)

    def close(self, why: str = "closed here") -> None:
        """Close at once; what is not written yet is lost."""
        with self._lock:
            self._closing = self._closing or why
        self._wake(self)

    def wait_open(self, seconds: float) -> bool:
        """Wait until it is open or has ended, at most so long; whether it is open. Not for the server's thread."""
        self._settled.wait(seconds)
        return self.is_open

    # --- for the server's thread --------------------------------------------------------------------------------

    def attach(self, made: socket.socket) -> None:
        """This is its socket, connected or yet to be connected."""
        made.setblocking(False)
        with contextlib.suppress(OSError):  # not of the network, or not known to the system
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
        self.socket = made

    def begin_again(self, frames: Frames) -> None:
        """A connection that never was open has failed, and another one is to be made."""
        self._frames = frames
        self._parts = []
        self.is_connecting = True

    @property
    def closing(self) -> str:
        """Why it is to be closed; empty if it is not."""
        return self._closing

    @property
    def events(self) -> int:
        """What to wait for."""
        if self.is_connecting:
            return WRITE
        return READ | WRITE if self._parts else READ

    def write(self) -> None:
        """Write as much as the socket takes. Raises OSError; ConnectionRefusedError if nobody listens."""
        if self.socket is None:
            return
        if self.is_connecting:
            if not self._has_connected(self.socket):
                return
            self.is_connecting = False
            self._parts = [memoryview(self._frames.hello())]
        while self._parts or self._take_next():
            try:
                sent = self.socket.sendmsg(self._parts[:_MAX_PARTS])
            except BlockingIOError:
                return
            _drop(self._parts, sent)
            self._gone += sent
            if self._gone >= LIFE_BYTES or not self._parts:
                self._gone, self.moved_at = 0, time.monotonic()
        if self.is_finishing and self.has_opened:
            with contextlib.suppress(OSError):  # the peer has closed it
                self.socket.shutdown(socket.SHUT_WR)

    def read(self) -> Iterator[Message | None]:
        """The messages that have arrived, of those that are known here; None when it opens.

        Raises OSError, PeerError or FrameError; ConnectionError once the peer has closed it.
        """
        if self.socket is None or self.is_connecting:
            return
        try:
            if self._bulk:
                yield from self._read_bulk(self.socket.recvmsg_into(self._bulk[:_MAX_PARTS])[0])
                return
            data = self.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        self._has_received(len(data))
        if self.is_finishing and self.has_opened:
            return
        for body in self._frames.feed(data):
            self._show_life()
            if body is None:
                if self._follow():
                    yield None
            elif (message := parse_message(body)) is not None:
                if isinstance(message, Hello):
                    raise FrameError("a hello in the middle of a connection")
                if type(message) in self.rooms and not self._begin_bulk(message):
                    return
                yield message

    def set_end(self, end: End, why: str) -> None:
        """It has ended, and its socket is closed."""
        with self._lock:
            self.end, self.why = end, why
            self._bodies.clear()
        self._parts = []
        self._bulk = []
        self.socket = None
        self._settled.set()

    # --- inside -------------------------------------------------------------------------------------------------

    def _has_received(self, size: int) -> None:
        if not size:
            raise ConnectionError("the connection was closed")
        self._arrived += size
        if self._arrived >= LIFE_BYTES:
            self._show_life()

    def _show_life(self) -> None:
        self._arrived, self.received_at = 0, time.monotonic()

    def _begin_bulk(self, message: Message) -> bool:
        """Read what follows this message into the room that it has here; whether that is there already."""
        room = self.rooms[type(message)](self, message)
        if room is None:
            raise FrameError(f"{type(message).__name__} with what follows it, which nobody waits for now")
        self._bulk, self._before_bulk = list(room), message
        _drop(self._bulk, sum(map(self._frames.take, room)))
        return not self._bulk

    def _read_bulk(self, size: int) -> Iterator[Message]:
        self._has_received(size)
        _drop(self._bulk, size)
        if not self._bulk and self._before_bulk is not None:
            self._show_life()
            yield self._before_bulk

    def _follow(self) -> bool:
        """Answer the peer's hello, or its proof; whether that opens the channel."""
        if self._frames.is_open:
            self.has_opened = True
            self._settled.set()
        else:
            assert self._frames.peer is not None
            self.name = self._frames.peer.name
            if not self.dials:
                self._parts.append(memoryview(self._frames.hello()))
            self._parts += map(memoryview, filter(None, self._frames.seal(b"")))
        self._wake(self)
        return self.has_opened

    def _has_connected(self, made: socket.socket) -> bool:
        """Whether it has come to be connected. Raises OSError if it cannot be."""
        error = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        try:
            peer = made.getpeername()
        except OSError:
            return False
        if made.getsockname() == peer:
            # Within one machine a port that nobody listens at may be the very port that a dialling socket gets.
            raise ConnectionRefusedError(errno.ECONNREFUSED, "the socket was connected to itself")
        return True

    def _take_next(self) -> bool:
        if not self.has_opened:
            return False
        with self._lock:
            if not self._bodies:
                return False
            body, bulk = self._bodies.popleft()
            self._unsent_bytes -= len(body)
            self._parts = [memoryview(part) for part in self._frames.seal(body) if part]
            self._parts += bulk
        return True


def _drop(parts: list[memoryview], size: int) -> None:
    """Take so many bytes away from the front; no empty part is first after that."""
    whole = 0
    while whole < len(parts) and size >= len(parts[whole]):
        size -= len(parts[whole])
        whole += 1
    del parts[:whole]
    if size:
        parts[0] = parts[0][size:]
