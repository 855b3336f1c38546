"""Answers of the query API, part by part: what is read and refused, what either may cost, and who waits for whom."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_operator.metrics import parsing
from heterotrain_operator.metrics.matrix import MAX_PART_BYTES, PART_BYTES, NotAMatrixError, Series, parts_of
from heterotrain_operator.metrics.parsing import QUICK_BYTES, CostlyError, Parsing
from unit.metrics.servers import Row, matrix, row

NAME = "heterotrain_worker_step"
HEAD = b'{"status":"success","data":{"resultType":"matrix","result":['


def series_of(body: bytes, most: int) -> list[Series]:
    return [part for part in parts_of(body, most) if part is not None]


def series_in(document: object, **options: Any) -> list[Any]:
    return series_of(json.dumps(document, **options).encode(), 1000)


def data_of(*rows: Row) -> dict[str, object]:
    data: dict[str, object] = matrix(*rows)["data"]  # type: ignore[assignment]
    return data


def test_every_series_has_its_newest_sample_whatever_stands_around_it() -> None:
    rows = [row(NAME, [(-2, 1), (-1, 2)]), row(NAME, [(-1, 3)], worker="other"), row(NAME, []), row("up", [(-1, 1)])]
    found = series_in(matrix(*rows))
    assert [(labels["worker"], value) for labels, _, value in found] == [("digits-cpu-0", 2.0), ("other", 3.0)]
    data = dict(reversed(data_of(*rows).items()))
    document = {"stats": {"a": [1, {}]}, "data": {"a": '\\"]}', **data, "b": 12}, "c": [], "status": "success"}
    for indent in (None, 4):
        assert series_in(document, indent=indent) == found


@pytest.mark.parametrize("text", ["😀" * 5000, "\\" * 5000, "\u2028"])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_labels_of_any_kind_and_size_leave_the_next_series_readable(text: str, ascii_only: bool) -> None:
    rows = [row(NAME, [(-1, 1)], pod=text), row(NAME, [(-1, 2)])]
    found = series_in(matrix(*rows), ensure_ascii=ascii_only)
    assert [(labels.get("pod"), value) for labels, _, value in found] == [(text, 1.0), (None, 2.0)]


@given(st.integers(PART_BYTES - 200, PART_BYTES + 200))
def test_no_number_is_cut_where_a_part_ends(size: int) -> None:
    document = {"data": {"a": [0] * (size // 3), "b": 10 ** (size % 7), **data_of(row(NAME, [(-1, 2)]))}}
    assert len(series_in(document | {"status": "success"})) == 1


def test_more_series_than_there_can_be_are_refused() -> None:
    body = json.dumps(matrix(*[row(NAME, [(-1, 1)])] * 10)).encode()
    assert len(series_of(body, 10)) == 10
    with pytest.raises(NotAMatrixError, match="more than 9 series"):
        series_of(body, 9)


MANY = 8 << 20


@pytest.mark.parametrize(
    "made",
    [
        lambda: HEAD + b"[]," * (MANY // 3),
        lambda: HEAD + b'{"metric":{},"values":[' + b"[]," * (MANY // 3),
        lambda: b'{"a":' * (MANY // 5),
        lambda: b'{"' + b"\\u0041" * (MANY // 6),
        lambda: b"{" + b" " * MANY,
        lambda: b'{"a":' + b"1" * MANY,
    ],
)
def test_answer_that_is_made_to_be_costly_costs_little(made: Callable[[], bytes]) -> None:
    body = made()
    tracemalloc.start()
    try:
        with pytest.raises(NotAMatrixError):
            for _ in parts_of(body, 100_000):
                pass
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 64 * MAX_PART_BYTES  # of 8 MiB; unfolded as a whole it was 27 times as much
    spent = time.process_time()
    with pytest.raises(NotAMatrixError):
        series_of(body, 100_000)
    assert time.process_time() - spent < 3.0


SCALARS = st.none() | st.booleans() | st.floats() | st.text()


@given(
    st.binary(max_size=200) | st.text(max_size=200).map(str.encode),
    st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)),
)
def test_nothing_is_too_odd(tail: bytes, entry: Any) -> None:
    answer = {"status": "success", "data": entry}
    documents = (entry, answer, matrix(entry), matrix({"metric": entry, "values": entry}))
    for body in (tail, HEAD + tail, HEAD + b'{"metric":' + tail, *(json.dumps(each).encode() for each in documents)):
        with contextlib.suppress(NotAMatrixError):
            series_of(body, 1000)


T = TypeVar("T")

LARGE = QUICK_BYTES + 1


def with_parsing(work: Callable[[Parsing], Awaitable[T]], *clock: Callable[[], float]) -> T:
    """What comes of work with a parser, which is closed after it."""

    async def closed() -> T:
        made = Parsing(*clock)
        try:
            return await work(made)
        finally:
            made.close()

    return asyncio.run(closed())


def noted(what: T, times: int, seen: list[T]) -> Iterator[T]:
    """So many parts, each of which is noted as it is parsed."""
    for _ in range(times):
        seen.append(what)
        yield what


@pytest.mark.parametrize("size", [QUICK_BYTES, LARGE])
def test_only_a_large_answer_is_parsed_beside_the_event_loop_without_empty_parts(
    size: int,
) -> None:
    parts = (None if number % 2 else threading.get_ident() for number in range(4))
    one, other = with_parsing(lambda made: made.values(parts, owner="ours", size=size, seconds=1.0))
    assert one == other
    assert (one == threading.get_ident()) is (size == QUICK_BYTES)


def test_owners_take_turns_however_many_answers_one_of_them_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "SLICE_SECONDS", 0.0)
    seen: list[str] = []
    owners = ("theirs", "theirs", "theirs", "ours")

    async def parsed(made: Parsing) -> None:
        await asyncio.gather(
            *(made.values(noted(each, 4, seen), owner=each, size=LARGE, seconds=1.0) for each in owners)
        )

    with_parsing(parsed)
    assert seen == ["theirs", "ours"] * 4 + ["theirs"] * 8


def test_an_answer_that_takes_more_cpu_time_than_an_honest_one_is_given_up() -> None:
    seconds = itertools.count(0.0, 0.25)  # of CPU time: each part takes so much
    seen: list[str] = []

    async def parsed(made: Parsing) -> None:
        for _ in range(2):
            with pytest.raises(CostlyError, match="more than 2 s of CPU time"):
                await made.values(noted("part", 1000, seen), owner="theirs", size=LARGE, seconds=2.0)

    with_parsing(parsed, lambda: next(seconds))
    assert len(seen) == 2 * 8


def test_who_fails_or_stops_waiting_leaves_the_turn_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "SLICE_SECONDS", 0.0)

    async def parsed(made: Parsing) -> list[int]:
        wrong = (1 // number for number in (1, 0))
        with pytest.raises(ZeroDivisionError):
            await made.values(wrong, owner="ours", size=LARGE, seconds=1.0)
        endless = asyncio.ensure_future(made.values(itertools.count(), owner="ours", size=LARGE, seconds=1e9))
        await asyncio.sleep(0.01)
        endless.cancel()
        await asyncio.wait([endless])
        return await made.values(iter([1]), owner="ours", size=LARGE, seconds=1.0)

    assert with_parsing(parsed) == [1]
