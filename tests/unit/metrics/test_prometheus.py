"""Workers' metrics from a server that speaks Prometheus' API over real HTTP: what is asked, and what answers mean."""

from __future__ import annotations

import json
import logging
import math
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trustme

from heterotrain import worker_metrics as table
from heterotrain.metric import Metric
from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.metrics import prometheus
from heterotrain_operator.metrics.matrix import Series, parts_of
from heterotrain_operator.metrics.prometheus import (
    ANSWERS_WRONGLY,
    BYTES_PER_WORKER,
    REFUSES,
    UNREACHABLE,
    UNTRUSTED,
    BasicAuth,
    BearerToken,
    Credentials,
    query_of,
)
from heterotrain_operator.metrics.workers import MAX_SIZES
from unit.metrics.hostile import costly_matrix, dripping_body, endless_body, hostile
from unit.metrics.servers import NOW, WORKER, Row, Script, matrix, problem, read, row, scrape, serving, source


def test_raw_samples_of_the_jobs_workers_are_asked_for_by_quoted_names(url: str, script: Script) -> None:
    source(f"{url}/prometheus/", max_age_seconds=45).read()
    (asked,) = script.asked
    path, query = asked
    assert path == "/prometheus/api/v1/query"
    assert query == {
        "query": ['{__name__=~"heterotrain_worker_.+",training_job="digits",namespace="ml"}[45s]'],
    }
    quoted = query_of('x"} or up{a="\\', "a\nb", 30)
    assert quoted == ('{__name__=~"heterotrain_worker_.+",training_job="x\\"} or up{a=\\"\\\\",namespace="a\\nb"}[30s]')


@pytest.mark.parametrize("metric", [table.WARM_UP_SECONDS, table.SMALLER_STEP_SECONDS])
def test_what_a_worker_tells_by_batch_sizes_is_read_if_possible(url: str, script: Script, metric: Metric) -> None:
    shown = {"64": 0.5, "32": 0.3, "-1": 1.0, "x": 1.0, "9" * 30: 1.0, "16": math.inf, "8": 0.0, "\u0663": 1.0}
    many = {str(batch): 1.0 for batch in range(1, 100)}
    found: list[Any] = []
    for values in (shown, many):
        rows = [row(metric.name, [(-1, value)], batch=batch) for batch, value in values.items()]
        script.answer = matrix(row(table.PLAN_VERSION.name, [(-1, 7)]), *rows)
        found.append(getattr(read(url), metric.field))
    assert found[0] == ((32, 0.3), (64, 0.5))
    assert len(found[1]) == MAX_SIZES


def test_samples_older_than_the_limit_do_not_count(url: str, script: Script) -> None:
    for at, counts in ((-30.0, True), (-30.1, False), (2.0, True)):
        script.answer = matrix(*scrape(at))
        assert (read(url) is not None) is counts


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # a loss that is not exported any more
        (
            [*scrape(-6), *scrape(-1, steps=20, own=5.0), row(table.LOSS.name, [(-6, 1.5)])],
            WorkerMetrics(plan_version=7, steps=20.0, own_seconds=5.0),
        ),
        (
            [*scrape(-2, version=7, steps=90, own=9.0), *scrape(-1, version=8, steps=1, own=0.1)],
            WorkerMetrics(plan_version=8, steps=1.0, own_seconds=0.1),
        ),
        # a restarted worker, whose predecessor followed a later version
        (
            [*scrape(-9, version=12, instance="a"), *scrape(-1, version=0, steps=0, own=0.0, instance="b")],
            WorkerMetrics(plan_version=0),
        ),
        # two servers that watch one worker
        (
            [*scrape(-2, steps=10, own=1.0, prometheus="a"), *scrape(-1, steps=11, own=1.1, prometheus="b")],
            WorkerMetrics(plan_version=7, steps=11.0, own_seconds=1.1),
        ),
        ([row(table.PLAN_VERSION.name, [(-2, 7), (-1, "NaN")])], None),
        # another pod that exports the worker's series, and a clock that is an hour ahead
        (
            [*scrape(-2, own=1.0, pod=WORKER), *scrape(-1, own=99.0, pod="another"), *scrape(3600, own=99.0)],
            WorkerMetrics(plan_version=7, steps=10.0, own_seconds=1.0),
        ),
    ],
    ids=["older scrape", "new version", "restarted", "two servers", "ended", "others"],
)
def test_figures_are_of_the_newest_scrape(
    url: str, script: Script, rows: list[Row], expected: WorkerMetrics | None
) -> None:
    script.answer = matrix(*rows)
    assert read(url) == expected


