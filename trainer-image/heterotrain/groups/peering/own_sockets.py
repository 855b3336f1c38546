"""The sockets by which this process meets its peers: neither a forked child nor a cut of the groups may touch them.

A data loader's child inherits every socket. If it kept the listening one, the port of a killed worker would go on
accepting connections that nobody answers, and the worker would not be known to be dead. And sockets that appear while
groups are made are taken for the groups' own (`sockets.py`), unless they are listed here.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any, Protocol

_BACKLOG = 1024
_MAX_PORT = 65535


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= _MAX_PORT):
        raise ValueError(f"expected host:port, found {address}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; of all addresses of this machine if `host` is empty. Raises OSError, naming the port."""
    try:
        if not host and socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise OSError(error.errno, f"port {port} for the other workers cannot be had: {error.strerror}") from error


def resolve(host: str, port: int, *, numeric: bool = False) -> list[tuple[socket.AddressFamily, Any]]:
    """Families and addresses; may take long unless the host is `numeric`. Raises OSError, also if it is not."""
    flags = socket.AI_NUMERICHOST if numeric else 0
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError as error:
        raise OSError(f"{host!r} is no name of a host") from error
    return [(family, address) for family, _, _, _, address in found]


class _Closable(Protocol):
    def close(self) -> None: ...


_lock = threading.RLock()
_held: dict[int, tuple[_Closable, int | None]] = {}  # by identity, with the inode of a socket


@contextlib.contextmanager
def unchanged() -> Iterator[frozenset[int]]:
    """The inodes of our sockets; inside this block none is made or closed. Whoever makes one does so inside it, and
    calls `hold` there."""
    with _lock:
        yield frozenset(inode for _, inode in _held.values() if inode is not None)


def hold(thing: _Closable) -> None:
    """A socket, or something else with a descriptor, is ours from now on, until it is closed by `close`."""
    inode = os.fstat(thing.fileno()).st_ino if isinstance(thing, socket.socket) else None
    with _lock:
        _held[id(thing)] = (thing, inode)


def close(thing: _Closable) -> None:
    """Close it, if it was not closed yet."""
    with _lock:
        _held.pop(id(thing), None)
        thing.close()


def _in_child() -> None:
    """Close the child's copies. That tells the peers nothing, for the parent's are open still."""
    for thing, _ in _held.values():
        with contextlib.suppress(OSError):
            thing.close()
    _held.clear()
    _lock.release()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_in_child)
