"""The sockets of one generation's groups, and how to shut them all at once.

`ProcessGroupGloo.abort()` does not unblock a stuck collective; shutting its sockets does. Groups may be made while the
script trains, whose threads open connections of their own at the same time; those are left alone.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Collection, Iterator
from pathlib import Path

from heterotrain.groups.peering import own_sockets


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
    """Remembers which sockets of groups appeared inside its `watch()`, and can shut them down while they are in use.

    It works on duplicates, so that a file descriptor that was closed and used again is never touched.
    """

    def __init__(self, spare_port: int | None = None, hosts: Collection[str] = ()) -> None:
        """Sockets with the local port `spare_port` (that of our metrics server) are left alone; so are, if `hosts` are
        given, those that lead to other hosts: another thread's connections. So are always those of `own_sockets`."""
        self._spare_port = spare_port
        self._hosts = frozenset(hosts)
        self._found: list[socket.socket] = []  # may be the groups'
        self._sockets: list[socket.socket] = []

    @contextlib.contextmanager
    def watch(self) -> Iterator[list[int]]:
        """Sockets that appear inside this block may be the groups'; `claim` tells which are. Afterwards the list holds
        the ports of those that listen; what others have connected to them is claimed if the block is left by an
        exception."""
        before, ports = _open_sockets(), list[int]()
        ended = False
        try:
            yield ports
            ended = True
        finally:
            with own_sockets.unchanged() as spare:
                for inode, descriptor in _open_sockets().items():
                    if inode not in before and inode not in spare:
                        with contextlib.suppress(OSError):
                            self._find(socket.socket(fileno=os.dup(descriptor)), ports)
            if not ended:
                self.claim(ports)

    def _find(self, duplicate: socket.socket, ports: list[int]) -> None:
        name = duplicate.getsockname()
        # one that is not of the network (a data loader's) is no group's
        foreign = not isinstance(name, tuple) or name[1] == self._spare_port
        # gloo ends the process if accept() on a listening socket of its fails
        listening = duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if listening and not foreign:
            ports.append(name[1])
        if foreign or listening or not self._leads_to_a_member(duplicate):
            duplicate.close()
        else:
            self._found.append(duplicate)

    def claim(self, ports: Collection[int]) -> None:
        """Of the sockets found those are the groups' that lead from or to these ports, at which the members' groups
        listen; the others were opened by other threads meanwhile."""
        found, self._found = self._found, []
        for each in found:
            try:
                ends = {each.getsockname()[1], each.getpeername()[1]}
            except OSError:
                ends = set(ports)  # not connected any more: shutting it does nothing
            if ends.isdisjoint(ports):
                each.close()
            else:
                self._sockets.append(each)

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
        for each in [*self._sockets, *self._found]:
            each.close()
        self._sockets, self._found = [], []
