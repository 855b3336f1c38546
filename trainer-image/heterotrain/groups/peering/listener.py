"""The port at which a worker receives its peers."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable

from heterotrain.groups.peering import own_sockets
from heterotrain.groups.peering.addresses import listen
from heterotrain.groups.peering.event_loop import READ, EventLoop

log = logging.getLogger(__name__)

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
