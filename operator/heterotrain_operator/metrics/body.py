"""Read an HTTP answer bounded in time and size: a socket's own timeout starts anew with every byte that drips in."""

from __future__ import annotations

import time
from typing import Protocol

CHUNK_BYTES = 1 << 16


class Readable(Protocol):
    """What is needed of an answer: at most so many bytes of what has arrived; none at its end."""

    def read1(self, n: int = -1, /) -> bytes: ...


class TooLargeError(ValueError):
    """The answer is larger than what is read of it."""


def read_body(response: Readable, *, deadline: float, max_bytes: int) -> bytes:
    """The whole answer. `deadline` is of `time.monotonic()`.

    Raises TooLargeError beyond `max_bytes`, TimeoutError (an OSError) past the deadline, and what the connection
    raises.
    """
    body = bytearray()
    while chunk := response.read1(CHUNK_BYTES):
        body += chunk
        if len(body) > max_bytes:
            raise TooLargeError(f"more than {max_bytes} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError("the answer did not end in time")
    return bytes(body)
