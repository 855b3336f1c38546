"""Shares of what all users of the operator have in common, such as its threads: nobody has more than a part at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Shares:
    """Lets each owner do so many things at once; one more waits for one of the same owner. For one event loop."""

    def __init__(self, each: int) -> None:
        self._each = each
        self._turns: dict[str, tuple[asyncio.Semaphore, int]] = {}

    @asynccontextmanager
    async def of(self, owner: str) -> AsyncIterator[None]:
        """One of the owner's turns, for as long as the block lasts."""
        turns, users = self._turns.get(owner) or (asyncio.Semaphore(self._each), 0)
        self._turns[owner] = (turns, users + 1)
        try:
            async with turns:
                yield
        finally:
            users = self._turns[owner][1] - 1
            if users:
                self._turns[owner] = (turns, users)
            else:
                del self._turns[owner]
