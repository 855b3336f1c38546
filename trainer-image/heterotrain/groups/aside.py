"""A call in a thread of its own, for calls that may never end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

EXPECTED: tuple[type[Exception], ...] = (RuntimeError, OSError, ValueError)
"""What such a call may raise; anything else is a mistake in this library, and is shown by the thread."""


class Aside(threading.Thread):
    """Begins with the call at once; `done` is set when it has ended."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(name="heterotrain-aside", daemon=True)
        self.done = threading.Event()
        self._call = call
        self._returned: Any = None
        self._error: Exception | None = RuntimeError("a call beside the main thread had no end")
        self.start()

    def run(self) -> None:
        """Keep what the call returns or raises."""
        try:
            self._returned = self._call()
            self._error = None
        except EXPECTED as error:
            self._error = error
        finally:
            self.done.set()

    def result(self) -> Any:
        """What the call returned. Raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._returned
