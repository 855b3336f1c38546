"""A controller for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from heterotrain_operator.controller import supervisor as controller
from unit.controller.loops import World


@pytest_asyncio.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(controller, "SETTLING_SECONDS", 0.001)
    made = World()
    yield made
    await made.controller.close()
