"""Answers of the query API, read series by series: what is read, what is refused, and what either may cost."""

from __future__ import annotations

import contextlib
import json
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_operator.metrics.matrix import MAX_PART_BYTES, PART_BYTES, NotAMatrixError, Series, parts_of
from unit.metrics.samples import Row, matrix, row

NAME = "heterotrain_worker_step"
HEAD = b'{"status":"success","data":{"resultType":"matrix","result":['


def series_of(body: bytes, most: int) -> list[Series]:
    return [part for part in parts_of(body, most) if part is not None]


def read(document: object, **options: Any) -> list[Any]:
    return series_of(json.dumps(document, **options).encode(), 1000)


def data_of(*rows: Row) -> dict[str, object]:
    data: dict[str, object] = matrix(*rows)["data"]  # type: ignore[assignment]
    return data


def test_every_series_has_its_newest_sample() -> None:
    rows = [row(NAME, [(-2, 1), (-1, 2)]), row(NAME, [(-1, 3)], worker="other"), row(NAME, [])]
    assert [(labels["worker"], value) for labels, _, value in read(matrix(*rows))] == [
        ("digits-cpu-0", 2.0),
        ("other", 3.0),
    ]


@pytest.mark.parametrize("indent", [None, 4])
def test_order_and_space_and_what_else_is_said_do_not_matter(indent: int | None) -> None:
    whole = matrix(row(NAME, [(-1, 2)]))
    data = dict(reversed(data_of(row(NAME, [(-1, 2)])).items()))
    document = {"stats": {"a": [1, {}]}, "data": {"a": '\\"]}', **data, "b": 12}, "c": [], "status": "success"}
    assert read(document, indent=indent) == read(whole)


def test_series_that_are_not_ours_are_left_out() -> None:
    assert read(matrix(row("up", [(-1, 1)]))) == []


@pytest.mark.parametrize("text", ["ü" * 100, "😀" * 5000, "\\" * 5000, "\u2028"])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_labels_of_any_kind_and_size_leave_the_next_series_readable(text: str, ascii_only: bool) -> None:
    rows = [row(NAME, [(-1, 1)], pod=text), row(NAME, [(-1, 2)])]
    found = read(matrix(*rows), ensure_ascii=ascii_only)
    assert [(labels.get("pod"), value) for labels, _, value in found] == [(text, 1.0), (None, 2.0)]


@given(st.integers(PART_BYTES - 200, PART_BYTES + 200))
def test_no_number_is_cut_where_a_part_ends(size: int) -> None:
    document = {"data": {"a": [0] * (size // 3), "b": 10 ** (size % 7), **data_of(row(NAME, [(-1, 2)]))}}
    assert len(read(document | {"status": "success"})) == 1


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
        lambda: HEAD + b'{"metric":{},"values":[]},' * (MANY // 26),
        lambda: b'{"warnings":[' + b"[]," * (MANY // 3),
        lambda: b'{"a":' * (MANY // 5),
        lambda: b'{"' + b"\\u0041" * (MANY // 6),
        lambda: b"{" + b'"a":1,' * (MANY // 6),
        lambda: b"{" + b" " * MANY,
        lambda: b'{"a":' + b"1" * MANY,
        lambda: HEAD + b'{"metric":{"a":"' + b"\\\\" * (MANY // 2),
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


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_document_is_too_odd(tail: bytes) -> None:
    for body in (tail, HEAD + tail, HEAD + b'{"metric":' + tail):
        with contextlib.suppress(NotAMatrixError):
            series_of(body, 10)


SCALARS = st.none() | st.booleans() | st.floats() | st.text()


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_no_json_is_too_odd(entry: Any) -> None:
    answer = {"status": "success", "data": entry}
    for document in (entry, answer, matrix(entry), matrix({"metric": entry, "values": entry})):
        with contextlib.suppress(NotAMatrixError):
            read(document)
