"""A server that is away or answers badly is a problem in words, and reading resumes by itself."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator

import pytest

from heterotrain_operator.metrics import prometheus
from heterotrain_operator.metrics.matrix import Series, parts_of
from heterotrain_operator.metrics.prometheus import ANSWERS_WRONGLY, BYTES_PER_WORKER, REFUSES, UNREACHABLE
from unit.metrics.hostile import DAWDLERS, FLOODERS, Behaviour, costly_matrix, hostile
from unit.metrics.samples import WORKER, matrix, problem, scrape, source
from unit.metrics.servers import Script


def closed() -> str:
    """A server that refuses connections."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"


def test_server_that_refuses_is_not_told_from_one_that_is_silent_or_unknown(
    url: str, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    script.silent = threading.Event()
    assert problem(url, timeout_seconds=0.2) == UNREACHABLE
    assert "no answer within 0.2 s" in caplog.text
    assert problem(closed()) == UNREACHABLE
    assert "refused" in caplog.text or "Connect call failed" in caplog.text
    assert problem("http://prometheus.invalid:9090", allowed=["*"]) == UNREACHABLE


@pytest.mark.parametrize("behaviour", DAWDLERS)
def test_server_that_never_ends_its_answer_is_left_in_time(behaviour: Behaviour) -> None:
    with hostile(behaviour) as (one,):
        assert problem(f"http://{one.address}", timeout_seconds=0.2) == UNREACHABLE


@pytest.mark.parametrize("behaviour", FLOODERS)
def test_server_that_answers_without_end_is_left(behaviour: Behaviour) -> None:
    with hostile(behaviour) as (one,):
        assert problem(f"http://{one.address}") == ANSWERS_WRONGLY


@pytest.mark.parametrize(
    ("status", "raw", "told"),
    [
        (503, b"upstream", ANSWERS_WRONGLY),
        (404, b"404 page not found", ANSWERS_WRONGLY),
        (422, b'{"status": "error", "errorType": "execution", "error": "secret of theirs"}', ANSWERS_WRONGLY),
        (401, b"{}", REFUSES),
        (403, b"{}", REFUSES),
        (200, b"<html>log in</html>", ANSWERS_WRONGLY),
        (200, b"", ANSWERS_WRONGLY),
        (200, b"\xff\xfe", ANSWERS_WRONGLY),
        (200, b"[" * 100_000, ANSWERS_WRONGLY),
        (200, b'{"a":' * 10_000, ANSWERS_WRONGLY),
        (200, b'{"status":"success","data":{"resultType":"matrix","result":[' + b"[" * 60_000, ANSWERS_WRONGLY),
    ],
)
def test_what_the_server_says_instead_of_an_answer_is_not_repeated(
    url: str, script: Script, status: int, raw: bytes, told: str
) -> None:
    script.status, script.raw = status, raw
    assert problem(url) == told


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        {},
        {"status": "error"},
        {"status": "success"},
        {"status": "success", "data": None},
        {"status": "success", "data": {"resultType": "vector", "result": []}},
        {"status": "success", "data": {"resultType": "matrix", "result": None}},
        {"status": "success", "data": {"resultType": "matrix", "result": [3]}},
        {"status": "success", "data": {"resultType": "matrix", "result": [{"values": []}]}},
        {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {}, "values": [["x", "1"]]}]}},
        {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {}, "values": [[1]]}]}},
        {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {}, "values": [[1, None]]}]}},
        {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {}, "values": [[10**400, "1"]]}]}},
        {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {}, "values": [["NaN", "1"]]}]}},
    ],
)
def test_json_that_is_no_answer_is_a_problem(url: str, script: Script, answer: object) -> None:
    script.answer = answer
    assert problem(url) == ANSWERS_WRONGLY


def test_answer_beyond_what_the_workers_need_is_not_read(url: str, script: Script) -> None:
    well = json.dumps(matrix(*scrape(-1))).encode()
    script.raw = well.ljust(3 * BYTES_PER_WORKER)
    assert problem(url) == ANSWERS_WRONGLY
    assert source(url).read(WORKER, "digits-cpu-1").problem == ""


def test_answer_that_is_dear_to_parse_does_not_keep_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()

    def noted(body: bytes, most: int) -> Iterator[Series | None]:
        for part in parts_of(body, most):
            threads.add(threading.get_ident())
            yield part

    monkeypatch.setattr(prometheus, "parts_of", noted)
    monkeypatch.setattr(prometheus, "PARSING_SECONDS_PER_WORKER", 60.0)  # it is read to its end on any machine
    with hostile(costly_matrix) as (one,):
        assert source(f"http://{one.address}").read().problem == ""
    (thread,) = threads
    assert thread != threading.get_ident()


def test_answer_that_takes_more_cpu_time_than_an_honest_one_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(prometheus, "PARSING_SECONDS_PER_WORKER", 0.0)
    with hostile(costly_matrix) as (one,):
        assert problem(f"http://{one.address}") == ANSWERS_WRONGLY
    assert "of CPU time" in caplog.text


def test_reading_resumes_by_itself_when_the_server_is_back(url: str, script: Script) -> None:
    script.answer, script.status = matrix(*scrape(-1)), 503
    asked = source(url)
    assert asked.read().problem
    reading = asked.read(times=[lambda: setattr(script, "status", 200)])
    assert reading.problem == ""
    assert reading.metrics[WORKER] is not None


def test_what_is_wrong_is_logged_once_until_it_changes(
    url: str, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    script.status = 503
    source(url).read(times=[lambda: None, lambda: setattr(script, "status", 404), lambda: None])
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == [
        "HTTP status 503",
        "HTTP status 404",
    ]
