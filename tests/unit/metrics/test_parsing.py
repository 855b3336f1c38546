"""Answers that are dear to parse: who has to wait for whom, and what is given up."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from heterotrain_operator.metrics import parsing
from heterotrain_operator.metrics.parsing import QUICK_BYTES, CostlyError, Parsing

T = TypeVar("T")

LARGE = QUICK_BYTES + 1


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def noted(what: T, times: int, seen: list[T]) -> Iterator[T]:
    """So many parts, each of which is noted as it is parsed."""
    for _ in range(times):
        seen.append(what)
        yield what


def threads_of(size: int) -> set[int]:
    """Where the parts of an answer are parsed."""

    async def parsed() -> set[int]:
        made = Parsing()
        parts = (threading.get_ident() for _ in range(3))
        found = await made.values(parts, owner="ours", size=size, seconds=1.0)
        made.close()
        assert len(found) == 3
        return set(found)

    return run(parsed())


def test_a_small_answer_is_parsed_at_once() -> None:
    assert threads_of(QUICK_BYTES) == {threading.get_ident()}


def test_a_large_answer_is_parsed_beside_the_event_loop() -> None:
    (thread,) = threads_of(LARGE)
    assert thread != threading.get_ident()


@pytest.mark.parametrize("size", [QUICK_BYTES, LARGE])
def test_parts_that_hold_nothing_are_left_out(size: int) -> None:
    async def parsed() -> list[int]:
        made = Parsing()
        parts: list[int | None] = [None, 1, None, 0]
        found = await made.values(iter(parts), owner="ours", size=size, seconds=1.0)
        made.close()
        return found

    assert run(parsed()) == [1, 0]


def test_owners_take_turns_however_many_answers_one_of_them_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "SLICE_SECONDS", 0.0)
    seen: list[str] = []

    async def parsed() -> None:
        made = Parsing()
        owners = ("theirs", "theirs", "theirs", "ours")
        await asyncio.gather(
            *(made.values(noted(each, 4, seen), owner=each, size=LARGE, seconds=1.0) for each in owners)
        )
        made.close()

    run(parsed())
    assert seen == ["theirs", "ours"] * 4 + ["theirs"] * 8


def test_an_answer_that_takes_more_cpu_time_than_an_honest_one_is_given_up() -> None:
    seconds = itertools.count(0.0, 0.25)  # of CPU time: each part takes so much
    seen: list[str] = []

    async def parsed() -> None:
        made = Parsing(lambda: next(seconds))
        with pytest.raises(CostlyError, match="more than 2 s of CPU time"):
            await made.values(noted("part", 1000, seen), owner="theirs", size=LARGE, seconds=2.0)
        with pytest.raises(CostlyError):
            await made.values(noted("part", 1000, seen), owner="theirs", size=LARGE, seconds=2.0)
        made.close()

    run(parsed())
    assert len(seen) == 2 * 8


def test_what_is_wrong_with_a_part_is_said_and_the_next_answer_is_parsed() -> None:
    async def parsed() -> list[int]:
        made = Parsing()
        wrong = (1 // number for number in (1, 0))
        with pytest.raises(ZeroDivisionError):
            await made.values(wrong, owner="ours", size=LARGE, seconds=1.0)
        found = await made.values(iter([1]), owner="ours", size=LARGE, seconds=1.0)
        made.close()
        return found

    assert run(parsed()) == [1]


def test_who_stops_waiting_leaves_the_turn_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "SLICE_SECONDS", 0.0)

    async def parsed() -> list[int]:
        made = Parsing()
        endless = asyncio.ensure_future(made.values(itertools.count(), owner="ours", size=LARGE, seconds=1e9))
        await asyncio.sleep(0.01)
        endless.cancel()
        await asyncio.wait([endless])
        found = await made.values(iter([1]), owner="ours", size=LARGE, seconds=1.0)
        made.close()
        return found

    assert run(parsed()) == [1]
