"""Addresses of workers as plans hold them: to listen at one, and to find the sockets' addresses for one."""

from __future__ import annotations

import socket
from typing import Any

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
