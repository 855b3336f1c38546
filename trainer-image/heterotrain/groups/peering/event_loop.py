"""What the thread of the peer server waits for: sockets that are ready, calls from other threads, and time."""

from __future__ import annotations

import contextlib
import heapq
import logging
import math
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from itertools import count

from heterotrain.groups.peering import own_sockets

log = logging.getLogger(__name__)

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class EventLoop:
    """Sockets with a call for each, and other calls to make. The thread that calls `wait` owns the sockets."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._later: list[tuple[float, int, Callable[[], None]]] = []  # a heap, by time and then in their order
        self._order = count()
        self._calls: deque[Callable[[], None]] = deque()
        self._owner: threading.Thread | None = None
        with own_sockets.unchanged():
            self._selector = selectors.DefaultSelector()
            self._woken, self._waker = socket.socketpair()
            for each in (self._selector, self._woken, self._waker):
                own_sockets.hold(each)
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._woken, READ)

    def call_soon(self, call: Callable[[], None]) -> None:
        """Let the owner make a call; such calls are made in their order. Safe from any thread."""
        self._calls.append(call)
        if threading.current_thread() is not self._owner:
            with contextlib.suppress(OSError):  # closed, or full of signs to wake up
                self._waker.send(b"\0")

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        """Make a call after some time. For the owner alone."""
        heapq.heappush(self._later, (self._clock() + seconds, next(self._order), call))

    def watch(self, each: socket.socket, events: int, call: Callable[[int], None]) -> None:
        """Have `wait` tell of these events of a socket, and of no others, by the call that is to be made with them."""
        try:
            if self._selector.get_key(each).events != events:
                self._selector.modify(each, events, call)
        except KeyError:
            self._selector.register(each, events, call)

    def forget(self, each: socket.socket) -> None:
        """Watch it no more; before it is closed."""
        with contextlib.suppress(KeyError, ValueError):  # not watched, or closed already
            self._selector.unregister(each)

    def wait(self, until: float) -> list[tuple[Callable[[int], None], int]]:
        """The calls of the sockets that are ready, and their events, once there are any, or another call is due, or the
        time has come; infinity stands for never."""
        self._owner = threading.current_thread()
        until = min(until, self._later[0][0]) if self._later else until
        seconds = 0.0 if self._calls else max(until - self._clock(), 0.0)
        found = []
        for key, events in self._selector.select(None if seconds == math.inf else seconds):
            if key.fileobj is self._woken:
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(2**16)
            else:
                found.append((key.data, events))
        return found

    def make_calls(self) -> None:
        """Make the calls that are due, but none that these ask for at once."""
        for _ in range(len(self._calls)):
            safely(self._calls.popleft())
        now = self._clock()
        while self._later and self._later[0][0] <= now:
            safely(heapq.heappop(self._later)[2])

    def close(self) -> None:
        """Nothing is watched any more."""
        for each in (self._woken, self._waker, self._selector):
            own_sockets.close(each)


def safely(call: Callable[[], None]) -> None:
    """A fault in one call must not make this worker deaf to its peers; the log tells of it."""
    try:
        call()
    except Exception:
        log.exception("a call in the thread of the peer server failed")
