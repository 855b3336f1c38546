"""What processes of tests that run beside each other have together: the first one makes it, the last one removes it."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class Shared:
    """Counts, in a file for each thing, the processes that use it. Each process of xdist has a folder in the run's own;
    without xdist (`worker` is None) there is one process, and the folder is its own.
    """

    def __init__(self, folder: Path, worker: str | None) -> None:
        self._folder = folder if worker is None else folder.parent

    @contextmanager
    def __call__(self, name: str, make: Callable[[], None], remove: Callable[[], None]) -> Iterator[None]:
        """Have a thing. Whoever comes while it is being made or removed waits."""
        self._count(name, 1, make)
        try:
            yield
        finally:
            self._count(name, -1, remove)

    def _count(self, name: str, change: int, act: Callable[[], None]) -> None:
        """Change the number of users, and act where there were none, or are none now."""
        with (self._folder / f"{name}.users").open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            before = int(file.read() or 0)
            if 0 in (before, before + change):
                act()
            file.truncate(0)
            file.write(str(before + change))
