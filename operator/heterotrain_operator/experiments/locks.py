"""Which run a folder belongs to while that run lives, so that no other one deletes, moves or overwrites what is in it.

The lock goes with the process that holds it, however that ends: a run that is killed leaves none behind. The file
stays, since whoever removed it could remove one that another run has locked meanwhile.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

LOCK = ".heterotrain-lock"
"""The file in a checkpoint folder that a run locks."""

_LONGEST = 256

logger = logging.getLogger(__name__)


class HeldError(Exception):
    """Another run holds the lock; the text says which."""


def holder_of(path: Path) -> str:
    """The run that holds the lock on a file, in words; empty if none does."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _described(descriptor)
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return ""


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Inside, this process holds the lock on a file, which is made with its folder if need be.

    Raises HeldError if another one does, OSError if the file cannot be made. On a file system without locks a warning
    says so.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Processes that are started meanwhile do not inherit it, or they could outlive this one with the lock.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HeldError(_described(descriptor)) from None
        except OSError as error:
            logger.warning("cannot keep other runs out of %s: no lock: %s", path.parent, error.strerror)
        since = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
        words = f"process {os.getpid()} on {socket.gethostname()}, since {since}"
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, words.encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _described(descriptor: int) -> str:
    written = os.pread(descriptor, _LONGEST, 0).decode(errors="replace")
    words = "".join(filter(str.isprintable, written))
    return f"another run, which still goes on ({words})" if words else "another run, which still goes on"
