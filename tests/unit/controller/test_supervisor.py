"""One loop a job: what wakes it, what it is shown, what ends it, and trouble with one that is none of another's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from heterotrain_operator.clusters.kube.api_server.gateway import GatewayError, JobGoneError
from heterotrain_operator.clusters.kube.api_server.lease import NotLeadingError
from heterotrain_operator.clusters.kube.observe.pod_facts import PodFacts
from heterotrain_operator.controller import supervisor as controller
from heterotrain_operator.controller.supervisor import GREATEST_FAILURE_SECONDS, IDLE_SECONDS, MANY_EACH, MAX_THREADS
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
    world.saw(A, generation=2, resourceVersion="2")  # its own writes
    world.controller.woke(B)
    world.saw(B, deleted=True)
    await settled()
    assert [len(each.looks) for each in world.made] == [3]


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


async def test_look_has_the_pods_and_the_plan_as_the_watch_shows_them_and_once_a_pod_that_is_gone(world: World) -> None:
    pod = PodFacts("a-x-0", "u", "team-a", "a", "x", 0, owner_uid="1")
    world.pods[A] = [pod, replace(pod, name="a-x-1", owner_uid="earlier job")]
    world.versions[A] = {"7"}
    world.saw(A)
    await until(lambda: world.made[0].looks == [("1", ["a-x-0"], {"7"})])
    world.controller.woke(A, replace(pod, name="a-x-2", gone=True))
    await until(lambda: len(world.made[0].looks) == 2)
    world.controller.woke(A)
    await until(lambda: len(world.made[0].looks) == 3)
    assert [names for _, names, _ in world.made[0].looks] == [["a-x-0"], ["a-x-0", "a-x-2"], ["a-x-0"]]


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


async def test_job_that_was_deleted_unnoticed_ends_its_loop(world: World) -> None:
    world.scripts = [[JobGoneError("gone")]]
    world.saw(A)
    await until(lambda: world.made[0].closed)
    assert (world.failures, world.over) == ([], [(A, "1")])


async def test_metrics_that_do_not_come_are_not_waited_for_at_the_end(world: World) -> None:
    never = asyncio.Event()
    world.scripts = [[never]]
    world.saw(A)
    await until(lambda: world.made[0].looks)
    async with asyncio.timeout(5):
        await world.controller.close()
    assert world.made[0].closed


async def test_job_of_the_same_name_begins_when_all_earlier_ones_have_ended(world: World) -> None:
    busy = threading.Event()
    world.scripts = [[busy], [], []]
    world.saw(A, "1")
    await until(lambda: world.made[0].looks)
    world.saw(A, "2")
    world.saw(A, "3")
    await settled()
    assert (world.made[0].closed, world.made[2].looks) == (False, [])
    busy.set()
    await until(lambda: world.made[2].looks)
    assert [each.closed for each in world.made[::2]] == [True, False]
    assert world.over == [(A, "1"), (A, "2")]
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


async def test_many_requests_of_any_jobs_leave_threads_for_the_rounds_of_others(world: World) -> None:
    busy, at_once = threading.Event(), threading.Event()
    at_once.set()
    theirs = [(f"team-{number}", "many") for number in range(2 * MAX_THREADS)]
    world.scripts = [[busy] for _ in theirs] + [[at_once]]
    try:
        for key in (*theirs, A):
            world.saw(key)
        await until(lambda: world.made[-1].ended)
        assert not any(rounds.ended for rounds in world.made[:-1])
    finally:
        busy.set()
    await until(lambda: all(rounds.ended for rounds in world.made))


async def test_namespace_rests_after_what_was_costly_and_others_go_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, theirs = threading.Event(), threading.Event()
    ready.set()
    theirs.set()

    def timed(spent: list[float], work: Any, *arguments: Any) -> Any:
        spent.append(1000.0 if work == theirs.wait else 0.001)
        return work(*arguments)

    monkeypatch.setattr(controller, "_timed", timed)
    world.scripts = [[theirs, theirs], [ready, ready]]
    for key in (("team-b", "b"), A):
        world.saw(key)
    await until(lambda: all(rounds.ended == 1 for rounds in world.made))
    for key in (("team-b", "b"), A):
        world.controller.woke(key)
    await until(lambda: world.made[1].ended == 2 and len(world.made[0].looks) == 2)
    await settled()
    assert world.made[0].ended == 1
    assert set(world.controller._resting) == {"team-b"}, "who does not rest any more is not remembered"


async def test_one_namespace_of_many_jobs_does_not_keep_the_many_requests_of_another_waiting(world: World) -> None:
    busy, at_once = threading.Event(), threading.Event()
    at_once.set()
    theirs = [("team-b", f"many-{number}") for number in range(2 * MAX_THREADS)]
    world.scripts = [[busy] for _ in theirs] + [[at_once]]
    try:
        for key in (*theirs, ("team-a", "many")):
            world.saw(key)
        await until(lambda: world.made[-1].ended)
        assert not any(rounds.ended for rounds in world.made[:-1])
    finally:
        busy.set()
    await until(lambda: all(rounds.ended for rounds in world.made))


async def test_many_requests_of_namespaces_that_rest_do_not_keep_those_of_another_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = threading.Event()
    ready.set()
    ours = ("team-a", "many")
    theirs = [(f"team-{number % 4}", f"many-{number}") for number in range(MAX_THREADS)]

    def timed(spent: list[float], work: Any, *arguments: Any) -> Any:
        spent.append(1000.0)
        return work(*arguments)

    monkeypatch.setattr(controller, "_timed", timed)
    world.scripts = [[ready, ready] for _ in theirs] + [[ready]]
    for key in theirs:
        world.saw(key)
    await until(lambda: sum(rounds.ended for rounds in world.made) >= 4 * MANY_EACH)
    for key in theirs:
        world.controller.woke(key)
    await until(lambda: all(rounds.looks for rounds in world.made))
    await settled()
    world.saw(ours)
    await until(lambda: world.made[-1].ended)


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
