"""Peers that serve until a test has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from unit.peering.meeting import Peer

Start = Callable[..., Peer]


@pytest.fixture
def start() -> Iterator[Start]:
    """Make a peer that serves until the end of the test."""
    peers = []

    def made(*arguments: Any, **more: Any) -> Peer:
        peers.append(Peer(*arguments, **more))
        peers[-1].server.start()
        return peers[-1]

    yield made
    for each in peers:
        each.server.close()
