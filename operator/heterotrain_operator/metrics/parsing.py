"""Parse answers of servers that are not trusted: owners take turns, and an answer that costs too much is given up.

Bounds of size alone do not suffice: an answer within them may be made to be costly, and CPU time is what all jobs of
the operator share, since Python computes in one thread at a time.

A small answer is parsed at once, which is cheaper than handing it to a thread. Larger ones are parsed part by part in
one thread beside the event loop: after a slice of CPU time the next owner has its turn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from heterotrain_operator.metrics.shares import Shares

T = TypeVar("T")

QUICK_BYTES = 1 << 14
"""Of an answer that is parsed at once: three times the size of a worker's."""

SLICE_SECONDS = 0.005
"""CPU time after which the next owner has its turn; Python's threads take turns as often."""


class CostlyError(ValueError):
    """An answer takes more CPU time than an honest one could."""


class Parsing:
    """Parses for one event loop, in which it must be closed."""

    def __init__(self, cpu_seconds: Callable[[], float] = time.thread_time) -> None:
        """`cpu_seconds` is the CPU time that the calling thread has used."""
        self._cpu_seconds = cpu_seconds
        self._turns = Shares(1)
        self._thread: ThreadPoolExecutor | None = None

    async def values(self, parts: Iterator[T | None], *, owner: str, size: int, seconds: float) -> list[T]:
        """The parts of an answer of `size` bytes, each of which is parsed when it is asked for; None: nothing to keep.

        Raises CostlyError if a large answer takes more than `seconds` of CPU time, and whatever parsing raises.
        """
        if size <= QUICK_BYTES:
            return [part for part in parts if part is not None]
        found: list[T] = []
        left = seconds
        async with self._turns.of(owner):
            while left > 0:
                spent, ended = await asyncio.get_running_loop().run_in_executor(
                    self._thread or self._begun(), self._slice, parts, found
                )
                if ended:
                    return found
                left -= spent
        raise CostlyError(f"the answer takes more than {seconds:g} s of CPU time")

    def close(self) -> None:
        """Parse nothing more; the slice under way ends by itself."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._thread = None

    # --- inside ---------------------------------------------------------------------------------------------

    def _begun(self) -> ThreadPoolExecutor:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="parsing")
        return self._thread

    def _slice(self, parts: Iterator[T | None], found: list[T]) -> tuple[float, bool]:
        """Add further parts to those that are found. Returns the CPU time it took, and whether these were the last."""
        began, spent = self._cpu_seconds(), 0.0
        for part in parts:
            if part is not None:
                found.append(part)
            spent = self._cpu_seconds() - began
            if spent >= SLICE_SECONDS:
                return spent, False
        return spent, True
