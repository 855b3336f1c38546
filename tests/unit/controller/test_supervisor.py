"""One loop a job: what wakes it, what it is shown, and what ends it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from heterotrain_operator.clusters.kube.api_server.gateway import JobGoneError
from heterotrain_operator.clusters.kube.observe.pod_facts import PodFacts
from heterotrain_operator.controller import supervisor as controller
from unit.controller.loops import World, settled, until

pytestmark = pytest.mark.asyncio
A, B = ("team-a", "a"), ("team-a", "b")


# --- looking ----------------------------------------------------------------------------------------------------


async def test_job_is_looked_at_when_it_comes_and_when_something_changes(world: World) -> None:
    world.saw(A)
    await until(lambda: len(world.made[0].looks) == 1)
    world.controller.woke(A)
    await until(lambda: len(world.made[0].looks) == 2)
    world.saw(A, generation=2)
    await until(lambda: len(world.made[0].looks) == 3)
    world.saw(A, generation=2, labels={"a": "b"})
    await until(lambda: len(world.made[0].looks) == 4)
    assert len(world.made) == 1


async def test_what_the_operator_writes_itself_is_no_news(world: World) -> None:
    world.saw(A, resourceVersion="1")
    await until(lambda: world.made[0].looks)
    world.saw(A, resourceVersion="2", managedFields=[{}])
    await settled()
    assert len(world.made[0].looks) == 1


async def test_many_news_at_once_are_one_look(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "SETTLING_SECONDS", 0.2)
    world.saw(A)
    await until(lambda: world.made[0].looks)
    for _ in range(20):
        world.controller.woke(A)
        await asyncio.sleep(0.001)
    await until(lambda: len(world.made[0].looks) == 2)
    await settled()
    assert len(world.made[0].looks) == 2


async def test_news_of_a_large_job_wait_for_more_of_them_longer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "SETTLING_SECONDS_EACH", 100.0)
    world.pods[A] = [PodFacts("a-x-0", "u", "team-a", "a", "x", 0, owner_uid="1")]
    for key in (A, B):
        world.saw(key)
    await until(lambda: all(rounds.looks for rounds in world.made))
    for key in (A, B):
        world.controller.woke(key)
    await until(lambda: len(world.made[1].looks) == 2)
    assert len(world.made[0].looks) == 1


async def test_look_has_the_pods_and_the_plan_as_the_watch_shows_them(world: World) -> None:
    world.pods[A] = [
        PodFacts("a-x-0", "u", "team-a", "a", "x", 0, owner_uid="1"),
        PodFacts("a-x-1", "v", "team-a", "a", "x", 1, owner_uid="earlier job"),
    ]
    world.versions[A] = {"7"}
    world.saw(A)
    await until(lambda: world.made[0].looks == [("1", ["a-x-0"], {"7"})])


async def test_pod_that_is_gone_is_shown_once_to_the_look_that_follows(world: World) -> None:
    gone = PodFacts("a-x-0", "u", "team-a", "a", "x", 0, owner_uid="1", gone=True)
    world.saw(A)
    await until(lambda: len(world.made[0].looks) == 1)
    world.controller.woke(A, gone)
    await until(lambda: len(world.made[0].looks) == 2)
    world.controller.woke(A)
    await until(lambda: [names for _, names, _ in world.made[0].looks] == [[], ["a-x-0"], []])


async def test_news_during_a_look_is_not_missed(world: World) -> None:
    busy = threading.Event()
    world.scripts = [[busy]]
    world.saw(A)
    await until(lambda: world.made[0].looks)
    world.controller.woke(A)
    await settled()
    assert len(world.made[0].looks) == 1
    busy.set()
    await until(lambda: len(world.made[0].looks) == 2)


async def test_news_of_a_job_that_is_not_known_is_none(world: World) -> None:
    world.controller.woke(A)
    world.saw(A, deleted=True)
    assert world.made == []


# --- ending -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [{"deleted": True}, {"deletionTimestamp": "2026-01-31T12:00:00Z"}])
async def test_job_that_goes_ends_its_loop(world: World, end: Any) -> None:
    world.saw(A)
    await until(lambda: world.made[0].looks)
    world.saw(A, **end)
    await until(lambda: world.made[0].closed)
    world.controller.woke(A)
    await settled()
    assert len(world.made[0].looks) == 1


async def test_loop_is_closed_after_the_look_under_way(world: World) -> None:
    busy = threading.Event()
    world.scripts = [[busy]]
    world.saw(A)
    await until(lambda: world.made[0].looks)
    world.saw(A, deleted=True)
    await settled()
    assert not world.made[0].closed
    busy.set()
    await until(lambda: world.made[0].closed)


async def test_metrics_that_do_not_come_are_not_waited_for_at_the_end(world: World) -> None:
    never = asyncio.Event()
    world.scripts = [[never]]
    world.saw(A)
    await until(lambda: world.made[0].looks)
    async with asyncio.timeout(5):
        await world.controller.close()
    assert world.made[0].closed


async def test_job_of_the_same_name_begins_when_the_earlier_one_has_ended(world: World) -> None:
    busy = threading.Event()
    world.scripts = [[busy], []]
    world.saw(A, "1")
    await until(lambda: world.made[0].looks)
    world.saw(A, "2")
    await settled()
    assert world.made[1].looks == []
    busy.set()
    await until(lambda: world.made[1].looks)
    assert world.made[0].closed
    assert not world.made[1].closed


async def test_third_job_of_a_name_waits_for_the_first_too(world: World) -> None:
    busy = threading.Event()
    world.scripts = [[busy], [], []]
    world.saw(A, "1")
    await until(lambda: world.made[0].looks)
    world.saw(A, "2")
    world.saw(A, "3")
    await settled()
    assert world.made[2].looks == []
    busy.set()
    await until(lambda: world.made[2].looks)
    assert world.made[0].closed
    assert world.made[1].looks == []


@pytest.mark.parametrize("end", [{"deleted": True}, {"deletionTimestamp": "2026-01-31T12:00:00Z"}])
async def test_news_of_an_earlier_job_that_come_late_do_not_end_the_one_of_its_name(world: World, end: Any) -> None:
    """Events of two objects may be handled in any order, even if they have the same name."""
    world.saw(A, "1")
    await until(lambda: world.made[0].looks)
    world.saw(A, "2")
    world.saw(A, "1", **end)
    await until(lambda: len(world.made) == 2 and world.made[1].looks)
    world.controller.woke(A)
    await until(lambda: len(world.made[1].looks) == 2)
    assert not world.made[1].closed


async def test_job_that_was_deleted_unnoticed_ends_its_loop(world: World) -> None:
    world.scripts = [[JobGoneError("gone")]]
    world.saw(A)
    await until(lambda: world.made[0].closed)
    assert world.failures == []


async def test_closing_waits_for_looks_and_begins_none(world: World) -> None:
    busy = threading.Event()
    world.scripts = [[busy]]
    world.saw(A)
    await until(lambda: world.made[0].looks)
    closing = asyncio.create_task(world.controller.close())
    await settled()
    assert not closing.done()
    world.saw(B)
    world.controller.woke(A)
    busy.set()
    await closing
    assert [rounds.closed for rounds in world.made] == [True]
