"""Shares of what all users of the operator use, such as its threads: each owner has only a part of it at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Shares:
    """Lets each owner do a number of things at once; a further one waits until one of the same owner has ended.

    It belongs to one event loop.
    """

    def __init__(self, per_owner: int) -> None:
        self._per_owner = per_owner
        self._turns: dict[str, tuple[asyncio.Semaphore, int]] = {}

    @asynccontextmanager
    async def of(self, owner: str) -> AsyncIterator[None]:
        """One of the owner's turns, for as long as the block lasts."""
        turns, users = self._turns.get(owner) or (asyncio.Semaphore(self._per_owner), 0)
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
