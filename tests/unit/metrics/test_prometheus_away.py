"""A server that is away or answers badly is a problem in words, and reading resumes by itself."""

from __future__ import annotations

import json
import socket
import threading
from http import HTTPStatus

import pytest

from unit.metrics.samples import NOW, WORKER, matrix, problem, scrape, source
from unit.metrics.servers import Script


@pytest.mark.parametrize(
    "url", ["", "prometheus:9090", "ftp://prometheus", "http://", "http://me:pw@host", "http://host/?a=b", "http://a:b"]
)
def test_address_that_is_none_is_refused_without_its_credentials(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|[Pp]ort|query") as caught:
        source(url)
    assert "me:pw" not in str(caught.value)


def test_server_that_does_not_listen_is_away() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert problem(f"http://127.0.0.1:{unused.getsockname()[1]}") == "the server is away: Connection refused"


def test_name_that_does_not_resolve_is_named_as_such() -> None:
    assert "name is not known" in problem("http://prometheus.invalid:9090")


def test_server_that_does_not_answer_is_not_waited_for(url: str, script: Script) -> None:
    script.silent = threading.Event()
    assert problem(url, timeout_seconds=0.2) == "no answer within 0.2 s"


@pytest.mark.parametrize(
    ("status", "raw", "words"),
    [
        (503, b"upstream", "the server answers 503 Service Unavailable"),
        (404, b"404 page not found", "the server answers 404 Not Found"),
        (
            422,
            json.dumps({"status": "error", "errorType": "execution", "error": "query timed out"}).encode(),
            f"the server answers 422 {HTTPStatus(422).phrase}: query timed out",  # Python has changed its words,
        ),
        (403, b"{}", "forbids the query to these credentials (403 Forbidden)"),
        (200, b"<html>log in</html>", "the answer is not JSON, and calls itself application/json"),
        (500, json.dumps({"error": "internal: token abc"}).encode(), "the server answers 500 Internal Server Error"),
        (200, b"", "the answer is not JSON"),
        (200, b"\xff\xfe", "the answer is not JSON"),
        (200, b"[" * 100_000, "the answer is not JSON"),
    ],
)
def test_what_the_server_says_instead_of_an_answer_is_repeated(
    url: str, script: Script, status: int, raw: bytes, words: str
) -> None:
    script.status, script.raw = status, raw
    assert words in problem(url)


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
    ],
)
def test_json_that_is_no_answer_is_a_problem(url: str, script: Script, answer: object) -> None:
    script.answer = answer
    assert "not one of Prometheus' query API" in problem(url)


def test_answer_beyond_the_limit_is_not_read(url: str, script: Script) -> None:
    script.raw = b" " * (2 << 20)
    assert problem(url, max_bytes=1 << 20) == "the answer is larger than 1 MiB"


def test_reading_resumes_by_itself_when_the_server_is_back(url: str, script: Script) -> None:
    asked = source(url)
    script.answer = matrix(*scrape(-1))
    script.status = 503
    assert asked.read("digits", "ml", [WORKER], NOW).problem
    script.status = 200
    reading = asked.read("digits", "ml", [WORKER], NOW)
    assert reading.problem == ""
    assert reading.metrics[WORKER] is not None