def test_samples_from_before_a_pod_was_created_are_not_its_own(url: str, script: Script) -> None:
    script.answer = matrix(*scrape(-9))
    asked = source(url)
    assert asked.read(since={WORKER: NOW - 10}).metrics[WORKER] is not None
    assert asked.read(since={WORKER: NOW - 8}).metrics[WORKER] is None


def test_only_the_workers_asked_for_are_told_and_all_of_them(url: str, script: Script) -> None:
    assert "does it scrape them?" in source(url).read().note, "of none there are samples"
    script.answer = matrix(*scrape(-1), *scrape(-1, worker="digits-old-0"))
    reading = source(url).read(WORKER, "digits-cpu-1")
    assert set(reading.metrics) == {WORKER, "digits-cpu-1"}
    assert reading.metrics["digits-cpu-1"] is None
    assert reading.note == "the server holds no fresh samples of digits-cpu-1"


TOKEN = "s3cret-token"


@pytest.mark.parametrize(
    ("credentials", "header"),
    [
        (BearerToken(f"{TOKEN}\n"), f"Bearer {TOKEN}"),
        # The example of RFC 7617.
        (BasicAuth("Aladdin\n", "open sesame\r\n"), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="),
    ],
)
def test_server_is_given_its_credentials(url: str, script: Script, credentials: Credentials, header: str) -> None:
    script.authorization = header
    script.answer = matrix(*scrape(-1))
    assert read(url, credentials=credentials) is not None
    for wrong in (None, BearerToken("wrong")):
        assert problem(url, credentials=wrong) == REFUSES


def test_no_secret_is_in_any_text(url: str, script: Script, caplog: pytest.LogCaptureFixture) -> None:
    script.status = 403
    caplog.set_level(logging.DEBUG)
    for credentials in (BearerToken(TOKEN), BasicAuth("me", TOKEN)):
        assert TOKEN not in repr(credentials)
        assert TOKEN not in problem(url, credentials=credentials)
    with pytest.raises(ValueError, match="bearer token") as caught:
        source(url, credentials=BearerToken(f"{TOKEN}\nX-Forged: 1"))
    assert TOKEN not in str(caught.value)
    assert TOKEN not in caplog.text
    assert "HTTP status 403" in caplog.text


@pytest.mark.parametrize("credentials", [BearerToken(""), BearerToken("a b"), BearerToken("ü"), BasicAuth("a:b", "c")])
def test_credentials_that_no_header_can_hold_are_refused(credentials: Credentials) -> None:
    with pytest.raises(ValueError, match=r"bearer token|colon"):
        source("http://127.0.0.1:9090", credentials=credentials)


def test_redirects_are_not_followed_and_not_told_of(url: str, script: Script) -> None:
    elsewhere = Script(answer=matrix())
    with serving(elsewhere) as other:
        script.status, script.headers = 307, {"Location": f"{other}/api/v1/query"}
        assert problem(url, credentials=BearerToken(TOKEN)) == ANSWERS_WRONGLY
    assert elsewhere.asked == []


def pem(authority: trustme.CA) -> str:
    return authority.cert_pem.bytes().decode()


def test_certificate_of_the_given_authority_is_trusted_and_of_no_other(script: Script) -> None:
    authority = trustme.CA()
    script.answer = matrix(*scrape(-1))
    with serving(script, authority) as url:
        assert read(url, ca_pem=pem(authority)) is not None
        assert problem(url, ca_pem=pem(trustme.CA())) == UNTRUSTED
        assert problem(url) == UNTRUSTED
        with serving(script) as plain:
            assert problem(plain.replace("http:", "https:"), ca_pem=pem(authority)) == ANSWERS_WRONGLY
        assert problem(url.replace("127.0.0.1", "localhost"), ca_pem=pem(authority)) == UNTRUSTED


@pytest.mark.parametrize("ca_pem", ["", "nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_authority_that_is_none_is_refused(ca_pem: str) -> None:
    with pytest.raises(ValueError, match="no PEM certificate"):
        source("https://127.0.0.1", ca_pem=ca_pem)


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


def test_server_that_never_ends_its_answer_is_left_in_time() -> None:
    for behaviour, told in ((dripping_body, UNREACHABLE), (endless_body, ANSWERS_WRONGLY)):
        with hostile(behaviour) as (one,):
            assert problem(f"http://{one.address}", timeout_seconds=0.2) == told


@pytest.mark.parametrize(
    ("status", "raw", "told"),
    [
        (503, b"upstream", ANSWERS_WRONGLY),
        (422, b'{"status": "error", "errorType": "execution", "error": "secret of theirs"}', ANSWERS_WRONGLY),
        (403, b"{}", REFUSES),
        (200, b"<html>log in</html>", ANSWERS_WRONGLY),
        (200, b"\xff\xfe", ANSWERS_WRONGLY),
        (200, b"[" * 100_000, ANSWERS_WRONGLY),
        (200, b'{"status":"success","data":{"resultType":"matrix","result":[' + b"[" * 60_000, ANSWERS_WRONGLY),
    ],
)
def test_what_servers_say_instead_is_not_repeated(url: str, script: Script, status: int, raw: bytes, told: str) -> None:
    script.status, script.raw = status, raw
    assert problem(url) == told


@pytest.mark.parametrize(
    "answer",
    [
        *(None, [], {}, {"status": "error"}, {"status": "success", "data": None}),
        {"status": "success", "data": {"resultType": "vector", "result": []}},
        {"status": "success", "data": {"resultType": "matrix", "result": None}},
        matrix(3),
        matrix({"values": []}),
        *(matrix({"metric": {}, "values": [each]}) for each in (["x", "1"], [1], [1, None], [10**400, "1"])),
    ],
    ids=lambda answer: str(answer)[-40:],
)
def test_json_that_is_no_answer_is_a_problem(url: str, script: Script, answer: object) -> None:
    script.answer = answer
    assert problem(url) == ANSWERS_WRONGLY


def test_answer_beyond_what_the_workers_need_is_not_read(url: str, script: Script) -> None:
    well = json.dumps(matrix(*scrape(-1))).encode()
    script.raw = well.ljust(3 * BYTES_PER_WORKER)
    assert problem(url) == ANSWERS_WRONGLY
    assert source(url).read(WORKER, "digits-cpu-1").problem == ""


def test_answer_that_is_dear_to_parse_does_not_keep_the_event_loop_and_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
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
    monkeypatch.setattr(prometheus, "PARSING_SECONDS_PER_WORKER", 0.0)
    with hostile(costly_matrix) as (one,):
        assert problem(f"http://{one.address}") == ANSWERS_WRONGLY
    assert "of CPU time" in caplog.text, "more than an honest answer takes"


def test_reading_resumes_by_itself_and_what_is_wrong_is_logged_once_until_it_changes(
    url: str, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    def turns(status: int) -> Callable[[], None]:
        return lambda: setattr(script, "status", status)

    script.answer, script.status = matrix(*scrape(-1)), 503
    reading = source(url).read(times=[lambda: None, turns(404), lambda: None, turns(200)])
    assert (reading.problem, reading.metrics[WORKER] is None) == ("", False)
    logged = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [line.rpartition(": ")[2] for line in logged] == ["HTTP status 503", "HTTP status 404"]
