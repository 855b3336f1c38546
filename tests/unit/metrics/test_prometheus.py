"""Workers' metrics from a server that speaks Prometheus' API over real HTTP and TLS, well or badly."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import trustme

from heterotrain import contract
from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.metrics.credentials import BasicAuth, BearerToken, Credentials
from heterotrain_operator.metrics.prometheus import PrometheusSource, query_of
from unit.metrics.servers import Script, serving

NOW = 1_000_000.0
WORKER = "digits-cpu-0"
TOKEN = "s3cret-token"

Row = dict[str, Any]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is on this machine."""
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def script() -> Script:
    return Script(answer=matrix())


@pytest.fixture
def url(script: Script) -> Iterator[str]:
    with serving(script) as address:
        yield address


def row(name: str, samples: list[tuple[float, object]], version: int = 7, **labels: str) -> Row:
    """One series; times are seconds from now."""
    metric = {
        "__name__": name,
        "namespace": "ml",
        "training_job": "digits",
        "worker": WORKER,
        "group": "cpu",
        "plan_version": str(version),
        "instance": "10.0.0.7:9400",
        **labels,
    }
    return {"metric": metric, "values": [[NOW + at, str(value)] for at, value in samples]}


def matrix(*rows: Row) -> dict[str, object]:
    return {"status": "success", "data": {"resultType": "matrix", "result": list(rows)}}


def scrape(at: float, version: int = 7, steps: float = 10, own: float = 2.5, **labels: str) -> list[Row]:
    """All series of one scrape of one worker, as far as these tests need them."""
    return [
        row(contract.METRIC_PLAN_VERSION, [(at, version)], version, **labels),
        row(f"{contract.METRIC_STEPS}_total", [(at, steps)], version, **labels),
        row(f"{contract.METRIC_OWN_SECONDS}_total", [(at, own)], version, **labels),
    ]


def source(url: str, **options: Any) -> PrometheusSource:
    return PrometheusSource(url, **{"max_age_seconds": 30, "timeout_seconds": 5.0, **options})


def read(url: str, **options: Any) -> WorkerMetrics | None:
    reading = source(url, **options).read("digits", "ml", [WORKER], NOW)
    assert reading.problem == ""
    return reading.metrics[WORKER]


def problem(url: str, **options: Any) -> str:
    reading = source(url, **options).read("digits", "ml", [WORKER], NOW)
    assert reading.metrics == {WORKER: None}
    assert reading.problem
    return reading.problem


# --- what is asked


def test_raw_samples_of_the_jobs_workers_are_asked_for(url: str, script: Script) -> None:
    source(f"{url}/prometheus/", max_age_seconds=45).read("digits", "ml", [WORKER], NOW)
    (asked,) = script.asked
    path, query = asked
    assert path == "/prometheus/api/v1/query"
    assert query == {
        "query": ['{__name__=~"heterotrain_worker_.+",training_job="digits",namespace="ml"}[45s]'],
    }


def test_label_values_cannot_leave_their_quotes() -> None:
    query = query_of('x"} or up{a="\\', "a\nb", 30)
    assert query == ('{__name__=~"heterotrain_worker_.+",training_job="x\\"} or up{a=\\"\\\\",namespace="a\\nb"}[30s]')


# --- what the answer means


def test_every_figure_of_a_worker_is_read(url: str, script: Script) -> None:
    gauges = {
        contract.METRIC_PLAN_VERSION: 7,
        contract.METRIC_GENERATION: 2,
        contract.METRIC_BATCH_SIZE: 32,
        contract.METRIC_STEP: 120,
        contract.METRIC_TOTAL_STEPS: 500,
        contract.METRIC_EPOCH: 3,
        contract.METRIC_IN_COLLECTIVE: 1,
        contract.METRIC_OWN_SECONDS_EWMA: 0.25,
        contract.METRIC_LOSS: "NaN",
        contract.METRIC_MEMORY_BYTES: "1e+08",
        contract.METRIC_CPU_LIMIT: 0.5,
    }
    counters = {
        contract.METRIC_STEPS: 10,
        contract.METRIC_SAMPLES: 320,
        contract.METRIC_OWN_SECONDS: 2.5,
        contract.METRIC_OWN_SECONDS_SQUARED: 0.7,
        contract.METRIC_WAIT_SECONDS: 1.25,
        contract.METRIC_CPU_THROTTLED_SECONDS: 4.0,
    }
    rows = [row(name, [(-1, value)]) for name, value in gauges.items()]
    rows += [row(f"{name}_total", [(-6, 0), (-1, value)]) for name, value in counters.items()]
    rows.append(row(contract.METRIC_PHASE, [(-6, 1)], phase=contract.PHASE_STARTING))
    rows.append(row(contract.METRIC_PHASE, [(-1, 1)], phase=contract.PHASE_TRAINING))
    script.answer = matrix(*rows)
    metrics = read(url)
    assert metrics is not None
    assert metrics.loss is not None
    assert metrics.loss != metrics.loss  # NaN
    assert metrics == WorkerMetrics(
        plan_version=7,
        generation=2,
        batch_size=32,
        step=120,
        total_steps=500,
        epoch=3,
        phase=contract.PHASE_TRAINING,
        in_collective=True,
        steps=10.0,
        samples=320.0,
        own_seconds=2.5,
        own_seconds_squared=0.7,
        wait_seconds=1.25,
        own_seconds_ewma=0.25,
        loss=metrics.loss,
        memory_bytes=1e8,
        cpu_limit=0.5,
        cpu_throttled_seconds=4.0,
    )


