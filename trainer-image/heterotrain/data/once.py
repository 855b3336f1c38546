"""One process of several prepares something, such as a data set that it downloads, and the others wait for it.

Before the workers have met, all that they may share is a folder. So it is prepared once for each file system: workers
with a volume in common wait for the first of them, workers without one prepare for themselves.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def first_here(marker: Path) -> Iterator[bool]:
    """True for the first process that comes with this marker, whose block runs while all others wait before theirs.

    When the block ends well the marker is written, and whoever comes later, also after a restart, gets False at once.
    If it raises, or its process dies, the next one that waits is the first. Raises OSError if the marker's folder
    cannot be written to.
    """
    marker.parent.mkdir(parents=True, exist_ok=True)
    with marker.with_name(f".{marker.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        first = not marker.exists()
        if not first:
            fcntl.flock(lock, fcntl.LOCK_UN)
            yield False
            return
        yield True
        marker.touch()
