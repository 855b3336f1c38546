"""Ports for workers, outside the range from which the kernel serves outgoing connections.

A worker listens seconds after its port is chosen; a port from the kernel's own range could be taken by any
connection until then.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

HOST = "127.0.0.1"
LOWEST = 10_000
EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
USUAL_EPHEMERAL_START = 32_768
ATTEMPTS = 1_000


def _ephemeral_start() -> int:
    try:
        start = int(EPHEMERAL_RANGE.read_text(encoding="ascii").split()[0])
    except OSError:
        return USUAL_EPHEMERAL_START
    return start if start > LOWEST + ATTEMPTS else USUAL_EPHEMERAL_START


def is_free(port: int) -> bool:
    """Whether nothing listens there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


class Ports:
    """Hands out each port once. Start at random, so that several runners on a machine rarely try the same."""

    def __init__(self) -> None:
        self._given: set[int] = set()

    def take(self) -> int:
        """A free port. Raises OSError if none was found."""
        top = _ephemeral_start()
        for _ in range(ATTEMPTS):
            port = random.randrange(LOWEST, top)
            if port not in self._given and is_free(port):
                self._given.add(port)
                return port
        raise OSError(f"no free port between {LOWEST} and {top} on {HOST}")
