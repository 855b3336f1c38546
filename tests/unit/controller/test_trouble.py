"""A replica that does not lead looks at nothing, and trouble with one job is none of another's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from heterotrain_operator.clusters.kube.api_server.gateway import GatewayError
from heterotrain_operator.clusters.kube.api_server.lease import NotLeadingError
from heterotrain_operator.controller import supervisor as controller
from heterotrain_operator.controller.supervisor import GREATEST_FAILURE_SECONDS, IDLE_SECONDS, MAX_THREADS
from unit.controller.loops import World, settled, until

pytestmark = pytest.mark.asyncio
A, B = ("team-a", "a"), ("team-a", "b")


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each loop would wait; none does, but for news."""
    found: list[float] = []

    async def first(news: Coroutine[Any, Any, Any], seconds: float) -> None:
        found.append(seconds)
        if seconds >= 1000.0:
            await news
        news.close()
        await asyncio.sleep(0)

    monkeypatch.setattr(controller, "_first", first)
    return found


async def test_replica_that_does_not_lead_looks_at_nothing(world: World) -> None:
    world.leading = False
    world.saw(A)
    world.controller.woke(A)
    await settled()
    assert world.made[0].looks == []


async def test_replica_that_leads_from_now_on_looks_at_once_and_forgets_what_it_knew(world: World) -> None:
    world.saw(A)
    await until(lambda: world.made[0].looks)
    world.leading = False
    world.controller.woke(A)
    await settled()
    world.leading = True
    world.controller.lead()
    await until(lambda: len(world.made[0].looks) == 2)
    assert world.made[0].forgotten == 1


async def test_nothing_is_forgotten_while_a_look_is_under_way(world: World) -> None:
    busy = threading.Event()
    world.scripts = [[busy]]
    world.saw(A)
    await until(lambda: world.made[0].looks)
    world.controller.lead()
    await settled()
    assert world.made[0].forgotten == 0
    busy.set()
    await until(lambda: world.made[0].forgotten == 1)


async def test_replica_that_loses_the_lease_waits_to_be_woken(world: World, delays: list[float]) -> None:
    world.scripts = [[NotLeadingError("another's")]]
    world.saw(A)
    await until(lambda: len(delays) == 2)
    assert delays == [IDLE_SECONDS, 1000.0]
    assert world.failures == []


# --- trouble ----------------------------------------------------------------------------------------------------


async def test_failures_of_the_api_server_are_repeated_later_each_time(world: World, delays: list[float]) -> None:
    world.scripts = [[GatewayError("away")] * 7 + [2.0, GatewayError("away")]]
    world.saw(A)
    await until(lambda: len(delays) == 10)
    assert delays == [2.0, 4.0, 8.0, 16.0, *[GREATEST_FAILURE_SECONDS] * 3, 2.0, 2.0, 1000.0]
    assert world.failures == ["api_server"] * 8


async def test_loop_that_fails_for_a_defect_starts_again_and_others_go_on(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(controller, "UNEXPECTED_SECONDS", 0.01)
    world.scripts = [[ZeroDivisionError("ours")], []]
    world.saw(A)
    world.saw(B)
    await until(lambda: len(world.made[0].looks) == 2)
    world.controller.woke(B)
    await until(lambda: len(world.made[1].looks) == 2)
    assert world.failures == ["unexpected"]
    assert "job team-a/a: its loop failed" in caplog.text
    assert not world.made[0].closed


async def test_job_that_is_deleted_while_its_loop_lies_failed_is_not_begun_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "UNEXPECTED_SECONDS", 0.5)
    world.scripts = [[ZeroDivisionError("ours")]]
    world.saw(A)
    await until(lambda: world.failures)
    world.saw(A, deleted=True)
    assert world.made[0].closed
    await asyncio.sleep(0.6)  # it would have been begun again by now
    assert len(world.made[0].looks) == 1


async def test_one_namespace_cannot_hold_all_threads(world: World) -> None:
    busy = threading.Event()
    theirs = [("team-b", str(number)) for number in range(2 * MAX_THREADS)]
    world.scripts = [[busy] for _ in theirs] + [[threading.Event()]]
    world.scripts[-1][0].set()
    try:
        for key in (*theirs, A):
            world.saw(key)
        await until(lambda: all(rounds.looks for rounds in world.made))
        await until(lambda: world.made[-1].ended)
        assert not any(rounds.ended for rounds in world.made[:-1])
    finally:
        busy.set()
    await until(lambda: all(rounds.ended for rounds in world.made))
