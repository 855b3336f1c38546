"""Peer servers of one job for tests, and what has come to them."""

from __future__ import annotations

import os
import queue
import socket
from collections.abc import Callable
from typing import Any

from heterotrain.groups.peering.channel import Channel
from heterotrain.groups.peering.frames import Frames, greeting
from heterotrain.groups.peering.messages import Message
from heterotrain.groups.peering.server import PeerServer

SECRET = "5ec2e7" * 8
PATIENCE_SECONDS = 60.0
"""So long a test waits for what has to happen."""


class Peer:
    """One worker's server, which notes what comes to it."""

    def __init__(
        self, name: str, *kinds: type[Any], secret: str | None = SECRET, job: str = "job", **more: Any
    ) -> None:
        self.name, self.uid = name, f"uid of {name}"
        self.server = PeerServer(job, name, self.uid, secret=secret, host="127.0.0.1", **more)
        self.opened: queue.Queue[Channel] = queue.Queue()
        self.ended: queue.Queue[Channel] = queue.Queue()
        self.received: queue.Queue[tuple[Channel, Message]] = queue.Queue()
        self.server.on_opened(self.opened.put)
        self.server.on_ended(self.ended.put)
        for kind in kinds:
            self.server.handle(kind, lambda channel, message: self.received.put((channel, message)))

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.server.port}"

    def dial(self, other: Peer, seconds: float = PATIENCE_SECONDS) -> Channel:
        """A channel to another one, which may not be open yet."""
        return self.server.dial(other.address, other.name, other.uid, seconds)

    def reach(self, other: Peer) -> Channel:
        """An open channel to another one."""
        channel = self.dial(other)
        assert channel.wait_open(PATIENCE_SECONDS), channel.why
        return channel

    def next_message(self) -> Message:
        """The next one that comes."""
        return self.received.get(timeout=PATIENCE_SECONDS)[1]

    def end_of(self, channel: Channel) -> Channel:
        """The same channel, once it has ended."""
        while self.ended.get(timeout=PATIENCE_SECONDS) is not channel:
            pass
        return channel

    def settle(self) -> None:
        """Wait until the server's thread has done what it was asked to do before."""
        done: queue.Queue[None] = queue.Queue()
        call: Callable[[], None] = lambda: done.put(None)  # noqa: E731
        self.server.call_soon(call)
        done.get(timeout=PATIENCE_SECONDS)


def descriptors() -> int:
    """How many this process has."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def unproven(peer: Peer) -> socket.socket:
    """A connection with a peer, over which nothing was said yet."""
    return socket.create_connection(("127.0.0.1", peer.server.port), timeout=PATIENCE_SECONDS)


def introduce(made: socket.socket, secret: str | None = SECRET, **other: Any) -> Frames:
    """Do by hand what a peer does until its channel is open."""
    frames = Frames(greeting("job", "x", other.get("uid", "uid of x")), secret, dials=True)
    made.sendall(frames.hello())
    while not frames.is_open:
        list(frames.feed(made.recv(4096)))
    made.sendall(b"".join(frames.seal(b"")))
    return frames