def test_newest_sample_of_a_series_counts(url: str, script: Script) -> None:
    steps = row(f"{contract.METRIC_STEPS}_total", [(-3, 10), (-2, 20), (-1, 30)])
    script.answer = matrix(row(contract.METRIC_PLAN_VERSION, [(-3, 7), (-2, 7), (-1, 7)]), steps)
    metrics = read(url)
    assert metrics is not None
    assert metrics.steps == 30.0


@pytest.mark.parametrize(("at", "counts"), [(-30.0, True), (-30.1, False), (-3600.0, False), (2.0, True)])
def test_samples_older_than_the_limit_do_not_count(url: str, script: Script, at: float, counts: bool) -> None:
    script.answer = matrix(*scrape(at))
    assert (read(url) is not None) is counts


def test_figures_of_one_scrape_are_not_mixed_with_older_ones(url: str, script: Script) -> None:
    script.answer = matrix(
        row(contract.METRIC_PLAN_VERSION, [(-6, 7), (-1, 7)]),
        row(f"{contract.METRIC_STEPS}_total", [(-6, 10), (-1, 20)]),
        row(contract.METRIC_LOSS, [(-6, 1.5)]),  # not exported any more
    )
    metrics = read(url)
    assert metrics is not None
    assert (metrics.steps, metrics.loss) == (20.0, None)


def test_series_of_a_new_version_replace_those_of_the_old_one(url: str, script: Script) -> None:
    script.answer = matrix(*scrape(-2, version=7, steps=90, own=9.0), *scrape(-1, version=8, steps=1, own=0.1))
    assert read(url) == WorkerMetrics(plan_version=8, steps=1.0, own_seconds=0.1)


def test_restarted_worker_counts_although_its_predecessor_followed_a_later_version(url: str, script: Script) -> None:
    before = scrape(-9, version=12, steps=500, instance="10.0.0.7:9400")
    after = scrape(-1, version=0, steps=0, own=0.0, instance="10.0.0.9:9400")
    script.answer = matrix(*before, *after)
    assert read(url) == WorkerMetrics(plan_version=0)


def test_samples_from_before_a_pod_was_created_are_not_its_own(url: str, script: Script) -> None:
    script.answer = matrix(*scrape(-9))
    asked = source(url)
    assert asked.read("digits", "ml", [WORKER], NOW, since={WORKER: NOW - 10}).metrics[WORKER] is not None
    assert asked.read("digits", "ml", [WORKER], NOW, since={WORKER: NOW - 8}).metrics[WORKER] is None


def test_two_servers_that_watch_one_worker_are_not_mixed(url: str, script: Script) -> None:
    script.answer = matrix(
        *scrape(-2, steps=10, own=1.0, prometheus="a"),
        *scrape(-1, steps=11, own=1.1, prometheus="b"),
    )
    assert read(url) == WorkerMetrics(plan_version=7, steps=11.0, own_seconds=1.1)


def test_counter_that_began_anew_is_taken_as_it_is(url: str, script: Script) -> None:
    steps = row(f"{contract.METRIC_STEPS}_total", [(-3, 100), (-2, 120), (-1, 4)])
    script.answer = matrix(row(contract.METRIC_PLAN_VERSION, [(-1, 7)]), steps)
    metrics = read(url)
    assert metrics is not None
    assert metrics.steps == 4.0


@pytest.mark.parametrize("ended", ["NaN", "+Inf"])
def test_series_that_has_ended_does_not_count(url: str, script: Script, ended: str) -> None:
    script.answer = matrix(row(contract.METRIC_PLAN_VERSION, [(-2, 7), (-1, ended)]))
    assert read(url) is None


