"""The thread by which a worker meets its peers: it listens at the worker's address, and serves every channel.

It runs from the worker's start to its end, so that a worker's address refuses connections only once the worker is dead.
Handlers of messages run in this thread: they must not wait for anything.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from heterotrain.groups.peering import own_sockets
from heterotrain.groups.peering.channel import Channel, End, Room
from heterotrain.groups.peering.event_loop import READ, WRITE, EventLoop, safely
from heterotrain.groups.peering.frames import FrameError, Frames, greeting
from heterotrain.groups.peering.messages import Message
from heterotrain.groups.peering.own_sockets import listen, resolve, split_address
from heterotrain.peers import PeerError

log = logging.getLogger(__name__)

CONNECT_SECONDS = 1.0
"""Within which a peer that is dialled has to answer."""

_OPENING_SECONDS = 5.0  # within which whoever has connected has to prove who it is
_FINISH_SECONDS = 1.0  # for what is not written yet when a channel is finished
_DIAL_AGAIN_SECONDS = 0.01  # after a connection was closed before it was open; doubled with each try
_MAX_OPENING = 256  # connections at a time whose peers have not proven who they are; the oldest gives way
_NO_WAY = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT)

_M = TypeVar("_M", bound=Message)


class PeerServer:
    """One worker's side of all connections between the job's workers."""

    def __init__(
        self,
        job: str,
        name: str,
        uid: str,
        *,
        secret: str | None,
        host: str = "",
        port: int = 0,
        max_peers: int = 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Bind the address at once; connections are accepted after `start`.

        `job`, `name` and `uid` say who this worker is; without a `secret` every peer is believed. An empty `host` means
        all addresses of this machine, port 0 any that is free. At most `max_peers` connections of others are open at a
        time. Raises OSError, naming the port, if it cannot be had, and ValueError if the secret is too short to be one.
        """
        self.uid = uid
        self._greet = partial(greeting, job, name, uid)
        Frames(self._greet(), secret, dials=True)  # judges the secret
        self._secret = secret
        self._max_peers = max_peers
        self._clock = clock
        self._handlers: dict[type[Any], list[Callable[[Channel, Any], None]]] = {}
        self._rooms: dict[type[Any], Room] = {}
        self._on_opened: list[Callable[[Channel], None]] = []
        self._on_ended: list[Callable[[Channel], None]] = []
        self._channels: dict[Channel, None] = {}
        self._callers: dict[str, Channel] = {}  # those that have connected, by UID
        self._deadlines: dict[Channel, float] = {}  # by which a channel has to be open, or to have finished
        self._close_by: float | None = None
        self._loop = EventLoop(clock)
        try:
            self._listener = Listener(self._loop, host, port, self._receive)
        except OSError:
            self._loop.close()
            raise
        self.port = self._listener.port
        self._thread = threading.Thread(target=self._run, name="heterotrain-peers", daemon=True)

    # --- for any thread -----------------------------------------------------------------------------------------

    def handle(self, kind: type[_M], call: Callable[[Channel, _M], None]) -> None:
        """Call it with each message of this kind, in the server's thread; there may be several for one kind."""
        self._handlers.setdefault(kind, []).append(call)

    def follow_with_bulk(self, kind: type[_M], room: Callable[[Channel, _M], Sequence[memoryview] | None]) -> None:
        """Bytes follow each message of this kind; `room`, in the server's thread, says where they are to be written and
        so how many they are, and the message's handlers are called once all are there. With None the channel ends."""
        self._rooms[kind] = room

    def on_opened(self, call: Callable[[Channel], None]) -> None:
        """Call it with each channel whose peer has proven who it is, before any of its messages."""
        self._on_opened.append(call)

    def on_ended(self, call: Callable[[Channel], None]) -> None:
        """Call it with each channel that has ended, also one that never was open; `Channel.end` says how."""
        self._on_ended.append(call)

    def start(self) -> None:
        """Begin to serve. Handlers are best given before."""
        self._thread.start()

    def dial(self, address: str, name: str, uid: str, seconds: float = CONNECT_SECONDS) -> Channel:
        """Connect to a worker at `host:port`; returns at once, and `Channel.wait_open` or `on_opened` tells the rest.

        The channel ends as silent unless it is open within `seconds`, and as refused once nobody listens. For as long
        it tries again if the other side closes: a process that is being killed closes its sockets one by one, and the
        one that listens may be the last. Messages may be sent before it is open.
        """
        channel = Channel(self._frames_to(name, uid), name, self._wake, dials=True)
        channel.expected = (name, uid)
        channel.rooms = self._rooms
        deadline = self._clock() + seconds
        if self._close_by is not None:
            channel.set_end(End.HERE, "this worker ends")
            return channel
        try:
            host, port = split_address(address)
            channel.addresses = resolve(host, port, numeric=True)
        except ValueError as error:
            self.call_soon(partial(self._end, channel, End.SILENT, f"the address of {name} is none: {error}"))
        except OSError:  # a name to ask the resolver for, which may take long
            self.call_soon(partial(self._expect, channel, deadline))
            looking_up = (channel, host, port, deadline)
            threading.Thread(target=self._look_up, args=looking_up, name="heterotrain-resolve", daemon=True).start()
        else:
            self.call_soon(partial(self._connect, channel, deadline))
        return channel

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call it in the server's thread; in the order of the calls."""
        self._loop.call_soon(call)

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call it in the server's thread, after so many seconds."""
        self.call_soon(partial(self._loop.call_later, seconds, call))

    def close(self, seconds: float = 0.0) -> None:
        """Listen no more, and end every channel, at most `seconds` later: so long may last words take to be written and
        read. Not for the server's own thread."""
        self.call_soon(partial(self._finish_all, self._clock() + seconds))
        if self._thread.ident is None:
            self._close_all()
        else:
            self._thread.join()

    # --- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._close_by is None or (self._channels and self._clock() < self._close_by):
                self._turn()
        finally:
            self._close_all()

    def _turn(self) -> None:
        until = min([*self._deadlines.values(), math.inf if self._close_by is None else self._close_by])
        for call, events in self._loop.wait(until):
            call(events)
        self._loop.make_calls()
        now = self._clock()
        for channel in [each for each, deadline in self._deadlines.items() if deadline <= now]:
            if channel.is_finishing and channel.has_opened:
                self._end(channel, End.HERE, "finished")
            else:
                self._end(channel, End.SILENT, f"{channel.name} did not answer in time")

    def _receive(self, made: socket.socket, host: str) -> None:
        unproven = [each for each in self._deadlines if not each.dials and not each.has_opened]
        if len(unproven) >= _MAX_OPENING:
            self._end(unproven[0], End.HERE, "too many connect at a time")
        channel = Channel(Frames(self._greet(), self._secret, dials=False), host, self._wake, dials=False)
        channel.rooms = self._rooms
        self._expect(channel, self._clock() + _OPENING_SECONDS)
        channel.attach(made)
        self._loop.watch(made, READ, partial(self._serve, channel))

    def _frames_to(self, name: str, uid: str) -> Frames:
        return Frames(self._greet(), self._secret, dials=True, expected=(name, uid))

    def _expect(self, channel: Channel, deadline: float) -> None:
        self._channels[channel] = None
        self._deadlines[channel] = deadline

    def _look_up(self, channel: Channel, host: str, port: int, deadline: float) -> None:
        """In a thread of its own."""
        try:
            channel.addresses = resolve(host, port)
        except OSError as error:
            why = f"the address of {channel.name}, {host}, is not found: {error}"
            self.call_soon(partial(self._end, channel, End.SILENT, why))
        else:
            self.call_soon(partial(self._connect, channel, deadline))

    def _connect(self, channel: Channel, deadline: float) -> None:
        """Connect to the next of its addresses."""
        if channel.end is not None:
            return
        self._expect(channel, deadline)
        family, address = channel.addresses[channel.tries % len(channel.addresses)]
        channel.tries += 1
        try:
            with own_sockets.unchanged():
                made = socket.socket(family, socket.SOCK_STREAM)
                own_sockets.hold(made)
            channel.attach(made)
            with contextlib.suppress(BlockingIOError):
                made.connect(address)
            self._loop.watch(made, WRITE, partial(self._serve, channel))
        except OSError as error:
            self._fail(channel, error)

    def _wake(self, channel: Channel) -> None:
        self.call_soon(partial(self._serve, channel, WRITE))

    def _serve(self, channel: Channel, events: int) -> None:
        """Write and read what can be. Whatever the peer does ends its own channel alone."""
        try:
            if events & WRITE and channel.end is None and not channel.closing:
                channel.write()
            if events & READ and channel.end is None:
                for message in channel.read():
                    self._dispatch(channel, message)
                    if channel.end is not None or channel.closing:
                        break
        except (FrameError, PeerError) as error:
            self._end(channel, End.DISTRUSTED, f"{channel.name}: {error}")
        except OSError as error:
            self._fail(channel, error)
        if channel.closing:
            self._end(channel, End.HERE, channel.closing)
        if channel.end is None and channel.is_finishing and channel not in self._deadlines:
            self._deadlines[channel] = self._clock() + _FINISH_SECONDS
        if channel.socket is not None:
            self._loop.watch(channel.socket, channel.events, partial(self._serve, channel))

    def _dispatch(self, channel: Channel, message: Message | None) -> None:
        if message is None:
            self._opened(channel)
        else:
            for call in self._handlers.get(type(message), ()):
                safely(partial(call, channel, message))

    def _opened(self, channel: Channel) -> None:
        del self._deadlines[channel]
        if not channel.dials:
            earlier = self._callers.get(channel.peer.uid)
            if earlier is not None:
                self._end(earlier, End.CLOSED, f"{channel.name} has connected again")
            if len(self._callers) >= self._max_peers:
                self._end(channel, End.HERE, f"more than {self._max_peers} peers are connected")
                return
            self._callers[channel.peer.uid] = channel
        for call in self._on_opened:
            safely(partial(call, channel))

    def _fail(self, channel: Channel, error: OSError) -> None:
        deadline = self._deadlines.get(channel, -math.inf)
        if channel.is_connecting and channel.tries % len(channel.addresses):
            self._let_go(channel)
            self._connect(channel, deadline)
            return
        pause = _DIAL_AGAIN_SECONDS * 2**channel.tries
        is_refused = isinstance(error, ConnectionRefusedError)
        is_closed = isinstance(error, ConnectionError) and not is_refused
        if channel.dials and not channel.has_opened and is_closed and self._clock() + pause < deadline:
            self._let_go(channel)
            channel.begin_again(self._frames_to(*channel.expected))
            self._loop.call_later(pause, partial(self._connect, channel, deadline))
        elif channel.is_connecting and is_refused:
            self._end(channel, End.REFUSED, f"{channel.name} refuses connections: its process is gone")
        elif channel.is_finishing:
            self._end(channel, End.HERE, "finished")
        elif error.errno in _NO_WAY:
            self._end(channel, End.SILENT, f"there is no way to {channel.name}: {error}")
        else:
            self._end(channel, End.CLOSED, f"lost {channel.name}: {error}")

    def _end(self, channel: Channel, end: End, why: str) -> None:
        if channel.end is not None:
            return
        log.debug("the channel with %s ended as %s: %s", channel.name, end.value, why)
        self._let_go(channel)
        self._channels.pop(channel, None)
        self._deadlines.pop(channel, None)
        if channel.has_opened and self._callers.get(channel.peer.uid) is channel:
            del self._callers[channel.peer.uid]
        channel.set_end(end, why)
        for call in self._on_ended:
            safely(partial(call, channel))

    def _let_go(self, channel: Channel) -> None:
        if channel.socket is not None:
            self._loop.forget(channel.socket)
            own_sockets.close(channel.socket)
            channel.socket = None

    def _finish_all(self, close_by: float) -> None:
        self._close_by = close_by
        self._listener.close()
        for channel in list(self._channels):
            channel.finish()

    def _close_all(self) -> None:
        for channel in list(self._channels):
            self._end(channel, End.HERE, "this worker ends")
        self._listener.close()
        self._loop.close()


