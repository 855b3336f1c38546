"""Wait for what a cluster does in its own time: always for something, and never for ever."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

EVERY_SECONDS = 0.5


def wait_for(
    condition: Callable[[], T | None], seconds: float, what: str | Callable[[], str], every: float = EVERY_SECONDS
) -> T:
    """Ask until the answer is neither None nor false nor empty, and return it.

    Raises AssertionError, which says for what (as it is then, if that is a function), after `seconds`.
    """
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited {seconds:g} s for {what if isinstance(what, str) else what()}")
        time.sleep(every)