def test_worker_with_a_figure_that_must_be_whole_and_is_none_is_unreadable(url: str, script: Script) -> None:
    script.answer = matrix(*scrape(-1), row(contract.METRIC_STEP, [(-1, "NaN")]))
    assert read(url) is None


def test_only_the_workers_asked_for_are_told_and_all_of_them(url: str, script: Script) -> None:
    script.answer = matrix(*scrape(-1), *scrape(-1, worker="digits-old-0"))
    reading = source(url).read("digits", "ml", [WORKER, "digits-cpu-1"], NOW)
    assert set(reading.metrics) == {WORKER, "digits-cpu-1"}
    assert reading.metrics["digits-cpu-1"] is None
    assert reading.note == "the server holds no fresh samples of digits-cpu-1"


def test_server_that_scrapes_no_worker_is_noted_with_what_was_asked(url: str) -> None:
    reading = source(url).read("digits", "ml", [WORKER], NOW)
    assert reading.problem == ""
    assert "does it scrape them?" in reading.note
    assert 'namespace="ml"' in reading.note


def test_nothing_is_noted_when_all_workers_are_known(url: str, script: Script) -> None:
    script.answer = matrix(*scrape(-1))
    assert source(url).read("digits", "ml", [WORKER], NOW).note == ""


# --- credentials and TLS


@pytest.mark.parametrize(
    ("credentials", "header"),
    [
        (BearerToken(TOKEN), f"Bearer {TOKEN}"),
        (BearerToken(f"{TOKEN}\n"), f"Bearer {TOKEN}"),
        (BasicAuth("Aladdin", "open sesame"), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="),  # the example of RFC 7617
        (BasicAuth("Aladdin\n", "open sesame\r\n"), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="),
    ],
)
def test_server_that_asks_for_credentials_gets_them(
    url: str, script: Script, credentials: Credentials, header: str
) -> None:
    script.authorization = header
    script.answer = matrix(*scrape(-1))
    assert read(url, credentials=credentials) is not None


def test_wrong_and_absent_credentials_are_told_apart(url: str, script: Script) -> None:
    script.authorization = f"Bearer {TOKEN}"
    assert "asks for credentials, and none are given (401 Unauthorized)" in problem(url)
    assert "refuses the credentials (401 Unauthorized)" in problem(url, credentials=BearerToken("wrong"))


def test_no_secret_is_in_any_text(url: str, script: Script) -> None:
    script.status = 403
    for credentials in (BearerToken(TOKEN), BasicAuth("me", TOKEN)):
        assert TOKEN not in repr(credentials)
        assert TOKEN not in problem(url, credentials=credentials)
    with pytest.raises(ValueError, match="bearer token") as caught:
        source(url, credentials=BearerToken(f"{TOKEN}\nX-Forged: 1"))
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("credentials", [BearerToken(""), BearerToken("a b"), BearerToken("ü"), BasicAuth("a:b", "c")])
def test_credentials_that_no_header_can_hold_are_refused(credentials: Credentials) -> None:
    with pytest.raises(ValueError, match=r"bearer token|colon"):
        source("http://prometheus:9090", credentials=credentials)


def test_redirects_do_not_carry_credentials_away(url: str, script: Script) -> None:
    elsewhere = Script(answer=matrix())
    with serving(elsewhere) as other:
        script.status, script.headers = 307, {"Location": f"{other}/api/v1/query"}
        said = problem(url, credentials=BearerToken(TOKEN))
    assert "redirects" in said
    assert other in said
    assert elsewhere.asked == []


def pem(authority: trustme.CA) -> str:
    return authority.cert_pem.bytes().decode()


def test_certificate_of_the_given_authority_is_trusted_and_of_no_other(script: Script) -> None:
    authority = trustme.CA()
    script.answer = matrix(*scrape(-1))
    with serving(script, authority) as url:
        assert read(url, ca_pem=pem(authority)) is not None
        assert "TLS: the server's certificate is not trusted" in problem(url, ca_pem=pem(trustme.CA()))
        assert "TLS: the server's certificate is not trusted" in problem(url)
        assert "TLS" in problem(url.replace("127.0.0.1", "localhost"), ca_pem=pem(authority))


def test_https_to_a_server_without_it_is_a_problem_of_tls(url: str) -> None:
    assert problem(url.replace("http:", "https:"), ca_pem=pem(trustme.CA())).startswith("TLS: ")


@pytest.mark.parametrize("ca_pem", ["", "nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_authority_that_is_none_is_refused(ca_pem: str) -> None:
    with pytest.raises(ValueError, match="no PEM certificate"):
        source("https://prometheus", ca_pem=ca_pem)


# --- a server that is away or answers badly


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
            "the server answers 422 Unprocessable Entity: query timed out",
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