_AGAIN_SECONDS = 0.5  # after there were no more descriptors
_MAX_ACCEPTED = 16  # in one turn, so that connections alone do not keep the thread busy
_NO_MORE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener:
    """A listening socket, and what is done with each connection."""

    def __init__(self, loop: EventLoop, host: str, port: int, receive: Callable[[socket.socket, str], None]) -> None:
        """Listen at once; `receive` is called with each connection and the host that it comes from, in the loop's
        thread. Raises OSError, naming the port, if it cannot be had."""
        self._loop = loop
        self._receive = receive
        with own_sockets.unchanged():
            self._socket = listen(host, port)
            own_sockets.hold(self._socket)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._listen()

    def close(self) -> None:
        """Refuse connections from now on; may be called twice."""
        self._loop.forget(self._socket)
        own_sockets.close(self._socket)

    def _listen(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.watch(self._socket, READ, self._accept)

    def _accept(self, _: int) -> None:
        for _turn in range(_MAX_ACCEPTED):
            try:
                with own_sockets.unchanged():
                    made, address = self._socket.accept()
                    own_sockets.hold(made)
            except OSError as error:
                if error.errno in _NO_MORE:
                    log.warning("no peer can connect for the moment: %s", error)
                    self._loop.forget(self._socket)
                    self._loop.call_later(_AGAIN_SECONDS, self._listen)
                return
            self._receive(made, str(address[0]))
