"""The sockets of one generation's groups, and how to shut them all at once.

`ProcessGroupGloo.abort()` does not unblock a stuck collective; shutting its sockets does.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Collection, Iterator
from pathlib import Path


def _open_sockets() -> dict[int, int]:
    """Inode -> file descriptor of the sockets that this process holds."""
    sockets = {}
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            target = str(descriptor.readlink())
            if target.startswith("socket:["):
                sockets[int(target[8:-1])] = int(descriptor.name)
    return sockets


class SocketCutter:
    """Remembers which sockets appeared inside its `watch()`, and can shut them down while they are in use.

    `ProcessGroupGloo.abort()` does not unblock a stuck collective; this does. It works on duplicates, so that a file
    descriptor that was closed and used again is never touched.
    """

    def __init__(self, spare_port: int | None = None, hosts: Collection[str] = ()) -> None:
        """Sockets with the local port `spare_port` (that of our metrics server) are left alone; so are, if `hosts` are
        given, those that lead to other hosts: another thread's connections."""
        self._spare_port = spare_port
        self._hosts = frozenset(hosts)
        self._sockets: list[socket.socket] = []

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Sockets that appear inside this block belong to the generation, also if it is left by an exception."""
        before = _open_sockets()
        try:
            yield
        finally:
            for inode, descriptor in _open_sockets().items():
                if inode not in before:
                    with contextlib.suppress(OSError):
                        self._adopt(socket.socket(fileno=os.dup(descriptor)))

    def _adopt(self, duplicate: socket.socket) -> None:
        name = duplicate.getsockname()
        # one that is not of the network (a data loader's) is no group's
        ours = not isinstance(name, tuple) or name[1] == self._spare_port
        # gloo ends the process if accept() on a listening socket of its fails
        listening = duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if ours or listening or not self._leads_to_a_member(duplicate):
            duplicate.close()
        else:
            self._sockets.append(duplicate)

    def _leads_to_a_member(self, duplicate: socket.socket) -> bool:
        if not self._hosts:
            return True
        try:
            host = str(duplicate.getpeername()[0])
        except OSError:
            return True  # not connected yet, or not any more
        return host.removeprefix("::ffff:") in self._hosts

    def cut(self) -> None:
        """Shut all of them down; pending operations on them fail at once on both ends. May be called twice."""
        for each in self._sockets:
            with contextlib.suppress(OSError):  # not connected any more
                each.shutdown(socket.SHUT_RDWR)
        self.release()

    def release(self) -> None:
        """Forget them without shutting them."""
        for each in self._sockets:
            each.close()
        self._sockets = []
